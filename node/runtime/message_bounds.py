"""Protobuf messages of strangers: how many fields one may have, looked at before it is made.

Owns the look. Two million empty messages fit into 4 MiB and take a hundred when they are made. What
a field says is a matter of its method; values of bytes and texts take their own size and no more.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from node.errors.common import BadRequestError

FIELD_COUNT_MAX: Final = 40_000
"""Fields with those of inner messages: a heartbeat with 10,240 queues has 30,720."""
SMALL_SIZE_BYTES: Final = 64 << 10
"""Messages up to this size are made without a look."""
_FIXED_SIZES: Final = {1: 8, 5: 4}
_VARINT, _SIZED = 0, 2
_Message = TypeVar("_Message", bound=Message)


def bounded_message(kind: type[_Message], data: bytes) -> _Message:
    """Make a message. Raises BadRequestError, DecodeError."""
    if len(data) > SMALL_SIZE_BYTES:
        count = _field_count(cast(Descriptor, kind.DESCRIPTOR), data, 0, len(data), 0)
        if count > FIELD_COUNT_MAX:
            expected = f"at most {FIELD_COUNT_MAX} fields, with those of inner messages"
            raise BadRequestError("request", expected, "more")
    return kind.FromString(data)


def request_of(kind: type[_Message], data: bytes) -> _Message:
    """Make the message of a request. Raises BadRequestError, also for bytes that are none."""
    try:
        return bounded_message(kind, data)
    except DecodeError as error:
        what = f"a {kind.DESCRIPTOR.name}"
        raise BadRequestError("request", what, f"{len(data)} other bytes") from error


@cache
def _inner(descriptor: Descriptor) -> Mapping[int, Descriptor]:
    """Return the fields that are messages, by number."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }


def _field_count(descriptor: Descriptor, data: bytes, at: int, hi: int, count: int) -> int:
    """Return `count` with the fields of a message added, or somewhat more than the limit."""
    inner = _inner(descriptor)
    try:
        while at < hi and count <= FIELD_COUNT_MAX:
            tag, at = _varint(data, at)
            count, wire = count + 1, tag & 7
            if wire == _VARINT:
                _, at = _varint(data, at)
            elif wire == _SIZED:
                size_bytes, at = _varint(data, at)
                message = inner.get(tag >> 3)
                if message is not None and size_bytes:
                    count = _field_count(message, data, at, min(at + size_bytes, hi), count)
                at += size_bytes
            elif wire in _FIXED_SIZES:
                at += _FIXED_SIZES[wire]
            else:
                raise DecodeError("a group, which no message has")
    except (IndexError, RecursionError):
        raise DecodeError("it ends too early, or has no end") from None
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number of more than ten bytes")
