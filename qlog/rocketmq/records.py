"""Messages on their way: read out of a pulled body, and made records of the target.

Owns the mark by which a copied message is known, and what of a message stays. Must not know either
cluster. Everything stays but the place: topic, body as it was sent (compressed or not), flag, born
time and host, properties. What is no UTF-8 in a property is replaced, since nothing could be
stored beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from node.rocketmq.protocol.properties import IMPORTED_FROM
from qlog.rocketmq.shapes import SourceError
from store import format as fmt
from store.errors import StoreError
from store.record.message import (
    Message,
    decode_message,
    encode_message,
    encode_properties,
    valid_text,
)

_PART_COUNT: Final = 3
_DIGITS_MAX: Final = 19
_PROPERTY_COUNT_MAX: Final = 32_768
"""Properties of the messages of a pull; a property of 5 bytes takes 200 in memory."""
_PACKED: Final = fmt.SYS_FLAG_NEED_UNWRAP | fmt.SYS_FLAG_INNER_BATCH
_HOST_FLAGS: Final = fmt.SYS_FLAG_ANY_V6 | fmt.SYS_FLAG_TRANSACTION_MASK
"""Flags that are not kept: those of hosts follow from the hosts, and a message that can be read has
no open transaction."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a copied message comes from: a property of the message."""

    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.queue_id}/{self.offset}"

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "Mark | None":
        """Return the mark of a message; None for one without."""
        parts = properties.get(IMPORTED_FROM, "").rsplit("/", _PART_COUNT - 1)
        digits = parts[1:]
        if len(parts) < _PART_COUNT or not all(
            text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX for text in digits
        ):
            return None
        return cls(parts[0], *map(int, digits))


def messages_in(body: bytes, topic: str, offset: int, where: str, count_max: int) -> list[Message]:
    """Read the messages of a pull from `offset` on; sizes, CRCs, topic and order are checked.

    Raises SourceError, also for more than the `count_max` that were asked for.
    """
    messages: list[Message] = []
    at = property_count = 0
    while at < len(body):
        try:
            message = decode_message(body, at)
        except StoreError as error:
            raise SourceError.foreign(where, str(error)) from error
        if message.topic != topic or message.queue_offset < offset:
            got = f"offset {message.queue_offset} of topic {message.topic!r}"
            raise SourceError.foreign(where, f"{got} where offset {offset} comes next")
        if message.sys_flag & _PACKED:
            raise SourceError(
                f"{where}: offset {message.queue_offset} is a batch of several messages",
                "the topic has queues of RocketMQ's type BatchCQ",
                "leave it out with --topic; consume and send its messages again",
            )
        messages.append(message)
        property_count += len(message.properties)
        if len(messages) > count_max or property_count > _PROPERTY_COUNT_MAX:
            got = f"{len(messages)} messages with {property_count} properties"
            most = f"{count_max} messages and {_PROPERTY_COUNT_MAX} properties"
            raise SourceError.foreign(where, f"{got}, at most {most} are read at once")
        at, offset = at + message.size_bytes, message.queue_offset + 1
    return messages


def has_room_for_mark(properties: Mapping[str, str], mark: Mark) -> bool:
    """Whether a message with these properties can carry a mark; one that cannot goes without."""
    marked = encode_properties({**properties, IMPORTED_FROM: str(mark)})
    return len(marked) <= fmt.PROPERTIES_SIZE_BYTES_MAX


def record_of(message: Message, queue_id: int, mark: Mark) -> bytes:
    """Return the record that is stored for a message. Raises StoreError."""
    properties = {valid_text(name): valid_text(text) for name, text in message.properties.items()}
    properties.pop(fmt.PROPERTY_CRC, None)  # The log makes its own.
    has_room = has_room_for_mark(properties, mark)
    properties.pop(IMPORTED_FROM, None)  # Of an earlier copy, or of a sender: it is not this place.
    if has_room:
        properties[IMPORTED_FROM] = str(mark)
    return encode_message(
        message.topic,
        queue_id,
        message.body,
        properties,
        flag=message.flag,
        sys_flag=message.sys_flag & ~_HOST_FLAGS,
        born_unix_ms=message.born_unix_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
    )
