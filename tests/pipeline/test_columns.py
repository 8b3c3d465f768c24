"""Columns of raw records equal what the store's own codec makes of each record."""

import datetime
import sys
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.columns import (
    Entries,
    RecordDamagedError,
    check_bodies,
    record_batch,
    record_batches,
    with_checked,
)
from pipeline.errors import BodyError
from pipeline.schema import COLUMNS, arrow_schema
from quorumlog.records.compression import BODY_SIZE_BYTES_MAX, IS_COMPRESSED, LZ4, ZLIB
from store.record.message import decode_message, encode_message, message_id
from tests.seeds import examples

_TEXT = st.text(
    st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1
)
_NAMES = st.sampled_from(["KEYS", "TAGS", "a", "größe"])
_HOSTS = st.sampled_from([("10.1.2.3", 10911), ("2001:db8::1", 80)])
_TIMES = st.integers(0, 4_000_000_000_000)


@st.composite
def _records(draw: st.DrawFn) -> bytes:
    return encode_message(
        topic=draw(st.sampled_from(["t", "topic-2", "%RETRY%" + "g" * 130])),
        queue_id=draw(st.integers(0, 7)),
        body=draw(st.binary(max_size=40)),
        queue_offset=draw(st.integers(0, 1 << 40)),
        position=draw(st.integers(0, 1 << 40)),
        born_unix_ms=draw(_TIMES),
        born_host=draw(_HOSTS),
        store_unix_ms=draw(_TIMES),
        store_host=draw(_HOSTS),
        properties=draw(st.dictionaries(_NAMES, _TEXT, max_size=3)),
    )


def _time(unix_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
        milliseconds=unix_ms
    )


def _row(data: bytes) -> dict[str, Any]:
    message = decode_message(data)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "log_position": message.position,
        "index": None,
        "term": None,
        "born_time": _time(message.born_unix_ms),
        "store_time": _time(message.store_unix_ms),
        "keys": [key for key in message.properties.get("KEYS", "").split(" ") if key],
        "tag": message.properties.get("TAGS"),
        "properties": list(message.properties.items()),
        "body": message.body,
        "message_id": message_id(message.store_host, message.position),
        "broker_group": "g",
        "body_error": None,
    }


