"""A message as the command line shows it: the stable JSON object, and a line of a table.

Owns the keys of that object and the choice between text and base64 for a body.
"""

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_SHOWN_ELSEWHERE = ("KEYS", "TAGS")  # Shown as key and tag.
COLUMNS = ("group", "topic", "queue_id", "queue_offset", "store_time", "tag", "key", "body")


def message_row(message: "Message") -> dict[str, object]:
    """Return a message under stable keys. `body` is text if it is UTF-8, else base64."""
    body, encoding = body_text(message.body)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "properties": {k: v for k, v in message.properties.items() if k not in _SHOWN_ELSEWHERE},
        "born_unix_ms": message.born_unix_ms,
        "store_unix_ms": message.store_unix_ms,
        "position": message.position,
        "body_size_bytes": len(message.body),
        "body_encoding": encoding,
        "body": body,
        "group": message.group,
    }


def table_row(message: "Message") -> dict[str, object]:
    """Return the columns of a message that fit into a line."""
    body, _ = body_text(message.body)
    return {
        "group": message.group,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "store_time": time_text(message.store_unix_ms),
        "tag": message.tag,
        "key": message.key,
        "body": body,
    }


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
