"""Messages on their way into a batch: checked, and with their common parts made once for many.

Owns the form of a message, the same here as at the node, and the rules for a delivery time; must
not know batches or how they travel.
"""

import itertools
import math
import operator
import os
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

from quorumlog import errors
from quorumlog.arguments import INT32_MAX, check_number, check_real, check_text, wrong_type
from quorumlog.pb import log_pb2
from quorumlog.records.batch import Entry, encode_properties, topic_template
from quorumlog.records.compression import Compress, compressor
from quorumlog.records.message import OutgoingMessage

KIB: Final = 1024
MIB: Final = 1024 * KIB
BATCH_SIZE_BYTES_LIMIT: Final = 4 * MIB - 4 * KIB  # An entry, less its header and the command.


UNIQUE_KEY: Final = "UNIQ_KEY"
_KEY_HEAD: Final = struct.Struct(">4sH4s")
_KEY_TAIL: Final = struct.Struct(">IH")
MESSAGE_GROUP: Final = "__SHARDINGKEY"  # RocketMQ's name.
HAS_DELAYED: Final = log_pb2.AppendRequest(has_delayed=True).SerializeToString()
"""The additional field of an append request with delayed messages."""
HELD_SIZE_BYTES: Final = 128
"""Upper bound of the bytes by which a held message is larger than the sent one."""
_DELAY_NAMES: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class UniqueKeys:
    """Makes keys that differ from all others, of this process or another, in RocketMQ's form
    (storage-formats 1.10): 16 bytes in upper-case hex. Deviation: where RocketMQ has an address and
    a hash there are random bytes here, drawn once a process, so that containers with equal
    addresses do not share keys."""

    def __init__(self) -> None:
        head = _KEY_HEAD.pack(secrets.token_bytes(4), os.getpid() & 0xFFFF, secrets.token_bytes(4))
        self._head = head.hex().upper()
        self._numbers = itertools.count(secrets.randbelow(1 << 16))
        self._month_unix_ms = self._next_month_unix_ms = 0

    def __call__(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if not self._month_unix_ms <= now_ms < self._next_month_unix_ms:
            self._find_month(now_ms)
        tail = _KEY_TAIL.pack(
            (now_ms - self._month_unix_ms) & 0xFFFFFFFF, next(self._numbers) & 0xFFFF
        )
        return self._head + tail.hex().upper()

    def _find_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_unix_ms = int(first.timestamp() * 1000)
        self._next_month_unix_ms = int(after.timestamp() * 1000)


class OutgoingForm(NamedTuple):
    """The changes that a producer makes to every message."""

    compress: Compress | None = None
    unique_keys: UniqueKeys | None = None
    """Gives a key to each message without one."""


def form_of(
    compression: str | None, compress_from_size_bytes: int, unique_keys: bool
) -> OutgoingForm | None:
    """Return the shaping of a producer's options; None: no change. Raises InvalidRequestError."""
    compress = None
    if compression is not None:
        compress = compressor(compression, compress_from_size_bytes)
    if compress is None and not unique_keys:
        return None
    return OutgoingForm(compress, UniqueKeys() if unique_keys else None)


def entry_of(
    topic: str,
    body: bytes | str,
    key: str | None,
    tag: str | None,
    queue_id: int | None,
    properties: Mapping[str, str] | None,
    flag: int,
    form: OutgoingForm | None = None,
) -> Entry:
    """Check one message, and compress its body. Raises InvalidRequestError or TooLargeError.

    The message group, if it has one, chooses the queue, else the key. The result can be encoded:
    it will be, in one batch with messages of others. The common case is tested in line, and all
    else by `arguments`.
    """
    try:
        template = topic_template(topic)
    except TypeError:  # A topic that is not hashable.
        raise wrong_type("topic", topic, "text") from None
    if type(body) is not bytes:
        body = body_bytes(body)
    if properties is not None:
        _check_mapping(properties)
    if form is not None and form.unique_keys is not None:
        properties = {UNIQUE_KEY: form.unique_keys(), **(properties or {})}
    encoded, routed_by = b"", key
    if properties:
        routed_by = properties.get(MESSAGE_GROUP, key)
    if key is not None or tag is not None or properties:
        encoded = encode_properties(key, tag, properties)
    if queue_id is not None and not (type(queue_id) is int and 0 <= queue_id <= INT32_MAX):
        check_number("queue_id", queue_id)
        queue_id = operator.index(queue_id)
    if type(flag) is not int or not -INT32_MAX <= flag <= INT32_MAX:
        check_number("flag", flag)
        flag = operator.index(flag)
    sys_flag = 0
    if form is not None and form.compress is not None:
        body, sys_flag = form.compress(body)
    if len(body) + len(encoded) > BATCH_SIZE_BYTES_LIMIT - KIB:
        raise errors.TooLargeError(
            f"the message has {len(body) + len(encoded)} bytes, an entry holds "
            f"{BATCH_SIZE_BYTES_LIMIT - KIB}; split it or keep its body elsewhere"
        )
    return template, queue_id, routed_by, body, encoded, flag, sys_flag


def body_bytes(body: object) -> bytes:
    """Return the bytes of a body: UTF-8 of text, a copy of any other buffer.

    A buffer may change before the batch leaves. Raises InvalidRequestError, WrongTypeError.
    """
    if isinstance(body, str):
        check_text("body", body)
        return body.encode()
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]
    except TypeError:  # A number is no body, though bytes() takes one.
        raise wrong_type("body", body, "bytes or text") from None


