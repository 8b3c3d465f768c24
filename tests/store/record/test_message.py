"""The record codec against the published vectors, byte for byte, and against itself."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import format as fmt
from store.errors import LimitExceededError, RecordFormatError, TopicNameError
from store.files import checksum
from store.format import Host
from store.record import message
from tests.store.reference_crc import reference_crc32, reference_crc32c
from tests.store.vectors import RECORD as GOLDEN


def golden(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "queue_offset": 7,
        "position": 1024,
        "born_unix_ms": 1_700_000_000_000,
        "born_host": ("127.0.0.1", 50000),
        "store_unix_ms": 1_700_000_000_123,
        "store_host": ("127.0.0.1", 10911),
    }
    properties = {"KEYS": "key1", "TAGS": "TagA"}
    return message.encode_message(
        "TopicTest",
        3,
        b"Hello RocketMQ",
        properties,
        **{**fields, **changes},  # type: ignore[arg-type]
    )


def test_golden_record_both_directions() -> None:
    assert golden() == GOLDEN
    decoded = message.decode_message(GOLDEN)
    assert decoded == message.Message(
        topic="TopicTest",
        queue_id=3,
        queue_offset=7,
        position=1024,
        size_bytes=134,
        flag=0,
        sys_flag=0,
        born_unix_ms=1_700_000_000_000,
        born_host=("127.0.0.1", 50000),
        store_unix_ms=1_700_000_000_123,
        store_host=("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_position=0,
        body=b"Hello RocketMQ",
        properties={"KEYS": "key1", "TAGS": "TagA"},
    )
    assert decoded.message_id == "7F00000100002A9F0000000000000400"
    assert message.parse_message_id(decoded.message_id) == (("127.0.0.1", 10911), 1024)


def test_golden_blank() -> None:
    assert fmt.BLANK.pack(100, fmt.MAGIC_BLANK) == bytes.fromhex("00000064 CBD43194")


@given(st.text(max_size=3000))
def test_java_hash_equals_its_definition(text: str) -> None:
    expected = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        expected = (31 * expected + unit) & 0xFFFFFFFF
    assert message.java_hash(text) & 0xFFFFFFFF == expected


@pytest.mark.parametrize(
    ("body", "crc", "stored"),
    [(b"Hello RocketMQ", 0x69C865ED, 0x69C865ED), (b"test", 0xD87F7E0C, 0x587F7E0C)],
)
def test_golden_body_crc(body: bytes, crc: int, stored: int) -> None:
    assert zlib.crc32(body) == crc
    assert checksum.body_crc(body) == stored


@given(st.binary(max_size=4096))
def test_fast_checksums_equal_their_definition(data: bytes) -> None:
    assert zlib.crc32(data) == reference_crc32(data)
    assert checksum.crc32c(data) == reference_crc32c(data)


def test_self_check_finds_a_wrong_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    checksum.self_check()
    monkeypatch.setattr(checksum, "crc32c", len)
    with pytest.raises(checksum.ChecksumMismatchError, match="CRC-32C"):
        checksum.self_check()


HOSTS = st.sampled_from([("127.0.0.1", 1), ("10.1.2.3", 65535), ("::1", 8081), ("fe80::7", 0)])
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), min_size=1, max_size=20
).filter(lambda name: name != fmt.PROPERTY_CRC)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\x02"), min_size=1, max_size=30)


@given(
    topic=st.text("abcXYZ019_-%|", min_size=1, max_size=127),
    body=st.binary(max_size=300),
    properties=st.dictionaries(NAMES, VALUES, max_size=5),
    born_host=HOSTS,
    store_host=HOSTS,
    property_crc=st.booleans(),
)
def test_decode_returns_what_was_encoded(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    born_host: Host,
    store_host: Host,
    property_crc: bool,
) -> None:
    data = message.encode_message(
        topic, 5, body, properties, flag=-9, born_host=born_host, store_host=store_host,
        queue_offset=2**40, position=2**50, reconsume_times=3, property_crc=property_crc,
    )  # fmt: skip
    decoded = message.decode_message(b"xy" + data, 2, check_crc=not property_crc)
    assert (decoded.topic, decoded.queue_id, decoded.body, decoded.flag) == (topic, 5, body, -9)
    assert (decoded.born_host, decoded.store_host) == (born_host, store_host)
    assert (decoded.queue_offset, decoded.position) == (2**40, 2**50)
    assert decoded.size_bytes == len(data)
    assert decoded.reconsume_times == 3
    expected = {**properties, fmt.PROPERTY_CRC: "0" * 10} if property_crc else properties
    assert decoded.properties == expected


def test_a_retry_topic_beyond_127_characters_is_a_version_2_record() -> None:
    topic = "%RETRY%" + "g" * 200
    data = message.encode_message(topic, 0, b"x")
    assert struct.unpack_from(">I", data, 4)[0] == fmt.MAGIC_V2
    assert message.decode_message(data).topic == topic
    assert len(data) == 92 + 1 + len(topic)


@pytest.mark.parametrize("topic", ["", "a b", "caf\u00e9", "t/1", "x" * 128, "%RETRY%" + "x" * 249])
def test_a_bad_topic_is_refused(topic: str) -> None:
    with pytest.raises(TopicNameError) as caught:
        message.encode_message(topic, 0, b"")
    assert caught.value.code == "store.bad_topic"
    assert topic in str(caught.value), "as its sender wrote it"


def test_oversize_and_unreadable_properties_are_refused() -> None:
    with pytest.raises(LimitExceededError, match="32767"):
        message.encode_message("t", 0, b"", {"a": "x" * 32767})
    for bad in (
        {"": "v"},
        {"n": ""},
        {"n\x01": "v"},
        {"n": "v\x02"},
        {"n": "\0"},
        {fmt.PROPERTY_CRC: "1"},
    ):
        with pytest.raises(RecordFormatError):
            message.encode_properties(bad)


def test_properties_without_the_last_separator_and_with_odd_segments() -> None:
    data = b"a\x01b\x02x\x02\x01v\x02n\x01\x02c\x01d\x01e"
    assert message.decode_properties(data) == {"a": "b", "c": "d\x01e"}


@pytest.mark.parametrize("size_bytes", range(134))
def test_every_truncation_of_a_record_is_refused_by_name(size_bytes: int) -> None:
    with pytest.raises(RecordFormatError) as caught:
        message.decode_message(GOLDEN[:size_bytes])
    assert caught.value.field in ("record", "total size")


def test_a_topic_that_is_no_text_is_refused_by_name() -> None:
    data = message.encode_message("orders", 0, b"body")
    at = data.index(b"orders")
    with pytest.raises(RecordFormatError, match="topic") as found:
        message.decode_message(data[:at] + b"\xff" + data[at + 1 :])
    assert found.value.at == at


def test_keys_are_the_unique_key_and_then_each_key() -> None:
    assert message.index_keys({"KEYS": " a  b ", "UNIQ_KEY": "u"}) == ["u", "a", "b"]
    assert message.index_keys({}) == []
