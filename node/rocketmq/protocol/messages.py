"""Messages of the protocol as records of the log, and back.

Owns where each field is kept (RocketMQ's own properties, docs/format.md) and what a message may
have. Must not know senders or receivers. User properties are those whose names the system does not
use, so they come back as they were sent and nothing internal comes with them.
Source: protocol sections 8, 10.4, 15.
"""

import asyncio
import hashlib
import ipaddress
import re
import zlib
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import structlog
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from node.rocketmq.protocol import properties
from node.rocketmq.protocol.names import check_key, check_message_group, check_tag, has_control
from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.accounts import caller_host
from node.runtime.on_thread import on_thread
from quorumlog.errors import QuorumlogError, TooLargeError
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, Encoding, Message, MessageType
from quorumlog.records.compression import KIND_MASK, ZLIB, decompress
from store import format as fmt
from store.format import Host
from store.record.message import Message as Record
from store.record.message import encode_message, keys_in, valid_text

_log: Final = structlog.get_logger(component="rocketmq")

USER_PROPERTY_COUNT_MAX: Final = 128
PROPERTIES_SIZE_BYTES_MAX: Final = 16_384
"""Limit of user properties, tag and keys together."""
TRACE_CONTEXT_SIZE_BYTES_MAX: Final = 14_336
"""With the limit above it leaves 2,047 bytes of a record's properties for those of the system."""
BORN_HOST_SIZE_BYTES_MAX: Final = 255
"""The longest name of a host."""
PLAIN_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of a body that is decompressed for a client: RocketMQ's own for a message. So a compressed
message costs a node no more than a plain one."""
SMALL_SIZE_BYTES_MAX: Final = 64 * 1024
"""A body that has no more, stored and plain, does not wait for large ones."""
_NO_DIGEST: Final = "0" * 32
"""The digest of no body: clients tell their users that a message with it is damaged."""

_UNSUPPORTED: Final = {MessageType.LITE: "lite topics", MessageType.PRIORITY: "priorities"}
_TYPES: Final = {
    "FIFO": MessageType.FIFO,
    "DELAY": MessageType.DELAY,
    "TRANSACTION": MessageType.TRANSACTION,
}
# A look into the wrapper of an enum is a call.
_NORMAL: Final = MessageType.NORMAL
_TRANSACTION: Final = MessageType.TRANSACTION
_DELAY: Final = MessageType.DELAY
_FIFO: Final = MessageType.FIFO
_GZIP: Final = Encoding.GZIP
_MESSAGE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")
_NO_HOST: Final[Host] = ("0.0.0.0", 0)
_MS: Final = 1_000_000
_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
"""Bounds of protobuf's times: the years 1 to 9999. Some clients fail at others."""
_NANOS_MAX: Final = 999_999_999
_NUMBER: Final = re.compile(r"[0-9]{1,15}\Z", re.ASCII)


def type_of(message: Message) -> MessageType:
    """Return the type of a message. Raises CallRefusedError if its fields belong to different
    types."""
    system = message.system_properties
    kind, carried, declared = _NORMAL, [], system.message_type
    if declared in _UNSUPPORTED or system.HasField("lite_topic"):
        what = _UNSUPPORTED.get(declared, "lite topics")
        raise CallRefusedError(Code.NOT_IMPLEMENTED, f"this cluster has no {what}")
    if system.HasField("priority"):
        raise CallRefusedError(Code.NOT_IMPLEMENTED, "this cluster has no priorities")
    if declared == _TRANSACTION:
        kind = _TRANSACTION
        carried.append("a transaction")
    if system.HasField("delivery_timestamp"):
        kind = _DELAY
        carried.append("a delivery time")
    if system.HasField("message_group"):
        kind = _FIFO
        carried.append("a message group")
    if len(carried) > 1:
        code = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        raise CallRefusedError(code, f"{' and '.join(carried)}: a message has one of them")
    return kind


