"""The client's record codec against the store's, byte for byte, and its speed."""

import cProfile
import pstats
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog import Message, errors
from quorumlog.records.batch import (
    COLUMNS_FROM_COUNT,
    Entry,
    decode_records,
    encode_entries,
    encode_properties,
    encode_single,
    key_queue,
    message_id,
    size_bytes_of,
    size_bytes_of_all,
    topic_template,
)
from store import format as fmt
from store.record.message import decode_message, encode_message
from store.record.message import message_id as store_message_id

_NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=8
)
_VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\x02"), min_size=1, max_size=12
)
_TOPICS = st.text("abcXYZ019_-%|", min_size=1, max_size=127) | st.builds(
    lambda rest: "%RETRY%" + rest, st.text("abc", min_size=1, max_size=248)
)
_HOSTS = st.sampled_from([("127.0.0.1", 0), ("10.1.2.3", 8081), ("::1", 9), ("fe80::1", 65535)])
_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_INT63 = st.integers(0, (1 << 63) - 1)


def encode(topic: str, queue_id: int, body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    entry = (topic_template(topic), queue_id, None, body, properties, flag, 0)
    encoded = encode_entries([entry], place_of, born_unix_ms=123)
    record = b"".join(encoded.pieces)
    assert encoded.sizes == [len(record)]
    assert encoded.places == [(topic, queue_id)]
    return record


def place_of(topic: str, queue_id: int | None, key: str | None) -> tuple[str, int]:
    assert queue_id is not None
    return topic, queue_id


@given(
    topic=_TOPICS,
    queue_id=st.integers(0, (1 << 31) - 1),
    body=st.binary(max_size=300),
    key=st.none() | _VALUES,
    tag=st.none() | _VALUES,
    extra=st.dictionaries(_NAMES, _VALUES, max_size=4),
    flag=_INT32,
)
def test_encoded_records_are_those_of_the_store(
    topic: str,
    queue_id: int,
    body: bytes,
    key: str | None,
    tag: str | None,
    extra: dict[str, str],
    flag: int,
) -> None:
    for reserved in ("KEYS", "TAGS", fmt.PROPERTY_CRC):
        extra.pop(reserved, None)
    properties = {"KEYS": key, "TAGS": tag, **extra}
    present = {name: value for name, value in properties.items() if value is not None}
    ours = encode(topic, queue_id, body, encode_properties(key, tag, extra), flag)
    theirs = encode_message(topic, queue_id, body, present, flag=flag, born_unix_ms=123)
    assert ours == theirs
    entry = (topic_template(topic), None, key, body, encode_properties(key, tag, extra), flag, 0)
    assert encode_single(entry, queue_id, 123) == theirs


_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["orders", "bills", "%RETRY%" + "x" * 200]).map(topic_template),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["k1", "k2"]),
        st.binary(max_size=60),
        st.sampled_from([b"", b"a\x01b\x02", b"a\x01c\x02", b"long\x01er\x02"]),
        st.sampled_from([0, -7]),
        st.sampled_from([0, 0x301]),
    ),
    min_size=1,
    max_size=20,
)


@given(rows=_ROWS, are_uniform=st.booleans(), count=st.integers(1, 12))
def test_a_batch_has_the_bytes_of_its_messages_one_by_one(
    rows: list[Entry], are_uniform: bool, count: int
) -> None:
    """Whichever way it is encoded: by columns where the messages are alike, else row by row."""
    if are_uniform:
        topic, wanted, key, _, _, flag, sys_flag = rows[0]
        rows = [(topic, wanted, key, row[3], row[4], flag, sys_flag) for row in rows] * count

    def place(topic: str, wanted: int | None, key: str | None) -> tuple[str, int]:
        return topic, wanted if wanted is not None else key_queue(key or topic, 4)

    encoded = encode_entries(rows, place, born_unix_ms=77)
    places = [place(topic.name, wanted, key) for topic, wanted, key, *_ in rows]
    singles = [encode_single(row, at[1], 77) for row, at in zip(rows, places, strict=True)]
    assert b"".join(encoded.pieces) == b"".join(singles)
    assert encoded.sizes == [len(single) for single in singles]
    assert encoded.places == places
    assert size_bytes_of_all(rows) == sum(map(len, singles)) == sum(map(size_bytes_of, rows))
    if are_uniform and len(rows) >= COLUMNS_FROM_COUNT:
        assert calls_of(lambda: encode_entries(rows, place, born_unix_ms=77)) < 40


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls that the interpreter makes."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@given(
    topic=_TOPICS,
    queue_id=st.integers(0, (1 << 31) - 1),
    bodies=st.lists(st.binary(max_size=200), max_size=4),
    properties=st.dictionaries(_NAMES, _VALUES, max_size=3),
    numbers=st.tuples(_INT63, _INT63, _INT63, _INT63, _INT32, _INT63, _INT32),
    hosts=st.tuples(_HOSTS, _HOSTS),
    expected=st.booleans(),
)
def test_decoded_messages_say_what_the_store_says(
    topic: str,
    queue_id: int,
    bodies: list[bytes],
    properties: dict[str, str],
    numbers: tuple[int, int, int, int, int, int, int],
    hosts: tuple[tuple[str, int], tuple[str, int]],
    expected: bool,
) -> None:
    properties.pop(fmt.PROPERTY_CRC, None)
    offset, position, born, stored, reconsumed, prepared, flag = numbers
    records = [
        encode_message(
            topic,
            queue_id,
            body,
            properties,
            queue_offset=offset,
            position=position,
            born_unix_ms=born,
            store_unix_ms=stored,
            reconsume_times=reconsumed,
            prepared_transaction_position=prepared,
            flag=flag,
            born_host=hosts[0],
            store_host=hosts[1],
        )
        for body in bodies
    ]
    ours = decode_records(b"".join(records), topic=topic if expected else "")
    assert len(ours) == len(records)
    for message, record in zip(ours, records, strict=True):
        theirs = decode_message(record)
        for name in theirs.__dataclass_fields__:
            own = name.replace("position", "log_position")
            assert getattr(message, own) == getattr(theirs, name), name
        assert message.message_id == theirs.message_id
        assert message.to_dict()["body"] == theirs.body


