"""What may enter the log and what is patched into it."""

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import format as fmt
from store.config import StoreConfig
from store.derived.keys.index_file import key_hash
from store.errors import (
    InnerBatchError,
    LimitExceededError,
    RecordFormatError,
    TopicNameError,
)
from store.files.file_system import FileSystem
from store.record.check import check_records
from store.record.encoder import OwnRecords
from store.record.inner_batches import InnerBatches
from store.record.message import decode_message, encode_message, record_layout, tags_code
from store.record.stamp import CHECKED_COUNT_MAX, KEY_COUNT_MAX, Stamped, Stamper
from tests.store.overwrites import bit_flips

NOW = 1_700_000_000_123
HOST = ("127.0.0.1", 10911)


def stamp(
    data: bytes, stamper: Stamper | None = None, position: int = 4096
) -> tuple[bytes, Stamped]:
    """Stamp a batch in the middle of a scratch buffer, as the ledger does."""
    stamper = stamper or Stamper(StoreConfig(store_host=HOST))
    scratch = bytearray(48) + data + bytearray(100)
    stamped = stamper.stamp(data, scratch, 48, position, NOW)
    assert scratch[:48] == bytes(48)
    assert scratch[48 + len(data) :] == bytes(100)
    return bytes(scratch[48 : 48 + len(data)]), stamped


def test_a_mixed_batch_gets_offsets_per_queue_and_positions_in_a_row() -> None:
    stamper = Stamper(StoreConfig(store_host=HOST))
    stamper.next_offsets[(b"a", 0)] = 10
    queues = [("a", 0), ("a", 0), ("b", 0), ("a", 1), ("a", 0), ("b", 0)]
    data = b"".join(encode_message(topic, queue, b"x") for topic, queue in queues)
    patched, stamped = stamp(data, stamper)
    record_positions, queue_offsets, updates, _ = stamped
    assert queue_offsets == [10, 11, 0, 0, 12, 1]
    assert stamper.next_offsets == {(b"a", 0): 10}, "not published before the batch is in"
    stamper.publish(updates)
    assert stamper.next_offsets == {(b"a", 0): 13, (b"b", 0): 2, (b"a", 1): 1}
    at = 0
    for offset, position in zip(queue_offsets, record_positions, strict=True):
        message = decode_message(patched, at)
        assert (message.queue_offset, message.position) == (offset, position) == (offset, 4096 + at)
        assert (message.store_unix_ms, message.store_host) == (NOW, HOST)
        at += message.size_bytes


def test_prepared_and_rolled_back_records_have_no_place_in_their_queue() -> None:
    flags = [fmt.TRANSACTION_PREPARED, 0, fmt.TRANSACTION_ROLLBACK, fmt.TRANSACTION_COMMIT]
    data = b"".join(encode_message("t", 0, b"x", sys_flag=flag) for flag in flags)
    _, (_, queue_offsets, updates, units) = stamp(data)
    assert queue_offsets == [0, 0, 0, 1]
    assert units is None, "only a walk tells which of them have a unit"
    assert updates == {(b"t", 0): 2}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "%RETRY%" + "r" * 150]),
            st.integers(0, 3),
            st.binary(max_size=60),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
    st.booleans(),
)
def test_stamped_records_are_valid_at_their_position(
    messages: list[tuple[str, int, bytes, bool]], store_v6: bool, property_crc: bool
) -> None:
    host = ("::1", 10911) if store_v6 else HOST
    data = b"".join(
        encode_message(
            topic, queue, body, {"k": "v"}, born_host=("fe80::1" if born_v6 else "10.0.0.1", 5),
            store_host=(host[0], 0), property_crc=property_crc,
        )
        for topic, queue, body, born_v6 in messages
    )  # fmt: skip
    stamper = Stamper(StoreConfig(store_host=host, property_crc=property_crc))
    patched, stamped = stamp(data, stamper)
    checked = check_records(patched, 4096)
    assert (checked.problem, checked.end) == (None, len(data))
    assert checked.record_count == len(messages) == len(stamped[1])
    assert checked.last_store_unix_ms == NOW
    assert decode_message(patched, 0).store_host == host


