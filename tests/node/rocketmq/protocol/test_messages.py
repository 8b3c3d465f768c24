"""Messages of the protocol: what comes back as it was sent, and what is refused."""

import hashlib
import zlib
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from node.rocketmq.protocol.messages import (
    BORN_HOST_SIZE_BYTES_MAX,
    PLAIN_SIZE_BYTES_MAX,
    PROPERTIES_SIZE_BYTES_MAX,
    TRACE_CONTEXT_SIZE_BYTES_MAX,
    USER_PROPERTY_COUNT_MAX,
    check_message,
    from_record,
    to_record,
    type_of,
)
from node.rocketmq.protocol.properties import RESERVED
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, DigestType, Encoding, MessageType
from quorumlog.records.compression import IS_COMPRESSED, LZ4, ZLIB, ZSTD, compressor
from store import format as fmt
from store.record.message import decode_message, encode_message

HOST = ("127.0.0.1", 8081)
BODY_MAX = 1_000
CONFLICT = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20).filter(
    lambda text: text not in RESERVED
)
WORD = st.text("abcXYZ019_", min_size=1, max_size=12)


def message(body: bytes = b"x", user: dict[str, str] | None = None, **system: Any) -> pb.Message:
    system.setdefault("message_id", "01" * 17)
    return pb.Message(
        topic=pb.Resource(name="orders"),
        user_properties=user or {},
        system_properties=pb.SystemProperties(**system),
        body=body,
    )


def stored(sent: pb.Message) -> pb.Message:
    return from_record(decode_message(to_record(sent, type_of(sent), "orders", 3, HOST)), "orders")


