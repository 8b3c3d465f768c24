"""Targets of records: the store's codec, stamp and check, and what brokers make of records.

A batch of a client passes the stamp first, so what it lets pass has to be good for all that come
after: the check of every start, the codec, the reader of the client, the filters.
"""

import zlib
from random import Random
from typing import Final

from node.broker.read.filters import SqlFilter, TagFilter
from node.broker.records.delayed import (
    DeliveredRecords,
    delivered,
    level_delay_ms,
    scheduled,
    undeliverable,
    wish_of,
)
from node.broker.records.half import half_messages
from node.errors.transactions import TransactionTooLargeError
from quorumlog.records.batch import decode_records
from store import format as fmt
from store.config import StoreConfig
from store.errors import LimitExceededError, RecordFormatError, TopicNameError
from store.record.check import check_records
from store.record.message import (
    Message,
    decode_message,
    encode_message,
    index_keys,
    message_id,
    parse_message_id,
    tags_code,
)
from store.record.stamp import Stamper
from store.record.tail import TailReader
from tests.fuzz.structure import text
from tests.fuzz.target import FuzzTarget, claim

_POSITION: Final = 4_096
_NOW_MS: Final = 1_700_000_000_000
_CONFIG: Final = StoreConfig(body_size_bytes_max=2_048)
_FILTERS: Final = (TagFilter(("a", "TagA"), 2), SqlFilter("TAGS = 'a' OR n BETWEEN 1 AND 5"))
_TOPICS: Final = ("orders", "t", "%RETRY%g", "%RETRY%" + "x" * 140, "a" * 127)


def record(random: Random) -> bytes:
    """Return a good record of a client."""
    properties = {
        name: value
        for name, value in (
            ("TAGS", random.choice(("a", "TagA", "TagB"))),
            ("KEYS", random.choice(("k1", "k1 k2", "ü"))),
            ("UNIQ_KEY", "7F0001"),
            ("n", str(random.randrange(9))),
            (random.choice(("DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")), "3"),
            ("TIMER_DELIVER_MS", str(_NOW_MS)),
            ("x", text(random).translate({0: None, 1: None, 2: None}) or "x"),
        )
        if random.random() < 0.4
    }
    return encode_message(
        random.choice(_TOPICS),
        random.randrange(4),
        random.randbytes(random.choice((0, 5, 5, 5, 60))),
        properties,
        flag=random.choice((0, -1)),
        sys_flag=random.choice((0, 0, 1, 4, 8, 12, 0x80, 0x200)),
        born_host=random.choice((fmt.LOOPBACK, fmt.LOOPBACK, ("::1", 5))),
        position=_POSITION if random.random() < 0.5 else 0,
        property_crc=random.random() < 0.1,
    )


def _examples(random: Random) -> list[bytes]:
    found = [b"".join(record(random) for _ in range(count)) for count in (1, 2, 3)]
    return [*found, record(random) * 9]


def repaired(data: bytes) -> bytes:
    """Put the checksum of each body right, and with it sizes that just do not add up."""
    out, at = bytearray(data), 0
    while at + 91 <= len(out):
        size = int.from_bytes(out[at : at + 4], "big", signed=True)
        flags = out[at + 39]
        body_at = at + 88 + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1))
        body_hi = body_at + int.from_bytes(out[body_at - 4 : body_at], "big", signed=True)
        if size < 91 or not body_at <= body_hi <= len(out):
            break
        crc = zlib.crc32(out[body_at:body_hi]) & fmt.CRC_MASK
        out[at + 8 : at + 12] = crc.to_bytes(4, "big")
        at += size
    return bytes(out)


def _codec(data: bytes) -> None:
    found = decode_message(data)
    claim(found.size_bytes <= len(data), f"a record of {found.size_bytes} bytes")
    claim(all(found.properties.values()), "an empty property")
    claim(-(1 << 31) <= found.tags_code < 1 << 31, f"tags code {found.tags_code}")
    claim(parse_message_id(found.message_id) == (found.store_host, found.position), "message id")
    try:
        again = decode_message(_encoded(found))
    except (RecordFormatError, LimitExceededError, TopicNameError, UnicodeEncodeError):
        return  # Written by no encoder of ours: a name that we refuse, or bytes that are no text.
    claim(again.properties == found.properties, f"properties become {again.properties}")
    claim((again.body, again.topic) == (found.body, found.topic), "another message")


def _encoded(message: Message) -> bytes:
    return encode_message(
        message.topic,
        message.queue_id,
        message.body,
        message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_host=message.born_host,
        store_host=message.store_host,
    )


def _check(data: bytes) -> None:
    run = check_records(data, _POSITION)
    claim(0 <= run.end <= len(data), f"{run.end} of {len(data)} bytes")
    claim(run.blank_size_bytes == 0 or run.problem is None, "a blank and a problem")
    at = count = 0
    while at < run.end:
        at += _size_at(data, at)
        count += 1
    claim((at, count) == (run.end, run.record_count), f"{count} records up to {at}, not {run}")