GOOD = encode_message("orders", 3, b"body", {"TAGS": "a"})
LAYOUT = record_layout(memoryview(GOOD), 0)


def damaged(at: int, data: bytes) -> bytes:
    return GOOD[:at] + data + GOOD[at + len(data) :]


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        (damaged(4, b"\0\0\0\0"), "magic"),
        (damaged(0, b"\0\0\0\x5a"), "total size"),
        (damaged(0, b"\x7f\xff\xff\xff"), "total size"),
        (damaged(0, b"\xff\xff\xff\xff"), "total size"),
        (damaged(8, b"\x12\x34\x56\x78"), "body CRC"),
        (damaged(8, b"\xff"), "body CRC"),
        (damaged(12, b"\x80"), "queue id"),
        (damaged(84, b"\xff\xff\xff\xff"), "body length"),
        (damaged(84, b"\0\0\xff\xff"), "body length"),
        (damaged(LAYOUT.body_at, b"X"), "body CRC"),
        (damaged(LAYOUT.body_hi, b"\xff"), "topic length"),
        (damaged(LAYOUT.body_hi, b"\x05"), "properties length"),
        (damaged(LAYOUT.topic_hi, b"\0\x09"), "properties length"),
        (damaged(LAYOUT.topic_hi, b"\xff\xff"), "properties length"),
        (damaged(len(GOOD) - 3, b"\0"), "properties"),
        (GOOD[:-1], "total size"),
        (GOOD[:90], "record"),
        (GOOD[:1], "record"),
    ],
)
@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "second"])
def test_a_malformed_record_is_refused_with_its_byte_and_field(
    before: bytes, batch: bytes, field: str
) -> None:
    stamper = Stamper(StoreConfig())
    with pytest.raises(RecordFormatError) as caught:
        stamp(before + batch, stamper)
    assert caught.value.field == field
    assert len(before) <= caught.value.at < len(before + batch)
    assert stamper.next_offsets == {}


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(RecordFormatError, match="91 bytes or more"):
        stamp(b"")


def test_limits_and_topic_names_are_enforced() -> None:
    stamper = Stamper(StoreConfig(body_size_bytes_max=10))
    with pytest.raises(LimitExceededError, match="11 bytes, the limit is 10"):
        stamp(encode_message("t", 0, b"x" * 11), stamper)
    bad_topic = damaged(LAYOUT.topic_at, b"or ers")
    with pytest.raises(TopicNameError):
        stamp(bad_topic)
    stamp(encode_message("t", 0, b"x" * 10), stamper)


def test_a_store_host_of_the_other_family_is_refused() -> None:
    with pytest.raises(RecordFormatError, match="store host family"):
        stamp(encode_message("t", 0, b"x", store_host=("::1", 0)))
    with pytest.raises(RecordFormatError, match="store host family"):
        stamp(encode_message("t", 0, b"x"), Stamper(StoreConfig(store_host=("::1", 1))))


def test_a_flipped_length_of_topic_or_properties_is_found() -> None:
    patched, _ = stamp(encode_message("topic", 0, b"body", {"a": "b"}))
    topic_at = patched.rindex(b"topic")
    for at in (topic_at - 1, topic_at + 5, topic_at + 6):
        for bit in range(8):
            flipped = bytearray(patched)
            flipped[at] ^= 1 << bit
            checked = check_records(bytes(flipped), 4096)
            assert checked.problem is not None, f"bit {bit} of byte {at}"


def test_property_crc_needs_its_room_and_refuses_a_foreign_one() -> None:
    stamper = Stamper(StoreConfig(property_crc=True))
    for batch in (GOOD, GOOD, GOOD * 40):  # It is as wrong the second time.
        with pytest.raises(RecordFormatError, match="room for the property CRC"):
            stamp(batch, stamper)
    with pytest.raises(RecordFormatError, match="no reserved __CRC32#"):
        stamp(encode_message("t", 0, b"x", property_crc=True))