def _check_mapping(properties: Any) -> None:
    if not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a dict")


def check_bodies(messages: Any) -> None:
    """Raise WrongTypeError unless `messages` is a list, which can be iterated more than once."""
    if not isinstance(messages, Sequence) or isinstance(messages, bytes | str | bytearray):
        raise wrong_type("bodies", messages, "a list of bodies")


def entries_of(
    messages: Sequence[bytes | str | OutgoingMessage],
    topic: str,
    key: str | None,
    tag: str | None,
    queue_id: int | None,
    properties: Mapping[str, str] | None,
    form: OutgoingForm | None,
) -> list[Entry]:
    """Check the messages of a batch; where only the bodies differ, the largest one for all."""
    check_bodies(messages)
    if form is None and set(map(type, messages)) == {bytes}:
        bodies = cast("Sequence[bytes]", messages)
        largest = entry_of(topic, max(bodies, key=len), key, tag, queue_id, properties, 0)
        template, queue_id, routed_by, _, encoded, _, _ = largest
        return [(template, queue_id, routed_by, body, encoded, 0, 0) for body in bodies]
    entries = []
    for message in messages:
        if not isinstance(message, OutgoingMessage):
            entry = entry_of(topic, message, key, tag, queue_id, properties, 0, form)
        else:
            entry = entry_of(
                topic if message.topic is None else message.topic,
                message.body,
                key if message.key is None else message.key,
                tag if message.tag is None else message.tag,
                queue_id if message.queue_id is None else message.queue_id,
                properties if message.properties is None else message.properties,
                message.flag,
                form,
            )
        entries.append(entry)
    return entries


def with_message_group(properties: Mapping[str, str] | None, name: str) -> Mapping[str, str]:
    """Return properties that make a message one of a message group."""
    if properties is not None:
        _check_mapping(properties)
    return {**(properties or {}), MESSAGE_GROUP: name}


def with_wish(
    properties: Mapping[str, str] | None,
    delay: float | None,
    level: int | None,
    deliver_at: float | None,
) -> dict[str, str]:
    """Return properties with the delivery time. Raises InvalidRequestError."""
    if (delay is not None) + (level is not None) + (deliver_at is not None) != 1:
        text = "more than one of delay, level and deliver_at is given; give one of them"
        raise errors.InvalidRequestError(text)
    if properties is not None:
        _check_mapping(properties)
    taken = [name for name in _DELAY_NAMES if name in (properties or ())]
    if taken:
        raise errors.InvalidRequestError(
            f"property {taken[0]} says when to deliver, too; leave it out"
        )
    if delay is not None:
        return {"TIMER_DELAY_MS": str(_ms("delay", delay)), **(properties or {})}
    if deliver_at is not None:
        return {"TIMER_DELIVER_MS": str(_ms("deliver_at", deliver_at)), **(properties or {})}
    check_number("level", level)
    return {"DELAY": str(operator.index(cast(int, level))), **(properties or {})}


def all_with_wish(
    bodies: Sequence[bytes | str | OutgoingMessage],
    delay: float | None,
    level: int | None,
    deliver_at: float | None,
) -> Sequence[bytes | str | OutgoingMessage]:
    """Return a batch in which messages with properties of their own get the delivery time, too."""
    return [
        replace(body, properties=with_wish(body.properties, delay, level, deliver_at))
        if isinstance(body, OutgoingMessage) and body.properties is not None
        else body
        for body in bodies
    ]


def _ms(name: str, seconds: float) -> int:
    check_real(name, seconds)
    return math.ceil(seconds * 1000)
