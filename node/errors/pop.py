"""Errors about messages that pop handed out.

Owns the names, codes and texts; see `node.errors.common`.
"""

from node.errors.common import RETRY_SOON_MS, NodeError


class StaleHandleError(NodeError):
    """The receipt handle names no delivery in flight: the message was handed out again, is done or
    dead, or the group's offset was set. The handle will never be valid again."""

    code, status = "node.stale_handle", "FAILED_PRECONDITION"

    def __init__(self, handle: str, reason: str) -> None:
        super().__init__(handle, reason)
        self.handle, self.reason = handle, reason

    def __str__(self) -> str:
        return f"receipt handle {self.handle!r} is not valid: {self.reason}; receive again"


class QueueHeldError(NodeError):
    """The next message of the queue cannot be read: the log or a derived file is damaged. The queue
    waits for the repair; no message is skipped, and other queues go on."""

    code, retryable, status = "node.queue_held", True, "DATA_LOSS"
    retry_after_ms = 1_000

    def __init__(self, topic: str, queue_id: int, reason: str) -> None:
        super().__init__(topic, queue_id, reason)
        self.topic, self.queue_id, self.reason = topic, queue_id, reason

    def __str__(self) -> str:
        queue = f"queue {self.queue_id} of {self.topic!r}"
        return f"{queue} hands nothing out at the moment: {self.reason}; try again"


class PopConflictError(NodeError):
    """The messages in flight of a group changed during a take: its offset was set, or a take of
    another leader came first. No message was taken."""

    code, retryable, status = "node.pop_conflict", True, "ABORTED"
    retry_after_ms = RETRY_SOON_MS

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        super().__init__(group, topic, queue_id)
        self.group, self.topic, self.queue_id = group, topic, queue_id

    def __str__(self) -> str:
        queue = f"queue {self.queue_id} of {self.topic!r}"
        return f"what group {self.group!r} has of {queue} has changed meanwhile; try again"