def test_the_property_crc_covers_the_whole_record() -> None:
    data = encode_message("t", 0, b"some body", {"a": "b"}, property_crc=True)
    patched, _ = stamp(data, Stamper(StoreConfig(property_crc=True)))
    covered = len(patched) - fmt.PROPERTY_CRC_SIZE_BYTES
    digits = patched[covered + 9 : -1]
    assert int(digits[::-1]) == zlib.crc32(patched[:covered]) & 0x7FFFFFFF
    for bit, flipped in bit_flips(patched):
        checked = check_records(flipped, 4096, require_property_crc=True)
        assert checked.problem is not None or checked.end == 0, f"bit {bit} is not detected"
    assert check_records(patched, 4096, require_property_crc=True).end == len(patched)
    without_crc, _ = stamp(GOOD)
    assert check_records(without_crc, 4096, require_property_crc=True).end == 0


def test_own_records_are_stamped_as_those_of_clients() -> None:
    """Their bodies are not checked again; all else is."""
    body = [b"%03d" % n for n in range(20)]
    batch = b"".join(encode_message("orders", 1, one, {"UNIQ_KEY": "K1"}) for one in body)
    (plain, wanted), (own, units) = stamp(batch), stamp(OwnRecords(batch))
    assert (own, units) == (plain, wanted)


def test_each_of_many_uniform_records_gets_its_property_crc() -> None:
    """The short way for records of one shape knows no CRC of properties."""
    data = b"".join(encode_message("t", 0, b"%04d" % n, property_crc=True) for n in range(40))
    patched, stamped = stamp(data, Stamper(StoreConfig(property_crc=True)))
    assert stamped[1] == list(range(40))
    checked = check_records(patched, 4096, require_property_crc=True)
    assert (checked.problem, checked.end) == (None, len(patched))


def test_properties_as_long_as_two_bytes_can_say_are_taken() -> None:
    data = encode_message("t", 0, b"x", {"a": "x" * 32_764})
    patched, _ = stamp(data)
    assert check_records(patched, 4096).end == len(data)


def test_a_property_crc_that_is_cut_short_leaves_what_follows_alone() -> None:
    """Its name is there, and no room for its value: the digits would go into the next record."""
    name, room = fmt.PROPERTY_CRC_PREFIX, fmt.PROPERTY_CRC_SIZE_BYTES
    data = encode_message("t", 0, b"x", {"a" * (len(name) - 1): "1234"})
    at = len(data) - len(name) - 5
    assert data[at : at + len(name) - 1] == b"a" * (len(name) - 1)
    data = data[:at] + name + data[at + len(name) :]
    assert len(data) - at < room
    with pytest.raises(RecordFormatError, match="room for the property CRC"):
        stamp(data, Stamper(StoreConfig(property_crc=True)))


