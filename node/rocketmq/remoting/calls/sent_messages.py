"""Messages as clients send them: the entries of a batch, and the properties of a message.

Owns what is checked in properties and what is added to them. Properties of a usual form stay the
bytes that came: they are taken apart only where a value is needed, or where one is added.
"""

import re
import struct
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import decode_properties, encode_properties

REPLY_TO: Final = "REPLY_TO_CLIENT"
CLUSTER: Final = "CLUSTER"
"""Property from which a consumer builds the topic of its reply."""
BATCH_COUNT_MAX: Final = 16_384
"""Messages of one batch; 4 MiB of empty ones are more."""
DELAYS: Final = (
    fmt.PROPERTY_DELAY_LEVEL,
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
)
_ENTRY: Final = struct.Struct(">iIIii")
"""Of a message in a batch: total size, magic, CRC, flag, size of the body."""
_ENTRY_SIZE_BYTES: Final = _ENTRY.size
_entry_of: Final = _ENTRY.unpack_from
_size_of: Final = fmt.INT16.unpack_from
_is_usual: Final = re.compile(rb"(?:[^\x00-\x02]+\x01[^\x00-\x02]+\x02)+").fullmatch
"""Properties that decode and encode to the same bytes, if they are ASCII."""
_unique_key_of: Final = re.compile(rb"(?:^|\x02)UNIQ_KEY\x01([^\x02]+)\x02").search
_may_be_special: Final = re.compile(
    b"|".join((REPLY_TO.encode(), *(name.encode() for name in DELAYS), b"__CRC32#"))
).search


class Entry(NamedTuple):
    """A message of a batch."""

    flag: int
    body: bytes
    properties: bytes


class StoredProperties:
    """Makes the properties of records from those of messages, one message of a send at a time."""

    def __init__(self, cluster_id: str) -> None:
        """`cluster_id` is added where the sender waits for a reply."""
        self._cluster_id = cluster_id
        self.first_key = ""
        """Unique key of the first message."""
        self.has_delayed = False
        self._before = self._behind = b""
        """Bytes around the unique key of the last message of the usual form."""
        self._key_lo = self._size_bytes = 0

    def of(self, data: bytes) -> bytes:
        """Return properties with a unique key, and with the cluster if a reply is waited for.

        Raises RecordFormatError for those that no record can hold."""
        # Messages of a batch differ in their unique keys alone, as a rule.
        lo, behind = self._key_lo, self._behind
        hi = len(data) - len(behind)
        if (
            len(data) == self._size_bytes
            and data[:lo] == self._before
            and data[hi:] == behind
            and data[lo:hi].isalnum()
        ):
            return data
        if data[-1:] != b"\x02":
            data += b"\x02"
        if (
            (found := _unique_key_of(data)) is not None
            and _is_usual(data)
            and data.isascii()
            and not _may_be_special(data)
            and data.count(b"UNIQ_KEY\x01") == 1
        ):
            self.first_key = self.first_key or found[1].decode("ascii")
            lo, hi = found.span(1)
            self._before, self._behind = data[:lo], data[hi:]
            self._key_lo, self._size_bytes = lo, len(data)
            return data
        properties = decode_properties(data)
        key = properties.get(fmt.PROPERTY_UNIQUE_KEY)
        if key is None:
            key = properties[fmt.PROPERTY_UNIQUE_KEY] = new_key()
        self.first_key = self.first_key or key
        if REPLY_TO in properties:
            properties[CLUSTER] = self._cluster_id
        self.has_delayed |= any(name in properties for name in DELAYS)
        return encode_properties(properties)


def entries_of(body: bytes) -> Iterator[Entry]:
    """Yield the messages of a batch. Raises RefusedError."""
    at, hi, number = 0, len(body), 0
    while at < hi or not number:
        try:
            size_bytes, _, _, flag, body_size_bytes = _entry_of(body, at)
            body_at = at + _ENTRY_SIZE_BYTES
            body_hi = body_at + body_size_bytes
            (properties_size_bytes,) = _size_of(body, body_hi)
        except struct.error:
            raise _bad_batch(number) from None
        end = body_hi + 2 + properties_size_bytes
        is_whole = body_size_bytes >= 0 <= properties_size_bytes and end == at + size_bytes
        if not is_whole or end > hi or number == BATCH_COUNT_MAX:
            raise _bad_batch(number)
        yield Entry(flag, body[body_at:body_hi], body[body_hi + 2 : end])
        at, number = end, number + 1


def _bad_batch(number: int) -> RefusedError:
    text = f"message {number} of a batch: its sizes do not fit, or there are too many"
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, text)


def properties_data(text: str) -> bytes:
    """Return the bytes of properties of a header. Raises RefusedError, LimitExceededError."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL, "properties that are no valid text"
        ) from None
    if len(data) > fmt.PROPERTIES_SIZE_BYTES_MAX:
        raise LimitExceededError("properties", len(data), fmt.PROPERTIES_SIZE_BYTES_MAX)
    return data


def properties_of(text: str) -> dict[str, str]:
    """Read the properties of a message; the last separator may be missing. Raises RefusedError."""
    return decode_properties(properties_data(text))


def unique_key(data: bytes) -> str:
    """Return the unique key among properties as they came; "" without one."""
    found = _unique_key_of(data)
    if found is not None and _is_usual(data) and data.isascii():
        return found[1].decode("ascii")
    return decode_properties(data).get(fmt.PROPERTY_UNIQUE_KEY, "")


def new_key() -> str:
    """Return a unique key for a message whose client made none."""
    return uuid.uuid4().hex.upper()
