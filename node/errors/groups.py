"""Errors of consumer groups: refusals by their settings, retries and dead letters, filters.

Owns the names, codes and texts, as `node.errors.common` does for the rest of the node.
"""

from node.errors.common import NodeError
from store.errors import Outcome


class GroupDisabledError(NodeError):
    """The group's settings forbid consuming, or this way of it. The call had no effect."""

    code, status = "node.group_disabled", "PERMISSION_DENIED"

    def __init__(self, group: str, what: str) -> None:
        super().__init__(group, what)
        self.group, self.what = group, what

    def __str__(self) -> str:
        return (
            f"the settings of group {self.group!r} forbid {self.what}; "
            f"run 'qlog group set {self.group}' to change them"
        )


class TopicForbiddenError(NodeError):
    """The group's settings forbid reading this topic. The call had no effect."""

    code, status = "node.topic_forbidden", "PERMISSION_DENIED"

    def __init__(self, group: str, topic: str) -> None:
        super().__init__(group, topic)
        self.group, self.topic = group, topic

    def __str__(self) -> str:
        return (
            f"group {self.group!r} may not read topic {self.topic!r}; "
            f"run 'qlog group set {self.group} --allow {self.topic}' to change that"
        )


class GroupOrderlyError(NodeError):
    """The group is orderly: a message is retried in its place, and no other one overtakes it."""

    code, status = "node.group_orderly", "FAILED_PRECONDITION"

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is orderly, its messages do not go to a retry topic; read the "
            f"message again, or run 'qlog group set {self.group} --no-orderly'"
        )


class MessageExpiredError(NodeError):
    """The queue has no message at this offset: the message has expired, or is still to come."""

    code, status = "node.no_such_offset", "NOT_FOUND"

    def __init__(self, topic: str, queue_id: int, offset: int, lo: int, hi: int) -> None:
        super().__init__(topic, queue_id, offset, lo, hi)
        self.topic, self.queue_id, self.offset, self.lo, self.hi = topic, queue_id, offset, lo, hi

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.queue_id} has no message at offset {self.offset}, it holds "
            f"[{self.lo}, {self.hi}); name one that is there"
        )


class AlreadyResentError(NodeError):
    """The dead letter was resent before, so it is not sent a second time."""

    code, status = "node.already_resent", "ALREADY_EXISTS"
    outcome = Outcome.APPLIED

    def __init__(self, group: str, offset: int) -> None:
        super().__init__(group, offset)
        self.group, self.offset = group, offset

    def __str__(self) -> str:
        return (
            f"dead letter {self.offset} of group {self.group!r} was sent again already; "
            f"count it as sent"
        )


class BadFilterError(NodeError):
    """A filter is not an expression of the SQL92 subset, or is too large. No message was read."""

    code, status = "node.bad_filter", "INVALID_ARGUMENT"

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what, at)
        self.what, self.at = what, at

    def __str__(self) -> str:
        return f"filter, character {self.at + 1}: {self.what}; docs/client.md has the language"