@pytest.mark.parametrize("topic_size", [7, 8, 9])
@pytest.mark.parametrize("count", [1, 20])
def test_a_body_may_end_like_a_property_crc(topic_size: int, count: int) -> None:
    body = b"a body " + fmt.PROPERTY_CRC_PREFIX
    data = encode_message("t" * topic_size, 0, body) * count
    patched, _ = stamp(data)
    assert check_records(patched, 4096).record_count == count
    assert decode_message(patched, len(data) - len(data) // count).body == body


# --- Tails that are known ---


def outcome(data: bytes, stamper: Stamper) -> object:
    """All that stamping leads to, or the error."""
    try:
        patched, stamped = stamp(data, stamper)
    except (RecordFormatError, LimitExceededError, TopicNameError) as error:
        return type(error), str(error)
    return patched, stamped


def test_records_behind_a_known_one_are_checked_as_the_first_is() -> None:
    """Equal bytes behind the body are not parsed again; everything else is looked at."""
    knowing = Stamper(StoreConfig(body_size_bytes_max=300))
    good = encode_message("orders", 3, b"some body", {"TAGS": "a"})
    stamped, _ = stamp(good, knowing)
    assert stamped != good
    for lead in (b"", good):
        for bit, flipped in bit_flips(good):
            data = lead + flipped
            new = Stamper(StoreConfig(body_size_bytes_max=300))
            assert outcome(data, knowing) == outcome(data, new), f"bit {bit}"
        for cut in range(len(good)):
            data = lead + good[:cut]
            new = Stamper(StoreConfig(body_size_bytes_max=300))
            assert outcome(data, knowing) == outcome(data, new), f"cut at {cut}"
    too_large = encode_message("orders", 3, b"x" * 301, {"TAGS": "a"})
    with pytest.raises(LimitExceededError, match="301 bytes, the limit is 300"):
        stamp(too_large, knowing)


def test_a_known_topic_that_gets_inner_batches_is_refused(tmp_path: Path) -> None:
    stamper = Stamper(StoreConfig())
    stamper.inner_batches = InnerBatches(FileSystem(), str(tmp_path))
    stamp(GOOD, stamper)
    stamper.inner_batches.add(b"orders")
    with pytest.raises(InnerBatchError):
        stamp(GOOD, stamper)


def test_units_and_keys_are_those_of_the_stamped_records() -> None:
    stamper = Stamper(StoreConfig(store_host=HOST))
    stamper.next_offsets[b"a", 1] = 7
    parts = [
        *[encode_message("a", 1, b"%03d" % n, {"TAGS": "t"}) for n in range(300)],
        encode_message("b", 0, b"x", {"UNIQ_KEY": "one"}),
        encode_message("a", 1, b"y", {"KEYS": "two three"}),
    ]
    patched, (positions, offsets, _, units) = stamp(b"".join(parts), stamper)
    assert units is not None
    stamped = [
        (topic, queue_id, offset + number, *unit)
        for topic, queue_id, offset, packed in units.runs
        for number, unit in enumerate(fmt.CONSUME_QUEUE_UNIT.iter_unpack(packed))
    ]
    expected, at = [], 0
    for offset, position in zip(offsets, positions, strict=True):
        message = decode_message(patched, at)
        topic = message.topic.encode()
        tag = message.properties.get("TAGS")
        code = tags_code(tag) if tag else 0
        size_bytes = message.size_bytes
        expected.append((topic, message.queue_id, offset, position, size_bytes, code))
        at += size_bytes
    assert stamped == expected
    keys = [("b", "one"), ("a", "two"), ("a", "three")]
    assert units.key_hashes == [key_hash(topic, key) for topic, key in keys]
    assert units.key_positions == [positions[300], positions[301], positions[301]]
    assert units.store_unix_ms == NOW


def test_a_batch_has_so_many_records_that_are_not_alike() -> None:
    alike = encode_message("orders", 0, b"", {"a": "1"})
    stamp(alike * (CHECKED_COUNT_MAX + 10))
    unlike = [encode_message("orders", 0, b"", {"a": f"{n}"}) for n in range(CHECKED_COUNT_MAX + 1)]
    stamp(b"".join(unlike[1:]))
    with pytest.raises(RecordFormatError, match=f"at most {CHECKED_COUNT_MAX}"):
        stamp(b"".join(unlike))


@pytest.mark.parametrize("born_host", [HOST, ("::1", 1)])
def test_a_batch_has_so_many_keys(born_host: tuple[str, int]) -> None:
    record = encode_message("orders", 0, b"", {"KEYS": "a " * 1_023 + "a"}, born_host=born_host)
    stamp(record * (KEY_COUNT_MAX // 1_024))
    with pytest.raises(RecordFormatError, match=f"at most {KEY_COUNT_MAX} keys"):
        stamp(record * (KEY_COUNT_MAX // 1_024 + 1))
