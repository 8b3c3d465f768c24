"""The fast reading of topic, tags and keys equals the readable one, whatever the properties are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.derived.keys.index_file import key_hash
from store.record import tail as record_tail
from store.record.message import decode_message, encode_message
from store.record.tail import TailReader
from tests.store.vectors import RECORD

NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "MYKEYS", "NOT_UNIQ_KEY", "A", "KEYS "]
VALUES = st.text(
    st.sampled_from("ab1 \x01\u00e9\u4e2d\U0001f600"), min_size=1, max_size=6
) | st.sampled_from(["KEYS", "UNIQ_KEY", "x" * 300, "tagA", "KEYS\x01a", "UNIQ_KEY\x01", "order17"])


def tail_of(record: bytes) -> bytes:
    body_size_bytes = int.from_bytes(record[84:88], "big")
    return record[88 + body_size_bytes :]


def check(reader: TailReader, record: bytes) -> None:
    message = decode_message(record)
    fields = reader.read(tail_of(record))
    assert fields is not None
    topic, pending, code, hashes = fields
    assert topic == message.topic.encode()
    assert code == message.tags_code
    assert list(hashes) == [key_hash(message.topic, key) for key in message.keys]
    slowly = reader.read_record(b"..." + record, 3)
    assert slowly is not None
    assert slowly[1] is pending, "one dict of queues a topic, however it was read"
    assert (slowly[0], slowly[2], slowly[3]) == (topic, code, hashes)


def test_the_published_record() -> None:
    reader = TailReader()
    for _ in range(2):
        fields = reader.read(tail_of(RECORD))
        assert fields is not None
        assert (fields[0], fields[2], fields[3]) == (b"TopicTest", 2598919, (1655984460,))


@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["orders", "t", "KEYS"]),
            st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_property_block_reads_as_the_codec_says(
    records: list[tuple[str, list[tuple[str, str]]]],
) -> None:
    """Twice each, in two orders, so that what is remembered of one meets the others."""
    reader = TailReader()
    encoded = [encode_message(topic, 0, b"b", dict(pairs)) for topic, pairs in records]
    for record in [*encoded, *encoded[::-1]]:
        check(reader, record)


@given(keys=st.lists(st.text(st.sampled_from("ab01 "), min_size=1, max_size=9), min_size=2))
def test_keys_that_differ_only_in_part_are_told_apart(keys: list[str]) -> None:
    reader = TailReader()
    for name in ("KEYS", "UNIQ_KEY"):
        for key in keys:
            check(reader, encode_message("t", 0, b"", {"A": "1", name: key, "TAGS": "x"}))


def test_repeated_properties_count_as_the_codec_says() -> None:
    """The last one wins, unless it is empty."""
    for block in (b"KEYS\x01a\x02KEYS\x01b\x02", b"KEYS\x01a\x02KEYS\x01\x02", b"TAGS\x01\x02"):
        record = encode_message("t", 0, b"")[:-2] + len(block).to_bytes(2, "big") + block
        record = len(record).to_bytes(4, "big") + record[4:]
        check(TailReader(), record)


def test_a_property_whose_name_ends_like_a_key_is_none() -> None:
    reader = TailReader()
    for key in ("Aa", "BB", "Aa"):  # The same hash: only the exact check keeps them apart.
        check(reader, encode_message("t", 0, b"", {"MYKEYS": key, "KEYS": "Aa"}))
        check(reader, encode_message("t", 0, b"", {"MYKEYS": key}))


def test_lengths_that_do_not_add_up_are_malformed() -> None:
    reader = TailReader()
    tail = tail_of(RECORD)
    assert reader.read(tail) is not None
    for at in (0, 10, 11):  # Topic length, properties length.
        for change in (1, 255):
            broken = bytearray(tail)
            broken[at] = (broken[at] + change) % 256
            assert reader.read(bytes(broken)) is None
    for size in range(len(tail)):
        assert reader.read(tail[:size]) is None
        assert reader.read(tail + tail[:size]) is None or size == 0


@pytest.mark.parametrize("topic", [b"", b"../up", b"a b", b"\xff"])
def test_a_topic_that_is_no_name_is_malformed(topic: bytes) -> None:
    assert TailReader().read(bytes([len(topic)]) + topic + b"\0\0") is None


def test_remembered_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tail, "_KNOWN_MAX", 5)
    monkeypatch.setattr(record_tail, "_PARTS_MAX", 5)
    reader = TailReader()
    for n in range(60):
        for properties in ({"TAGS": f"t{n}"}, {"KEYS": f"k{n:09d}", "A": str(n)}):
            check(reader, encode_message(f"topic{n % 9}", 0, b"", properties))
        assert max(len(reader.known), len(reader._shapes), len(reader._topics)) <= 5
        assert max(len(reader._heads), len(reader._ends)) <= 5


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
@pytest.mark.parametrize(
    ("time", "code"),
    [
        ("1700000000001", 1_700_000_000_001),
        ("9" * 15, 10**15 - 1),
        ("9" * 16, 0),
        ("9" * 20, 0),
        ("soon", 0),
        ("", 0),
    ],
)
def test_a_held_message_has_its_time_where_others_have_their_tag(
    topic: str, time: str, code: int
) -> None:
    """One without a time is due."""
    reader = TailReader()
    properties = {"TAGS": "t", "KEYS": "k"} | ({"TIMER_OUT_MS": time} if time else {})
    record = encode_message(topic, 0, b"", properties)
    fields = reader.read(tail_of(record))
    assert fields is not None
    assert (fields[0], *fields[2:]) == (topic.encode(), code, (key_hash(topic, "k"),))
    assert reader.read_record(record, 0) == fields
    assert not reader.known
    assert not reader._shapes
