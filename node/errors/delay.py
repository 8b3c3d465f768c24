"""Errors about delayed messages.

Owns names, codes and texts, as `node.errors.common` does.
"""

from node.errors.common import NodeError


class DelayedGoneError(NodeError):
    """The delayed message is held no more, or its delivery has begun, so it cannot be cancelled."""

    code, status = "node.delayed_gone", "FAILED_PRECONDITION"
    queue: int
    offset: int

    def __str__(self) -> str:
        where = f"of level {self.queue}" if self.queue else "of any time"
        return (
            f"the message at offset {self.offset} of those {where} is held no more: it was "
            f"delivered, and nothing was changed; read its topic"
        )


class DelayTooLongError(NodeError):
    """The delay of a message is longer than the cluster holds messages. The log is unchanged."""

    code, status = "node.delay_too_long", "INVALID_ARGUMENT"
    text = (
        "a delay of {delay_ms} ms is longer than the {limit_ms} ms for which messages are held; "
        "send it later, or raise delay_ms_max on all nodes"
    )
    delay_ms: int
    limit_ms: int


class DelayedFullError(NodeError):
    """The cluster holds the maximum of delayed messages. The log is unchanged."""

    code, status = "node.delayed_full", "RESOURCE_EXHAUSTED"
    text = (
        "{held} delayed messages are held, the limit is {limit}; wait until some are delivered, or "
        "cancel what is not wanted any more"
    )
    held: int
    limit: int