def check_message(message: Message, body_size_bytes_max: int) -> None:
    """Raise CallRefusedError unless a message may be stored."""
    system, size_bytes = message.system_properties, len(message.body)
    if not size_bytes:
        raise CallRefusedError(Code.MESSAGE_BODY_EMPTY, "a message has at least one byte")
    if size_bytes > body_size_bytes_max:
        text = f"a body of {size_bytes} bytes, the limit is {body_size_bytes_max}"
        raise CallRefusedError(Code.MESSAGE_BODY_TOO_LARGE, text)
    if not _MESSAGE_ID.match(system.message_id):
        text = f"message id {system.message_id[:200]!r}: 1 to 128 visible characters"
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_ID, text)
    _check_size(message)
    if system.HasField("tag") and system.tag:
        check_tag(system.tag)
    for key in system.keys:
        check_key(key)
    if system.HasField("message_group"):
        check_message_group(system.message_group)
    _check_text("trace context", system.trace_context, TRACE_CONTEXT_SIZE_BYTES_MAX)
    _check_text("born host", system.born_host, BORN_HOST_SIZE_BYTES_MAX)
    if not _is_time(system.born_timestamp):
        raise CallRefusedError(Code.BAD_REQUEST, "a born time that is no time")
    if not _is_time(system.delivery_timestamp):
        raise CallRefusedError(Code.ILLEGAL_DELIVERY_TIME, "a delivery time that is no time")
    _check_properties(message)
    _check_digest(message)


def _check_text(name: str, text: str, size_bytes_max: int) -> None:
    size_bytes = len(text.encode())
    if size_bytes > size_bytes_max:
        rule = f"{name} of {size_bytes} bytes, the limit is {size_bytes_max}"
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, rule)
    if has_control(text):
        raise CallRefusedError(Code.BAD_REQUEST, f"{name}: no control characters")


def _check_size(message: Message) -> None:
    """Raise CallRefusedError for too much beside the body, before the parts are checked."""
    system, user = message.system_properties, message.user_properties
    if len(user) > USER_PROPERTY_COUNT_MAX:
        text = f"{len(user)} user properties, the limit is {USER_PROPERTY_COUNT_MAX}"
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    size_bytes = len(system.tag.encode()) + sum(1 + len(key.encode()) for key in system.keys)
    for name, value in user.items():
        size_bytes += len(name.encode()) + len(value.encode())
    if size_bytes > PROPERTIES_SIZE_BYTES_MAX:
        text = (
            f"tag, keys and user properties of {size_bytes} bytes, the limit is "
            f"{PROPERTIES_SIZE_BYTES_MAX}"
        )
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


def _check_properties(message: Message) -> None:
    for name, value in message.user_properties.items():
        if not name or not value or has_control(name) or has_control(value):
            text = f"property {name[:200]!r}: name and value must not be empty, nor have controls"
            raise CallRefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        if name in properties.RESERVED:
            text = f"property {name!r} belongs to the system; use another name"
            raise CallRefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _check_digest(message: Message) -> None:
    digest, body = message.system_properties.body_digest, message.body
    if not digest.checksum:
        return
    match digest.type:
        case pb.DigestType.CRC32:
            expected = {f"{zlib.crc32(body):08X}", f"{zlib.crc32(body):X}", str(zlib.crc32(body))}
        case pb.DigestType.MD5:
            expected = {hashlib.md5(body, usedforsecurity=False).hexdigest().upper()}
        case pb.DigestType.SHA1:
            expected = {hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()}
        case _:
            return
    if digest.checksum.upper() not in expected:
        raise CallRefusedError(
            Code.MESSAGE_CORRUPTED, "the body does not match its digest; send it again"
        )