def test_the_largest_properties_that_are_let_pass_fit_into_a_record() -> None:
    """Two bytes of a character count as two, and the blank between two keys counts, too."""
    largest = message(
        user={f"{n:03}": "y" * 5 for n in range(USER_PROPERTY_COUNT_MAX)},
        keys=["k"] * ((PROPERTIES_SIZE_BYTES_MAX - 8 * USER_PROPERTY_COUNT_MAX) // 2),
        trace_context="ä" * (TRACE_CONTEXT_SIZE_BYTES_MAX // 2),
        born_host="h" * BORN_HOST_SIZE_BYTES_MAX,
        born_timestamp=Timestamp(seconds=1, nanos=1),
        delivery_timestamp=Timestamp(seconds=253_402_300_799, nanos=999_999_999),
        orphaned_transaction_recovery_duration=Duration(seconds=(1 << 63) - 1),
        body_encoding=Encoding.GZIP,
    )
    check_message(largest, BODY_MAX)
    assert len(stored(largest).system_properties.keys) > 7_000
    for more in (
        message(keys=["k"] * (PROPERTIES_SIZE_BYTES_MAX // 2 + 1)),
        message(trace_context="ä" * (TRACE_CONTEXT_SIZE_BYTES_MAX // 2 + 1)),
        message(born_host="h" * (BORN_HOST_SIZE_BYTES_MAX + 1)),
    ):
        with pytest.raises(CallRefusedError):
            check_message(more, BODY_MAX)


@given(
    st.builds(
        message,
        st.binary(min_size=1, max_size=200),
        st.dictionaries(TEXT, TEXT, max_size=8),
        tag=st.none() | WORD,
        keys=st.lists(WORD, max_size=3),
        message_group=st.none() | WORD,
        born_timestamp=st.builds(
            Timestamp, seconds=st.integers(0, 4_000_000_000), nanos=st.integers(0, 999_999_999)
        ),
        born_host=st.sampled_from(["10.1.2.3", "::1", "a-host", ""]),
    )
)
def test_a_stored_message_comes_back(sent: pb.Message) -> None:
    """With what the node added, and nothing else."""
    check_message(sent, BODY_MAX)
    message, system = stored(sent), sent.system_properties
    digest = pb.Digest(type=DigestType.MD5, checksum=hashlib.md5(sent.body).hexdigest().upper())
    system.MergeFrom(pb.SystemProperties(body_digest=digest, body_encoding=Encoding.IDENTITY))
    system.message_type, system.born_host = type_of(sent), system.born_host or "0.0.0.0"
    system.queue_id, system.queue_offset, system.store_host = 3, 0, "127.0.0.1:8081"
    system.store_timestamp.SetInParent()
    assert message == sent


@pytest.mark.parametrize("nanos", [0, 1, 7_000_000, 7_000_001, 999_999_999])
def test_delivery_times_keep_their_nanoseconds(nanos: int) -> None:
    due = Timestamp(seconds=1_800_000_000, nanos=nanos)
    sent = message(delivery_timestamp=due)
    record = to_record(sent, type_of(sent), "orders", 0, HOST)
    properties = decode_message(record).properties
    held_until_ns = int(properties["TIMER_DELIVER_MS"]) * 1_000_000
    assert held_until_ns >= due.ToNanoseconds(), "never before its time"
    assert held_until_ns - due.ToNanoseconds() < 1_000_000
    assert stored(message(delivery_timestamp=due)).system_properties.delivery_timestamp == due


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"message_group": "g"}, MessageType.FIFO),
        ({"delivery_timestamp": Timestamp(seconds=1)}, MessageType.DELAY),
        ({"message_type": MessageType.TRANSACTION}, MessageType.TRANSACTION),
    ],
)
def test_the_type_follows_from_the_content(fields: dict[str, Any], kind: MessageType) -> None:
    assert type_of(message(**fields)) == kind


REFUSED: list[tuple[str, pb.Message, Code]] = [
    ("byte", message(b""), Code.MESSAGE_BODY_EMPTY),
    ("body", message(bytes(BODY_MAX + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    ("message id", message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
    ("message id", message(message_id="a b"), Code.ILLEGAL_MESSAGE_ID),
    ("message id", message(message_id="i" * 129), Code.ILLEGAL_MESSAGE_ID),
    ("tag", message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    ("tag", message(tag="a\nb"), Code.ILLEGAL_MESSAGE_TAG),
    ("tag", message(tag="  "), Code.ILLEGAL_MESSAGE_TAG),
    ("tag", message(tag="t" * 40_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("key", message(keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
    ("key", message(keys=["a\x01"]), Code.ILLEGAL_MESSAGE_KEY),
    ("keys", message(keys=["k" * 40_000]), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("message group", message(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    ("message group", message(message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
    ("trace context", message(trace_context="t" * 49_152), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("trace context", message(trace_context="a\0b"), Code.BAD_REQUEST),
    ("born host", message(born_host="h" * 40_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("born host", message(born_host="a\0b"), Code.BAD_REQUEST),
    ("born host", message(born_host="a\x02b"), Code.BAD_REQUEST),
    ("born host", message(born_host="\n"), Code.BAD_REQUEST),
    ("born time", message(born_timestamp=Timestamp(nanos=-1)), Code.BAD_REQUEST),
    ("delivery time", message(delivery_timestamp=Timestamp(nanos=-1)), Code.ILLEGAL_DELIVERY_TIME),
    ("UNIQ_KEY", message(user={"UNIQ_KEY": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("'a'", message(user={"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("'a'", message(user={"a": ""}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (
        "user properties",
        message(user={str(n): "v" for n in range(USER_PROPERTY_COUNT_MAX + 1)}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "user properties",
        message(user={"a": "v" * PROPERTIES_SIZE_BYTES_MAX}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "digest",
        message(body_digest=pb.Digest(type=DigestType.MD5, checksum="00")),
        Code.MESSAGE_CORRUPTED,
    ),
]


@pytest.mark.parametrize(("field", "bad", "code"), REFUSED)
def test_a_message_that_no_record_could_hold_is_refused_by_the_name_of_its_field(
    field: str, bad: pb.Message, code: Code
) -> None:
    with pytest.raises(CallRefusedError, match=field) as refused:
        check_message(bad, BODY_MAX)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message_group": "g", "delivery_timestamp": Timestamp(seconds=1)}, CONFLICT),
        ({"message_type": MessageType.TRANSACTION, "message_group": "g"}, CONFLICT),
        ({"message_type": MessageType.LITE}, Code.NOT_IMPLEMENTED),
        ({"priority": 1}, Code.NOT_IMPLEMENTED),
    ],
)
def test_types_that_cannot_be(fields: dict[str, Any], code: Code) -> None:
    with pytest.raises(CallRefusedError) as refused:
        type_of(message(**fields))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DigestType.CRC32, f"{zlib.crc32(b'x'):08X}"),
        (DigestType.CRC32, str(zlib.crc32(b"x"))),
        (DigestType.MD5, hashlib.md5(b"x").hexdigest()),
        (DigestType.SHA1, hashlib.sha1(b"x").hexdigest().upper()),
    ],
)
def test_digests_of_every_client_are_understood(kind: DigestType, text: str) -> None:
    check_message(message(body_digest=pb.Digest(type=kind, checksum=text)), BODY_MAX)


def test_system_properties_are_not_among_user_properties() -> None:
    sent = message(
        trace_context="00-1-2-01",
        born_host="somewhere",
        body_encoding=Encoding.GZIP,
        orphaned_transaction_recovery_duration=Duration(seconds=9),
    )
    stored_message = stored(sent)
    assert dict(stored_message.user_properties) == {}
    assert stored_message.system_properties.trace_context == "00-1-2-01"
    assert stored_message.system_properties.body_encoding == Encoding.GZIP


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_a_body_that_its_producer_compressed_is_delivered_plain(name: str) -> None:
    """Clients know no encoding of these; the checksum is that of what they get."""
    plain = b"a line that is much like the next one\n" * 200
    body, flags = compressor(name, 1)(plain)
    assert len(body) < len(plain)
    record = encode_message("orders", 3, body, {}, sys_flag=flags)
    message = from_record(decode_message(record), "orders")
    system = message.system_properties
    assert message.body == plain
    assert system.body_encoding == Encoding.IDENTITY
    digest = hashlib.md5(plain, usedforsecurity=False).hexdigest().upper()
    assert system.body_digest.checksum == digest


def large(name: str) -> tuple[bytes, int]:
    """A body that becomes larger than a node decompresses, and its flags."""
    return compressor(name, 1)(bytes(PLAIN_SIZE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (b"garbage", IS_COMPRESSED | LZ4),
        (b"garbage", IS_COMPRESSED | ZLIB),
        (b"garbage", IS_COMPRESSED | 0x700),
        large("lz4"),
        large("zstd"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_called_damaged(body: bytes, flags: int) -> None:
    """By a digest that does not fit: all clients take that for one message, not for the answer."""
    output = from_record(decode_message(encode_message("orders", 3, body, {}, sys_flag=flags)), "o")
    system = output.system_properties
    assert output.body == body
    assert system.body_encoding == Encoding.IDENTITY
    assert system.body_digest.type == DigestType.MD5
    assert len(system.body_digest.checksum) == 32
    assert system.body_digest.checksum != hashlib.md5(body).hexdigest().upper()


def test_a_large_body_of_zlib_is_delivered_in_the_encoding_that_names_it() -> None:
    body, flags = large("zlib")
    for flag in (flags, IS_COMPRESSED):  # Old clients compress without saying how.
        record = encode_message("orders", 3, body, {}, sys_flag=flag)
        message = from_record(decode_message(record), "orders")
        assert message.body == body
        assert message.system_properties.body_encoding == Encoding.GZIP
        digest = message.system_properties.body_digest.checksum
        assert digest == hashlib.md5(body).hexdigest().upper()


@pytest.mark.parametrize("flags", [0, ZSTD, fmt.SYS_FLAG_NEED_UNWRAP, fmt.TRANSACTION_COMMIT, 2])
def test_other_flags_leave_the_body_alone(flags: int) -> None:
    record = encode_message("orders", 3, b"plain", {}, sys_flag=flags)
    message = from_record(decode_message(record), "orders")
    assert message.body == b"plain"
    assert message.system_properties.body_encoding == Encoding.IDENTITY
