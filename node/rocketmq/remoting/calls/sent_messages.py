"""Messages as clients send them: the header of a send, the entries of a batch, and properties.

Owns the names of the fields of a send (protocol section 18), its records, and what is checked in
properties and what is added to them. Properties of a usual form stay the bytes that came: they are
taken apart only where a value is needed, or where one is added. A batch whose messages are alike is
read by column.
"""

import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.rocketmq.protocol.properties import ADDED
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import INT32_MAX, INT64_MAX, bool_of, int_of, text_of
from quorumlog.pb.log_pb2 import AppendRequest
from store import format as fmt
from store.errors import LimitExceededError
from store.record.columns import UNIFORM_COUNT_MIN
from store.record.encoder import CommonFields, OwnRecords, RecordEncoder
from store.record.message import decode_properties, encode_properties

_SEND: Final = """
producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties
reconsumeTimes unitMode maxReconsumeTimes
"""
SHORT_NAMES: Final = dict(zip(_SEND.split(), "abcdefghijkl", strict=True))
"""Names of the fields of a send, and the letters by which newer clients name them."""
_NAMES: Final = tuple(SHORT_NAMES)
_LETTERS: Final = tuple(SHORT_NAMES.values())
_INT32_MIN: Final = -(1 << 31)
_RANGES: Final = (
    *((None, _INT32_MIN, INT32_MAX), (0, 0, INT32_MAX), (0, _INT32_MIN, INT32_MAX)),
    *((0, 0, INT64_MAX), (0, 0, INT32_MAX), (-1, -1, INT32_MAX), (4, 0, INT32_MAX)),
)
"""Defaults and ranges of queue, sysFlag, flag, birth, tries and their limit, count of queues."""
DELAYS: Final = (fmt.PROPERTY_DELAY_LEVEL, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_KEY: Final = f"{fmt.PROPERTY_UNIQUE_KEY}\x01"
_HELD: Final = (fmt.PROPERTY_HALF, *(f"{name}\x01" for name in DELAYS))
REPLY_TO: Final = "REPLY_TO_CLIENT"
CLUSTER: Final = "CLUSTER"
"""Property from which a consumer builds the topic of its reply."""
_ADDED_DATA: Final = encode_properties(ADDED)
BATCH_COUNT_MAX: Final = 2_048
"""Messages of one batch, 11 us each: 4 MiB of messages of 2 KiB."""
UNIFORM_COUNT_MAX: Final = 16_384
"""Messages of one batch that is read by column, 1 us each."""
_HALF: Final = 0x4
"""Bit of sysFlag of a half message."""
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
REFUSED: Final = {
    "TIMER_DEL_UNIQKEY": "delayed messages are recalled with the gRPC clients or the SDK",
    "INNER_MULTI_DISPATCH": "light queues are not served",
    "__LITE_TOPIC": "lite topics are not served",
    "INNER_NUM": "batches are taken apart, and not stored as one message",
}
"""Properties with which RocketMQ does something else than store a message, and why they are refused
here. docs/rocketmq.md lists all that clients may set."""
_ENTRY: Final = struct.Struct(">iIIii")
"""Of a message in a batch: total size, magic, CRC, flag, size of the body."""
_ENTRY_SIZE_BYTES: Final = _ENTRY.size
_SECONDS_DIGITS_MAX: Final = 9
_SAME_AT: Final = (*range(4), *range(12, 20))
"""Bytes of the sizes and the flag in it."""
_entry_of: Final = _ENTRY.unpack_from
_size_of: Final = fmt.INT16.unpack_from
_is_usual: Final = re.compile(rb"(?:[^\x00-\x02]+\x01[^\x00-\x02]+\x02)+").fullmatch
"""Properties that decode and encode to the same bytes, if they are ASCII."""
_unique_key_of: Final = re.compile(rb"(?:^|\x02)UNIQ_KEY\x01([^\x02]+)\x02").search
_may_be_special: Final = re.compile(
    "|".join((REPLY_TO, *DELAYS, fmt.PROPERTY_HALF, "__CRC32#", *ADDED, *REFUSED)).encode()
).search


class SendHeader(NamedTuple):
    """The fields of a send. Times are in ms since 1970."""

    topic: str
    shown_queue_id: int
    """As the broker name shows it; below 0: any queue."""
    sys_flag: int
    flag: int
    born_unix_ms: int
    properties: bytes
    reconsume_times: int
    reconsume_times_max: int
    """-1: the limit of the group."""
    queue_count: int
    """Queues of a broker name, if the send makes its topic."""
    producer_group: str
    is_batch: bool
    is_keyed: bool
    """Whether this is one message with a unique key, neither delayed nor a half message: the node
    can tell whether it is stored already."""

    @classmethod
    def of(cls, command: Command) -> "SendHeader":
        """Read the header of a command. Raises RefusedError, LimitExceededError."""
        ext, code = command.ext, command.code
        names = _NAMES if code == RequestCode.SEND_MESSAGE else _LETTERS
        group, topic, _, count, queue, sys, born, mark, text, times, _, times_max = names
        properties = ext.get(text, "")
        numbers = (queue, sys, mark, born, times, times_max, count)
        shown_queue_id, sys_flag, flag, born_unix_ms, tries, tries_max, queue_count = [
            int_of(ext, name, default, lo=lo, hi=hi)
            for name, (default, lo, hi) in zip(numbers, _RANGES, strict=True)
        ]
        is_keyed = code != RequestCode.SEND_BATCH_MESSAGE and _KEY in properties
        return cls(
            text_of(ext, topic),
            shown_queue_id,
            sys_flag,
            flag,
            born_unix_ms,
            properties_data(properties),
            tries,
            tries_max,
            queue_count,
            ext.get(group, ""),
            code == RequestCode.SEND_BATCH_MESSAGE or bool_of(ext, "m"),
            is_keyed and not any(name in properties for name in _HELD),
        )


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


class Entry(NamedTuple):
    """A message of a batch."""

    flag: int
    body: bytes
    properties: bytes


class UniformEntries(NamedTuple):
    """The messages of a batch that differ in their bodies and unique keys only, each of one size.

    `before` and `behind` are the properties around the key."""

    flag: int
    bodies: tuple[bytes, ...]
    before: bytes
    keys: tuple[bytes, ...]
    behind: bytes


class SentRecords(NamedTuple):
    """The records of a send with their sizes in bytes, and how the broker appends them."""

    data: OwnRecords
    sizes: list[int]
    first_key: str
    append: AppendRequest
    is_usual: bool
    """Whether this is one message of the usual form."""


class StoredProperties:
    """Makes the properties of records from those of messages, one message of a send at a time."""

    def __init__(self, cluster_id: str) -> None:
        """`cluster_id` is added where the sender waits for a reply."""
        self._cluster_id = cluster_id
        self.first_key = ""
        """Unique key of the first message."""
        self.has_delayed = self.is_half = False
        self.is_usual = True
        """Whether all messages have properties of the usual form, which any record can hold."""
        self._before = self._behind = b""
        """Bytes around the unique key of the last message of the usual form."""
        self._key_lo = self._size_bytes = 0

    def of(self, data: bytes) -> bytes:
        """Return properties with a unique key and those that a broker adds, and with the cluster if
        a reply is waited for.

        Raises RecordFormatError for those that no record can hold, RefusedError."""
        # Messages of a batch differ in their unique keys alone, as a rule.
        lo, behind = self._key_lo, self._behind
        hi = len(data) - len(behind)
        if (
            len(data) == self._size_bytes
            and data[:lo] == self._before
            and data[hi:] == behind
            and data[lo:hi].isalnum()
        ):
            return _with_added(data)
        if data[-1:] != b"\x02":
            data += b"\x02"
        usual_key = _usual_key_of(data)
        if usual_key is not None:
            self.first_key = self.first_key or usual_key[1].decode("ascii")
            lo, hi = usual_key.span(1)
            self._before, self._behind = data[:lo], data[hi:]
            self._key_lo, self._size_bytes = lo, len(data)
            return _with_added(data)
        self.is_usual = False
        properties = decode_properties(data)
        key = properties.get(fmt.PROPERTY_UNIQUE_KEY)
        if key is None:
            key = properties[fmt.PROPERTY_UNIQUE_KEY] = os.urandom(16).hex().upper()
        self.first_key = self.first_key or key
        if REPLY_TO in properties:
            properties[CLUSTER] = self._cluster_id
        self.has_delayed |= any(name in properties for name in DELAYS)
        self.is_half |= properties.get(fmt.PROPERTY_HALF, "").lower() == "true"
        for name in properties.keys() & REFUSED.keys():
            text = f"property {name}: {REFUSED[name]}; send without it"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, text)
        data = encode_properties(properties | ADDED)
        return data if len(data) <= fmt.PROPERTIES_SIZE_BYTES_MAX else encode_properties(properties)