def to_record(
    message: Message, kind: MessageType, topic: str, queue_id: int, store_host: Host
) -> bytes:
    """Return the record of a message that was checked and has the type `kind`; the leader fills in
    the rest."""
    system = message.system_properties
    kept = dict(message.user_properties) | properties.ADDED
    kept[fmt.PROPERTY_UNIQUE_KEY] = system.message_id
    if system.tag:
        kept[fmt.PROPERTY_TAGS] = system.tag
    if system.keys:
        kept[fmt.PROPERTY_KEYS] = " ".join(system.keys)
    kept[properties.MESSAGE_TYPE] = MessageType.Name(kind)
    if system.message_group:
        kept[properties.MESSAGE_GROUP] = system.message_group
    if system.born_host:
        kept[properties.BORN_HOST] = system.born_host
    if system.trace_context:
        kept[properties.TRACE_CONTEXT] = system.trace_context
    if system.body_encoding == _GZIP:
        kept[properties.BODY_ENCODING] = Encoding.Name(_GZIP)
    if system.HasField("delivery_timestamp"):
        due = system.delivery_timestamp
        due_ms = due.seconds * 1000 + -(-due.nanos // _MS)  # The first one that is not before it.
        kept[properties.DELIVER_MS] = kept[properties.DELIVERY_TIME_MS] = str(due_ms)
        if due.nanos % _MS:
            kept[properties.DELIVERY_NANOS] = str(due.nanos)
    born = system.born_timestamp
    if born.nanos % _MS:
        kept[properties.BORN_NANOS] = str(born.nanos)
    if system.HasField("orphaned_transaction_recovery_duration"):
        kept[properties.ORPHAN_SECONDS] = str(system.orphaned_transaction_recovery_duration.seconds)
    return encode_message(
        topic,
        queue_id,
        message.body,
        kept,
        born_unix_ms=unix_ms_of(born),
        born_host=_host(system.born_host, store_host),
        store_host=store_host,
    )


def _host(text: str, store_host: Host) -> Host:
    """Return a born host as a record has it; a host name is kept as a property."""
    try:
        return str(ipaddress.ip_address(text)), 0
    except ValueError:
        return store_host if ":" in store_host[0] else _NO_HOST


def from_record(record: Record, topic: str) -> Message:
    """Return a stored message as it is delivered, without the fields that depend on the delivery.

    Never raises: clients of other protocols may write any properties, and one message must not keep
    those around it from being delivered.
    """
    valid = {valid_text(name): valid_text(value) for name, value in record.properties.items()}
    body, encoding, digest = _delivered_body(record)
    if properties.BODY_ENCODING in valid:
        encoding = _GZIP
    system = pb.SystemProperties(
        keys=keys_in(valid),
        message_id=valid.get(fmt.PROPERTY_UNIQUE_KEY) or record.message_id,
        body_digest=pb.Digest(type=pb.DigestType.MD5, checksum=digest),
        body_encoding=encoding,
        message_type=_TYPES.get(valid.get(properties.MESSAGE_TYPE, ""), _NORMAL),
        born_timestamp=timestamp(record.born_unix_ms, valid.get(properties.BORN_NANOS)),
        born_host=valid.get(properties.BORN_HOST) or record.born_host[0],
        store_timestamp=timestamp(record.store_unix_ms),
        store_host="{}:{}".format(*record.store_host),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
    )
    if fmt.PROPERTY_TAGS in valid:
        system.tag = valid[fmt.PROPERTY_TAGS]
    if properties.MESSAGE_GROUP in valid:
        system.message_group = valid[properties.MESSAGE_GROUP]
    if properties.TRACE_CONTEXT in valid:
        system.trace_context = valid[properties.TRACE_CONTEXT]
    if _NUMBER.match(valid.get(properties.DELIVERY_TIME_MS, "")):
        nanos = valid.get(properties.DELIVERY_NANOS)
        milliseconds = int(valid[properties.DELIVERY_TIME_MS]) - (nanos is not None)
        system.delivery_timestamp.CopyFrom(timestamp(milliseconds, nanos))
    origin = valid.get(properties.DEAD_LETTER_TOPIC) or valid.get(properties.RETRY_TOPIC)
    if origin and topic.startswith(fmt.DEAD_LETTER_TOPIC_PREFIX):
        # The id is the one that the producer gave.
        message_id = valid.get(properties.DEAD_LETTER_ID) or system.message_id
        dead = pb.DeadLetterQueue(topic=origin, message_id=message_id)
        system.dead_letter_queue.CopyFrom(dead)
    user = {name: value for name, value in valid.items() if name not in properties.RESERVED}
    return Message(
        topic=pb.Resource(name=topic), user_properties=user, system_properties=system, body=body
    )


def _delivered_body(record: Record) -> tuple[bytes, Encoding, str]:
    """Return a body as it is delivered, its encoding, and its digest.

    Clients get the plain body of what the SDK compressed. A body of zlib that is too large for that
    stays as it is, in the encoding that names it. Any other one that the node cannot read is
    delivered as it is stored with a digest that it does not have: clients call it damaged, so that
    simple consumers hand it over with a mark, and push consumers refuse it until it is a dead
    letter. An encoding that is none would make some fail at the whole answer.
    """
    body, encoding = record.body, Encoding.IDENTITY
    if record.sys_flag & fmt.SYS_FLAG_COMPRESSED:
        try:
            body = decompress(body, record.sys_flag, PLAIN_SIZE_BYTES_MAX)
        except QuorumlogError as error:
            what = "a compressed body is not read"
            _log.warning(what, id=record.message_id, reason=error.message)
            if not isinstance(error, TooLargeError) or record.sys_flag & KIND_MASK not in (0, ZLIB):
                return body, encoding, _NO_DIGEST
            encoding = _GZIP
    return body, encoding, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _small(record: Record, topic: str) -> Message | None:
    """Return a compressed message as `from_record` does, None if its body is not small."""
    try:
        body = decompress(record.body, record.sys_flag, SMALL_SIZE_BYTES_MAX)
    except QuorumlogError:  # Or it is damaged.
        return None
    flag = record.sys_flag & ~fmt.SYS_FLAG_COMPRESSED
    return from_record(replace(record, body=body, sys_flag=flag), topic)


class Deliveries:
    """Makes stored messages those of the protocol. One per gateway: however many clients receive,
    it decompresses one large body at a time, of one address after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By address: each has one body that waits for the turn of all."""

    async def message(self, record: Record, topic: str) -> Message:
        """Return a stored message as `from_record` does, decompressed beside the event loop."""
        if not record.sys_flag & fmt.SYS_FLAG_COMPRESSED:
            return from_record(record, topic)
        if len(record.body) <= SMALL_SIZE_BYTES_MAX:
            small = await on_thread(partial(_small, record, topic))
            if small is not None:
                return small
        turn = self._turns.setdefault(caller_host(), asyncio.Lock())
        async with turn, self._turn:
            return await on_thread(partial(from_record, record, topic))


def _is_time(time: Timestamp) -> bool:
    return _SECONDS_MIN <= time.seconds <= _SECONDS_MAX and 0 <= time.nanos <= _NANOS_MAX


def unix_ms_of(time: Timestamp) -> int:
    """Return a time in whole milliseconds since 1970."""
    return time.seconds * 1000 + time.nanos // _MS


def duration_ms_of(duration: Duration, code: Code) -> int:
    """Return a duration in whole milliseconds. Raises CallRefusedError with a code for one that is
    none: seconds and nanoseconds of unlike signs, or a second or more in nanoseconds."""
    seconds, nanos = duration.seconds, duration.nanos
    if abs(nanos) > _NANOS_MAX or seconds * nanos < 0:
        text = f"{seconds} s and {nanos} ns are no duration; nanoseconds are less than a second"
        raise CallRefusedError(code, f"{text}, with the sign of the seconds")
    return seconds * 1000 + nanos // _MS


def timestamp(milliseconds: int, nanos: str | None = None) -> Timestamp:
    """Return milliseconds since 1970 as a protobuf time; `nanos` where the time was finer."""
    seconds = min(max(milliseconds // 1000, _SECONDS_MIN), _SECONDS_MAX)
    stamp = Timestamp(seconds=seconds, nanos=milliseconds % 1000 * _MS)
    if nanos is not None and _NUMBER.match(nanos):
        stamp.nanos = min(int(nanos), _NANOS_MAX)
    return stamp