def test_a_flipped_bit_is_found_or_changes_nothing_that_a_checksum_covers() -> None:
    record = encode("orders", 3, b"some body of a message", encode_properties("k", "t", None))
    good = decode_message(record)
    for bit in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            (message,) = decode_records(bytes(damaged), topic="orders")
            body = message.body  # Where a flag says that it is compressed, it is found here.
        except errors.CorruptRecordError:
            continue
        assert body == good.body


@pytest.mark.parametrize("cut", [1, 50, 90, 91, 100])
def test_records_that_are_cut_are_refused(cut: int) -> None:
    record = encode("orders", 3, bytes(30))
    with pytest.raises(errors.CorruptRecordError):
        decode_records(record + record[:cut], topic="orders")


def test_lengths_that_lie_are_refused() -> None:
    record = encode("orders", 3, bytes(30), encode_properties("k", None, None))
    for at, value in ((0, -1), (0, 5), (0, 1 << 30), (84, -1), (84, 1 << 20), (4, 0x12345678)):
        damaged = bytearray(record)
        struct.pack_into(">i", damaged, at, value)
        with pytest.raises(errors.CorruptRecordError):
            decode_records(bytes(damaged), topic="orders")
    for size_bytes in (0, -91):  # Without a topic to expect, it would be read for ever.
        damaged = bytearray(record)
        struct.pack_into(">i", damaged, 0, size_bytes)
        with pytest.raises(errors.CorruptRecordError):
            decode_records(bytes(damaged))


def test_a_property_crc_is_checked() -> None:
    record = bytearray(encode_message("orders", 0, b"x", {"a": "b"}, property_crc=True))
    crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
    record[-11:-1] = (b"%010d" % crc)[::-1]
    assert decode_records(bytes(record))[0].properties["a"] == "b"
    record[-22] ^= 1
    with pytest.raises(errors.CorruptRecordError, match="property CRC"):
        decode_records(bytes(record))


@pytest.mark.parametrize(
    ("key", "tag", "properties"),
    [
        ("", None, {}),
        ("a\x02", None, {}),
        (None, "\0", {}),
        (None, None, {"": "x"}),
        (None, None, {"a\x01": "x"}),
        (None, None, {"a": ""}),
        (None, None, {"a": "\ud800"}),
        (None, None, {fmt.PROPERTY_CRC: "1"}),
        ("k", None, {"KEYS": "other"}),
    ],
)
def test_properties_that_could_not_be_read_back_are_refused(
    key: str | None, tag: str | None, properties: dict[str, str]
) -> None:
    with pytest.raises(errors.InvalidRequestError):
        encode_properties(key, tag, properties)


@pytest.mark.parametrize("topic", ["", "ä", "a b", "x" * 128, "%RETRY%" + "x" * 249])
def test_topic_names_are_checked_as_the_store_does(topic: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        topic_template(topic)
    assert caught.value.code == "client.bad_topic"


def test_the_queue_of_a_key_never_changes() -> None:
    assert [key_queue(key, 8) for key in ("", "a", "order-17", "é")] == [0, 3, 4, 6]
    host = bytes((127, 0, 0, 1)) + struct.pack(">i", 8081)
    assert message_id(host, 48) == store_message_id(("127.0.0.1", 8081), 48)


def test_messages_compare_by_what_they_hold() -> None:
    records = encode("orders", 1, b"x") + encode("orders", 1, b"x") + encode("orders", 2, b"x")
    first, same, other = decode_records(records)
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    assert first != "x"
    assert isinstance(first, Message)


@pytest.mark.parametrize("name", ["x" * 5_000_000, "\x02" * 5_000_000])
def test_the_words_for_an_endless_name_are_not_endless(name: str) -> None:
    for refused in (
        lambda: topic_template(name),
        lambda: encode_properties(None, None, {name: "v", "KEYS": ""}),
    ):
        with pytest.raises(errors.QuorumlogError) as caught:
            refused()
        assert len(str(caught.value)) < 400