def records_of(
    header: SendHeader, body: bytes, common: CommonFields, context: Context
) -> SentRecords:
    """Return the records of a send. Raises RefusedError, LimitExceededError, RecordFormatError."""
    run = uniform_entries(body) if header.is_batch else None
    encoder, stored = RecordEncoder(common), StoredProperties(context.identity.cluster_id)
    if not header.is_batch:
        encoder.add(header.flag, body, stored.of(header.properties))
    elif run is not None:
        encoder.add_run(*run)
        stored.first_key = run.keys[0].decode("ascii")
    else:
        for entry in entries_of(body):
            encoder.add(entry.flag, entry.body, stored.of(entry.properties))
    is_half = bool(header.sys_flag & _HALF)
    if header.is_batch and (stored.has_delayed or (stored.is_half and not is_half)):
        kind = "delayed" if stored.has_delayed else "half"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"a batch has no {kind} messages")
    append = AppendRequest(record_count=len(encoder.sizes), has_delayed=stored.has_delayed)
    if is_half := is_half or stored.is_half:
        half, transaction = decode_properties(header.properties), append.transaction
        group = half.get(fmt.PROPERTY_PRODUCER_GROUP) or header.producer_group
        transaction.producer_group = group
        transaction.check_after_ms = immunity_ms(half, context.limits.transaction_age_ms_max)
    is_usual = not header.is_batch and stored.is_usual and not is_half
    return SentRecords(encoder.records(), encoder.sizes, stored.first_key, append, is_usual)


