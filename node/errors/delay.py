"""Errors about delayed messages.

Owns names, codes and texts, as `node.errors.common` does.
"""

from node.errors.common import NodeError


class DelayedGoneError(NodeError):
    """The delayed message is held no more, or its delivery has begun, so it cannot be cancelled."""

    code, status = "node.delayed_gone", "FAILED_PRECONDITION"

    def __init__(self, queue: int, offset: int) -> None:
        super().__init__(queue, offset)
        self.queue, self.offset = queue, offset

    def __str__(self) -> str:
        where = f"of level {self.queue}" if self.queue else "of any time"
        return (
            f"the message at offset {self.offset} of those {where} is held no more: it was "
            f"delivered, and nothing was changed; read its topic"
        )


class DelayTooLongError(NodeError):
    """The delay of a message is longer than the cluster holds messages. The log is unchanged."""

    code, status = "node.delay_too_long", "INVALID_ARGUMENT"

    def __init__(self, delay_ms: int, limit_ms: int) -> None:
        super().__init__(delay_ms, limit_ms)
        self.delay_ms, self.limit_ms = delay_ms, limit_ms

    def __str__(self) -> str:
        return (
            f"a delay of {self.delay_ms} ms is longer than the {self.limit_ms} ms for which "
            f"messages are held; send it later, or raise delay_ms_max on all nodes"
        )


class DelayedFullError(NodeError):
    """The cluster holds the maximum of delayed messages. The log is unchanged."""

    code, status = "node.delayed_full", "RESOURCE_EXHAUSTED"

    def __init__(self, held: int, limit: int) -> None:
        super().__init__(held, limit)
        self.held, self.limit = held, limit

    def __str__(self) -> str:
        return (
            f"{self.held} delayed messages are held, the limit is {self.limit}; wait until some "
            f"are delivered, or cancel what is not wanted any more"
        )
