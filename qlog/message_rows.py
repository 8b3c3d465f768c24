"""A message as the command line shows it: the stable JSON object, and a line of a table.

Owns the keys of that object and the choice between text and base64 for a body.
"""

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quorumlog.errors import QuorumlogError

if TYPE_CHECKING:
    from quorumlog.records.message import Message

SHOWN_ELSEWHERE = ("KEYS", "TAGS")  # Shown as key and tag.
COLUMNS = (
    "broker_group", "topic", "queue_id", "queue_offset", "store_time", "tag", "key", "body",
)  # fmt: skip


def message_row(message: "Message") -> dict[str, object]:
    """Return a message under stable keys. `body` is text if it is UTF-8, else base64; one that
    cannot be unpacked is that of the log."""
    plain, is_plain = plain_body(message)
    body, encoding = body_text(plain)
    place = ("topic", "queue_id", "queue_offset", "message_id", "key", "tag")
    return {
        **{name: getattr(message, name) for name in place},
        "properties": {k: v for k, v in message.properties.items() if k not in SHOWN_ELSEWHERE},
        "born_unix_ms": message.born_unix_ms,
        "store_unix_ms": message.store_unix_ms,
        "log_position": message.log_position,
        "body_size_bytes": len(plain),
        "body_encoding": encoding if is_plain else f"{encoding}, compressed",
        "body": body,
        "broker_group": message.broker_group,
    }


def table_row(message: "Message") -> dict[str, object]:
    """Return the columns of a message that fit into a line."""
    body, _ = body_text(plain_body(message)[0])
    made = {"store_time": time_text(message.store_unix_ms), "body": body}
    return {name: made[name] if name in made else getattr(message, name) for name in COLUMNS}


def plain_body(message: "Message") -> tuple[bytes, bool]:
    """Return the body of a message, and whether it is plain: one that cannot be unpacked is
    returned as the log has it, so the messages around it are shown."""
    try:
        return message.body, True
    except QuorumlogError:
        return message.stored_body, False


def body_text(body: bytes) -> tuple[str, str]:
    """Return the body as text that JSON can hold, and the name of the encoding."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def time_text(unix_ms: int) -> str:
    """Return a time in ISO 8601, UTC, with milliseconds; the number for one that has no year."""
    try:
        moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        return f"{unix_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