def _with_added(data: bytes) -> bytes:
    """Return properties with those that a broker adds, if a record can hold these, too."""
    added = data + _ADDED_DATA
    return added if len(added) <= fmt.PROPERTIES_SIZE_BYTES_MAX else data


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


def uniform_entries(body: bytes) -> UniformEntries | None:
    """Return the messages of a batch by column; None unless they are uniform and of a usual form.

    What is None here is read, or refused, by `entries_of`. Batches of one producer are mostly so:
    then no message is looked at for itself."""
    try:
        first = next(entries_of(body))
    except RefusedError:
        return None
    properties = first.properties
    end = b"" if properties[-1:] == b"\x02" else b"\x02"
    usual_key = _usual_key_of(properties + end)
    size_bytes = _ENTRY_SIZE_BYTES + len(first.body) + 2 + len(properties)
    count, rest = divmod(len(body), size_bytes)
    if usual_key is None or rest or not UNIFORM_COUNT_MIN <= count <= UNIFORM_COUNT_MAX:
        return None
    size_at = _ENTRY_SIZE_BYTES + len(first.body)
    for at in (*_SAME_AT, size_at, size_at + 1):
        column = body[at::size_bytes]
        if column != column[:1] * count:
            return None
    lo, hi = usual_key.span(1)
    row = _row(len(first.body), lo, hi - lo, len(properties) - hi)
    bodies, before, keys, behind = zip(*row.iter_unpack(body), strict=True)
    if len({*before}) > 1 or len({*behind}) > 1 or not b"".join(keys).isalnum():
        return None
    added = _with_added(properties + end)[len(properties) :]
    return UniformEntries(first.flag, bodies, before[0], keys, behind[0] + added)


@lru_cache(maxsize=256)
def _row(body_size_bytes: int, lo: int, key_size_bytes: int, rest_size_bytes: int) -> struct.Struct:
    head = f">{_ENTRY_SIZE_BYTES}x{body_size_bytes}s2x"
    return struct.Struct(f"{head}{lo}s{key_size_bytes}s{rest_size_bytes}s")


def _usual_key_of(data: bytes) -> "re.Match[bytes] | None":
    """Return where the unique key is in properties of the usual form, which are stored as they
    came; None in all others."""
    unique_key = _unique_key_of(data)
    if (
        unique_key is not None
        and _is_usual(data)
        and data.isascii()
        and not _may_be_special(data)
        and data.count(b"UNIQ_KEY\x01") == 1
    ):
        return unique_key
    return None


def _bad_batch(number: int) -> RefusedError:
    text = f"message {number} of a batch: its sizes do not fit"
    if number == BATCH_COUNT_MAX:
        text = f"a batch of more than {number} messages, the limit of those that are not alike"
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, text)


def unique_key(data: bytes) -> str:
    """Return the unique key among properties as they came; "" without one."""
    key = _unique_key_of(data)
    if key is not None and _is_usual(data) and data.isascii():
        return key[1].decode("ascii")
    return decode_properties(data).get(fmt.PROPERTY_UNIQUE_KEY, "")


def immunity_ms(properties: dict[str, str], limit_ms: int) -> int:
    """Return how long the producer of a half message is not asked, in ms; 0: it does not say.

    Raises RefusedError for a text that is no number of seconds up to the limit."""
    text = properties.get(_IMMUNITY, "-1")
    if text == "-1":  # In RocketMQ, too, as if it were not there.
        return 0
    if text.isascii() and text.isdecimal() and len(text) <= _SECONDS_DIGITS_MAX:
        immune_ms = int(text) * 1000
        if immune_ms <= limit_ms:
            return max(1, immune_ms)
    rule = f"property {_IMMUNITY} is {text[:40]!r}, it must be seconds from 0 to {limit_ms // 1000}"
    raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, rule)
