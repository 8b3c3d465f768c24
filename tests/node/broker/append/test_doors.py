"""A fault of a record has one code by all ways in: plain, delayed, in a transaction."""

import struct

import pytest

from node.errors.common import NodeError
from node.errors.translation import describe
from quorumlog.pb.log_pb2 import AppendRequest
from store import format as fmt
from store.errors import Outcome, StoreError
from store.record.message import encode_message, record_layout
from tests.node.broker_fakes import Fixture, node_with

WAYS = ("plain", "delayed", "transaction")
WISH = b"TIMER_DELAY_MS\x011000\x02"


def strange(way: str, *, topic: bytes = b"orders", properties: bytes = b"") -> bytearray:
    """A record that no encoder makes; a delayed one has a time to be delivered."""
    record = encode_message("orders", 0, b"x")
    data = bytearray(record[: record_layout(memoryview(record), 0).topic_at - 1])
    properties = WISH * (way == "delayed") + properties
    data += bytes((len(topic),)) + topic + struct.pack(">H", len(properties)) + properties
    struct.pack_into(">i", data, 0, len(data))
    return data


def with_number(data: bytearray, at: int, number: int) -> bytearray:
    struct.pack_into(">i", data, at, number)
    return data


FAULTS = [
    ("topic", "store.bad_topic", [strange(way, topic=topic) for way in WAYS])
    for topic in (b"", b"a b", b"a\0", b"\xff", b"a" * 128)
]
FAULTS += [
    (
        "properties",
        "store.record_format",
        [strange(way, properties=b"a\x01\0\x02") for way in WAYS],
    ),
    (
        "body CRC",
        "store.record_format",
        [with_number(strange(way), fmt.BODY_CRC_AT, 1) for way in WAYS],
    ),
    (
        "sys flag",
        "store.record_format",
        [with_number(strange(way), fmt.SYS_FLAG_AT, fmt.SYS_FLAG_INNER_BATCH) for way in WAYS],
    ),
    (
        "properties",
        "store.limit_exceeded",
        [
            strange(way, properties=b"a\x01%b\x02" % (b"v" * (room - 3)))
            for way, room in zip(WAYS, (32_768, 32_700, 32_750), strict=True)
        ],
    ),
    (
        "queue",
        "node.unknown_queue",
        [with_number(strange(way), fmt.QUEUE_ID_AT, 99) for way in WAYS],
    ),
]


@pytest.mark.parametrize(("field", "code", "records"), FAULTS)
@node_with(file_size_bytes=1 << 20, batch_size_bytes_max=1 << 18)
async def test_a_fault_has_one_code_and_names_its_field(
    node: Fixture, field: str, code: str, records: list[bytearray]
) -> None:
    before = node.log.last_index
    for way, record in zip(WAYS, records, strict=True):
        request = AppendRequest(records=bytes(record), record_count=1)
        request.has_delayed = way == "delayed"
        if way == "transaction":
            request.transaction.producer_group = "producers"
        with pytest.raises((NodeError, StoreError)) as refused:
            await node.broker.append(request)
        failure = describe(refused.value)
        assert (failure.code, failure.retryable) == (code, False), f"{way}: {failure.message}"
        assert failure.outcome is Outcome.NOT_APPLIED
        assert field in failure.message
        assert node.log.last_index == before, way
