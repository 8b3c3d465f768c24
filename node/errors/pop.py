"""Errors about messages that pop handed out.

Owns the names, codes and texts; see `node.errors.common`.
"""

from node.errors.common import RETRY_SOON_MS, NodeError


class StaleHandleError(NodeError):
    """The receipt handle names no delivery in flight: the message was handed out again, is done or
    dead, or the group's offset was set. The handle will never be valid again."""

    code, status = "node.stale_handle", "FAILED_PRECONDITION"
    text = "receipt handle {handle!r} is not valid: {reason}; receive again"
    handle: str
    reason: str


class QueueHeldError(NodeError):
    """The next message of the queue cannot be read: the log or a derived file is damaged. The queue
    waits for the repair; no message is skipped, and other queues go on."""

    code, retryable, status = "node.queue_held", True, "DATA_LOSS"
    retry_after_ms = 1_000
    text = "queue {queue_id} of {topic!r} hands nothing out at the moment: {reason}; try again"
    topic: str
    queue_id: int
    reason: str


class PopConflictError(NodeError):
    """The messages in flight of a group changed during a take: its offset was set, or a take of
    another leader came first. No message was taken."""

    code, retryable, status = "node.pop_conflict", True, "ABORTED"
    retry_after_ms = RETRY_SOON_MS
    text = (
        "what group {group!r} has of queue {queue_id} of {topic!r} has changed meanwhile; try again"
    )
    group: str
    topic: str
    queue_id: int
