"""Errors of consumer groups: refusals by their settings, retries and dead letters, filters.

Owns the names, codes and texts, as `node.errors.common` does for the rest of the node.
"""

from node.errors.common import NodeError
from store.errors import Outcome


class GroupDisabledError(NodeError):
    """The group's settings forbid consuming, or this way of it. The call had no effect."""

    code, status = "node.group_disabled", "PERMISSION_DENIED"
    text = (
        "the settings of group {group!r} forbid {what}; run 'qlog group set {group}' to change them"
    )
    group: str
    what: str


class GroupKindError(NodeError):
    """The group has members of another kind, and each kind would read every message."""

    code, status = "node.group_kind", "FAILED_PRECONDITION"
    text = (
        "group {group!r} has members that read {kind}, {client_id!r} among them, so no other may "
        "read {other}; use another group, or stop these first"
    )
    group: str
    kind: str
    client_id: str
    other: str


class ClientIdInUseError(NodeError):
    """Another consumer of the group has this client id, and both would read the same messages."""

    code, status = "node.client_id_in_use", "FAILED_PRECONDITION"
    text = (
        "client id {client_id!r} of group {group!r} is that of a consumer that is alive; give each "
        "its own, or close that one: if it crashed, its session ends in {left_ms} ms"
    )
    client_id: str
    group: str
    left_ms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.retry_after_ms = self.left_ms


class TopicForbiddenError(NodeError):
    """The group's settings forbid reading this topic. The call had no effect."""

    code, status = "node.topic_forbidden", "PERMISSION_DENIED"
    text = (
        "group {group!r} may not read topic {topic!r}; run 'qlog group set {group} --allow "
        "{topic}' to change that"
    )
    group: str
    topic: str


class GroupOrderlyError(NodeError):
    """The group is orderly: a message is retried in its place, and no other one overtakes it."""

    code, status = "node.group_orderly", "FAILED_PRECONDITION"
    text = (
        "group {group!r} is orderly, its messages do not go to a retry topic; read the message "
        "again, or run 'qlog group set {group} --no-orderly'"
    )
    group: str


class MessageExpiredError(NodeError):
    """The queue has no message at this offset: the message has expired, or is still to come."""

    code, status = "node.no_such_offset", "NOT_FOUND"
    text = (
        "{topic}/{queue_id} has no message at offset {offset}, it holds [{lo}, {hi}); name one "
        "that is there"
    )
    topic: str
    queue_id: int
    offset: int
    lo: int
    hi: int


class AlreadyResentError(NodeError):
    """The dead letter was resent before, so it is not sent a second time."""

    code, status = "node.already_resent", "ALREADY_EXISTS"
    outcome = Outcome.APPLIED
    text = "dead letter {offset} of group {group!r} was sent again already; count it as sent"
    group: str
    offset: int


class BadFilterError(NodeError):
    """A filter is not an expression of the SQL92 subset, or is too large. No message was read."""

    code, status = "node.bad_filter", "INVALID_ARGUMENT"
    what: str
    at: int

    def __str__(self) -> str:
        return f"filter, character {self.at + 1}: {self.what}; docs/client.md has the language"
