"""A message as a line of a table shows it: without its body, so that it can be kept."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from qlog.console.shown import cut, plain
from qlog.message_rows import plain_body

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_PREVIEW_LENGTH: Final = 120


class Row(NamedTuple):
    """One message."""

    message_id: str
    store_unix_ms: int
    broker_group: str
    queue_id: int
    queue_offset: int
    log_position: int
    size_bytes: int
    """Of the body once it is unpacked."""
    preview: str
    key: str
    tag: str


def rows_of(messages: "Iterable[Message]") -> list[Row]:
    """Return messages as rows. Takes time for large bodies: call it on a thread."""
    return [_row(one, plain_body(one)[0]) for one in messages]


def _row(message: "Message", body: bytes) -> Row:
    begin = body[:_PREVIEW_LENGTH].decode("utf-8", "backslashreplace")
    return Row(
        message.message_id,
        message.store_unix_ms,
        message.broker_group,
        message.queue_id,
        message.queue_offset,
        message.log_position,
        len(body),
        plain(begin) + cut(_PREVIEW_LENGTH, len(body), "bytes"),
        plain(message.key or "", _PREVIEW_LENGTH),
        plain(message.tag or "", _PREVIEW_LENGTH),
    )