def _size_at(data: bytes, at: int) -> int:
    """Return the size of a record that the check has passed. It leaves names of topics to the
    stamp, which lets none in that is no text."""
    try:
        return decode_message(data, at).size_bytes
    except RecordFormatError as error:
        claim(error.field == "topic", f"a record that was counted: {error}")
    return int(fmt.INT32.unpack_from(data, at)[0])


def stamped_batch(batch: bytes) -> tuple[bytes, list[int]]:
    """Return a batch as it lies in the log, and the positions of its records."""
    stamper, scratch = Stamper(_CONFIG), bytearray(8) + bytearray(batch)
    positions, offsets, updates, units = stamper.stamp(batch, scratch, 8, _POSITION, _NOW_MS)
    stamped = bytes(scratch[8:])
    claim(len(positions) == len(offsets) and sum(updates.values()) <= len(offsets), "offsets")
    if units is not None:
        packed = [
            unit for _, _, _, run in units.runs for unit in fmt.CONSUME_QUEUE_UNIT.iter_unpack(run)
        ]
        sizes = [decode_message(stamped, at - _POSITION).size_bytes for at in positions]
        claim([unit[0] for unit in packed] == positions, "units at other positions")
        claim([unit[1] for unit in packed] == sizes, "units of other sizes")
        tails = TailReader()
        for position, unit in zip(positions, packed, strict=True):
            tail = tails.read_record(stamped, position - _POSITION)
            claim(tail is not None and tail[2] == unit[2], "another tag than a walk finds")
    return stamped, positions


def _stamp(data: bytes) -> None:
    stamped, positions = stamped_batch(data)
    run = check_records(stamped, _POSITION)
    claim(run.problem is None and run.end == len(stamped), f"the check of a start says {run}")
    claim(run.record_count == len(positions), f"{run.record_count} records, {positions}")
    read = decode_records(stamped)
    claim(len(read) == len(positions), f"a client finds {len(read)} records")
    for message, position in zip(read, positions, strict=True):
        own = decode_message(stamped, position - _POSITION)
        claim(message.properties == own.properties, "a client finds other properties")
        claim(
            (message.log_position, message.message_id) == (position, own.message_id),
            "another place",
        )
        claim(own.message_id == message_id(own.store_host, position), "another id")
        claim(tags_code(own.properties.get("TAGS", "")) == own.tags_code, "another tag")
        index_keys(own.properties)
    for one in _FILTERS:
        kept, count = one.keep(stamped)
        claim(len(decode_records(kept)) == count <= len(positions), f"a filter keeps {count}")


def _made(data: bytes) -> None:
    """The broker makes half messages, held messages and delivered ones of a client's batch."""
    halves = half_messages(data, "g", 4)
    stamped_batch(halves.records)
    wish = wish_of(data)
    if wish is None:
        return
    level = wish.level
    due_ms = _NOW_MS + (level_delay_ms(level) if level else max(0, wish.delay_ms))
    held = stamped_batch(scheduled(data[: decode_message(data).size_bytes], due_ms, level=level))[0]
    own, outside = delivered(held)
    claim(own.due_unix_ms == due_ms, f"due at {own.due_unix_ms}, not {due_ms}")
    known = DeliveredRecords()
    for _ in range(2):
        found = known.of(held)
        claim(found == (own.topic, own.queue_id, outside, due_ms), "the short way differs")
    stamped_batch(outside)
    stamped_batch(undeliverable(held, "gone"))


def _message_id(data: bytes) -> None:
    host, position = parse_message_id(data.decode("latin-1"))
    claim(parse_message_id(message_id(host, position)) == (host, position), "another id")


_MODULES: Final = ("store.record.message", "store.record.stamp", "store.record.check")
_ERRORS: Final = (RecordFormatError, LimitExceededError, TopicNameError)

TARGETS: Final = (
    FuzzTarget(
        "record-codec",
        "a record is refused with byte and field, or reads the same after it is written again",
        _codec,
        ("store.record.message",),
        _examples,
        (RecordFormatError,),
        repaired=repaired,
    ),
    FuzzTarget(
        "record-check",
        "all records that the check of a start counts can be decoded",
        _check,
        ("store.record.check", "store.record.message"),
        _examples,
        repaired=repaired,
    ),
    FuzzTarget(
        "record-stamp",
        "a batch is refused by name, or all readers of the log agree about it",
        _stamp,
        (*_MODULES, "store.record.columns", "store.record.tail", "quorumlog.records.batch"),
        _examples,
        _ERRORS,
        repaired=repaired,
        memory_base_bytes=2 << 20,
    ),
    FuzzTarget(
        "record-made",
        "half, held and delivered messages of any batch are good records, or refused by name",
        _made,
        ("store.record.edit", "node.broker.records.delayed", "node.broker.records.half"),
        _examples,
        (*_ERRORS, TransactionTooLargeError),
        repaired=repaired,
        memory_base_bytes=2 << 20,
    ),
    FuzzTarget(
        "record-message-id",
        "the id of a message is refused by name, or names one place",
        _message_id,
        ("store.record.message",),
        lambda random: [message_id(("127.0.0.1", 9), random.getrandbits(40)).encode()],
        (RecordFormatError,),
    ),
)