@given(st.lists(_records(), max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_columns_equal_the_codec(records: list[bytes]) -> None:
    batch = record_batch(b"".join(records), group="g")
    batch.validate(full=True)
    assert batch.schema == arrow_schema()
    assert batch.to_pylist() == [_row(record) for record in records]


def _record(**given: Any) -> bytes:
    fields: dict[str, Any] = {"topic": "t", "queue_id": 0, "body": b"body"} | given
    return encode_message(**fields)


def _packed(body: bytes, flag: int = ZLIB, **given: Any) -> bytes:
    return _record(body=body, sys_flag=IS_COMPRESSED | flag, **given)


def test_a_body_that_cannot_be_unpacked_is_a_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    bomb = zlib.compress(bytes(BODY_SIZE_BYTES_MAX + 1))
    faulty = (
        (_packed(b"garbage"), "cannot be read"),
        (_packed(bomb), "larger than"),
        (_packed(b"x", 0x700), "0x700 is unknown"),
        (_packed(b"x", LZ4), "install"),
    )
    packed = _packed(zlib.compress(b"long" * 9))
    batch = record_batch(_record() + b"".join(record for record, _ in faulty) + packed)
    batch.validate(full=True)
    assert batch.schema == arrow_schema()
    assert batch.column("body").to_pylist() == [b"body", None, None, None, None, b"long" * 9]
    first, *errors, last = batch.column("body_error").to_pylist()
    assert (first, last) == (None, None)
    for (_, reason), error in zip(faulty, errors, strict=True):
        assert reason in error


def test_the_error_of_a_body_ends_a_read_that_wants_it() -> None:
    good = record_batch(_record(), with_checked(("body",)))
    assert check_bodies(good, ("body",)).to_pydict() == {"body": [b"body"]}
    bad = record_batch(_record() + _packed(b"garbage", queue_offset=7), with_checked(("body",)))
    with pytest.raises(BodyError, match="topic t, queue 0, offset 7: a compressed body"):
        check_bodies(bad, ("body",))


def test_bodies_that_become_large_come_in_several_batches() -> None:
    """So a task holds one of them at a time; the other columns are cut at the same rows."""
    large = zlib.compress(bytes(BODY_SIZE_BYTES_MAX // 2))
    records = b"".join(_packed(large, queue_offset=n) for n in range(5)) + _record(queue_offset=5)
    batches = record_batches(records, ("queue_offset", "body", "body_error"))
    collected = []
    for batch in batches:
        assert batch.column("body").nbytes <= 1.1 * BODY_SIZE_BYTES_MAX
        collected.append(batch.column("queue_offset").to_pylist())
    assert collected == [[0, 1], [2, 3], [4, 5]]


def test_only_what_is_asked_for_is_made() -> None:
    batch = record_batch(_record() + _record(queue_offset=1), ("body", "queue_offset"), topic="t")
    assert batch.to_pydict() == {"body": [b"body"] * 2, "queue_offset": [0, 1]}
    assert batch.schema == arrow_schema(("body", "queue_offset"))


def test_entries_name_index_and_term() -> None:
    batch = record_batch(
        _record() * 5, ("index", "term"), entries=Entries((0, 2, 3), (7, 8, -1), (1, 2, -1))
    )
    assert batch.to_pydict() == {"index": [7, 7, 8, None, None], "term": [1, 1, 2, None, None]}


def test_a_name_that_is_given_twice_counts_with_its_last_value() -> None:
    record = bytearray(_record(properties={"aa": "first", "bb": "x", "cc": "last"}))
    record[-8:-6] = b"aa"
    assert decode_message(bytes(record)).properties == {"aa": "last", "bb": "x"}
    rows = record_batch(bytes(record) + _record(properties={"aa": "1"}), ("properties",))
    assert [dict(row) for row in rows.column(0).to_pylist()] == [
        {"bb": "x", "aa": "last"},
        {"aa": "1"},
    ]


def test_a_last_separator_may_be_missing_and_text_may_be_none() -> None:
    cut = bytearray(_record(properties={"TAGS": "ab"})[:-1])
    cut[:4] = len(cut).to_bytes(4, "big")
    cut[-9:-7] = (7).to_bytes(2, "big")
    odd = _record(properties={"TAGS": "ab"}).replace(b"ab", b"\xff\xfe")
    batch = record_batch(_record() + bytes(cut) + odd, ("tag", "keys"))
    assert batch.to_pydict() == {"tag": [None, "ab", "\ufffd\ufffd"], "keys": [[], [], []]}


@pytest.mark.parametrize("at", [0, 2, 4, 85, 88, 92, 95])
def test_damage_is_found(at: int) -> None:
    """Size, magic, body size, body, topic length, properties length."""
    good = _record()
    bad = bytearray(good)
    bad[at] ^= 0x41
    with pytest.raises(RecordDamagedError, match=f"byte {len(good)} of the records"):
        record_batch(good + bytes(bad), COLUMNS)


def test_damage_of_any_byte_never_crashes() -> None:
    good = _record(properties={"KEYS": "a b", "x": "y"}, born_host=("::1", 1))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        try:
            record_batch(good + bytes(bad) + good).validate(full=True)
        except RecordDamagedError:
            continue


def test_a_record_of_another_topic_is_damage() -> None:
    with pytest.raises(RecordDamagedError, match="not of topic 'u'"):
        record_batch(_record(), ("topic",), topic="u")


def test_the_columns_refer_to_nothing_of_the_buffer() -> None:
    """So a batch does not keep a buffer alive that is a hundred times as large."""
    data = bytearray(_record(body=b"12345678"))
    batch = record_batch(bytes(data), ("body",))
    assert sum(b.size for b in batch.column(0).buffers() if b is not None) < 1024
    assert isinstance(batch, pa.RecordBatch)
