"""Targets of the client: what a node, or a producer through it, makes a consumer read."""

import zlib
from random import Random
from typing import Any, Final

from quorumlog.cluster.routes import parse_bootstrap
from quorumlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    QuorumlogError,
    TooLargeError,
    from_rpc,
)
from quorumlog.pb import common_pb2
from quorumlog.records import compression
from quorumlog.records.batch import decode_records
from quorumlog.records.options import OFFSET_MAX, Time, parse_position
from tests.fuzz.structure import message, mutated_message, text
from tests.fuzz.target import FuzzTarget, claim
from tests.fuzz.targets.records import record, repaired


def _records(data: bytes) -> None:
    found = decode_records(data, topic="orders")
    claim(sum(one.size_bytes for one in found) == len(data), "records that do not add up")
    for one in found:
        if not isinstance(one, compression.CompressedMessage):  # Its body has its own target.
            claim(one.to_dict()["body"] == one.body, "another body")
        _ = one.properties, one.born_host, one.store_host, one.message_id, one.origin_topic
        _ = (
            one.reconsume_times,
            one.prepared_transaction_log_position,
            repr(one),
            one.keys,
            one.parts,
        )
        claim(one == type(one)(*one.parts), "another message after it is copied")


def _record_examples(random: Random) -> list[bytes]:
    return [record(random) for _ in range(3)] + [
        record(random) + record(random),
        record(random) * 9,
    ]


def _compression(data: bytes) -> None:
    """The first byte chooses the way."""
    if data:
        flags = (0, compression.ZLIB, compression.LZ4, compression.ZSTD, 0x700)[data[0] % 5]
        plain = compression.decompress(data[1:], flags | 1)
        claim(len(plain) <= compression.BODY_SIZE_BYTES_MAX, f"{len(plain)} bytes")


def _compression_examples(random: Random) -> list[bytes]:
    body = random.randbytes(4) * 1_200
    found = [b"\0" + zlib.compress(body)]
    for number, name in ((1, "zlib"), (2, "lz4"), (3, "zstd")):
        found.append(bytes((number,)) + compression.compressor(name, 1)(body)[0])
    return found


class _RpcError:
    """The part of grpc.aio.AioRpcError that `from_rpc` uses."""

    def __init__(self, trailer: bytes) -> None:
        self._trailer = trailer

    def trailing_metadata(self) -> Any:
        return (("quorumlog-error-bin", self._trailer),)

    def code(self) -> Any:
        return type("Code", (), {"name": "UNAVAILABLE"})

    def details(self) -> str:
        return "failed"


def _error(data: bytes) -> None:
    found = from_rpc(_RpcError(data), "127.0.0.1:1")
    claim(type(found).__module__ == QuorumlogError.__module__, f"{found!r}")
    claim(len(str(found)) <= len(data) + 100, "a text that grew")


def _arguments(data: bytes) -> None:
    """Addresses and positions, as users type them."""
    said = data.decode("utf-8", "replace")
    position = parse_position(said)
    if isinstance(position, int):
        claim(abs(position) <= OFFSET_MAX, f"{position}")
    else:
        claim(isinstance(position, str | Time), f"{position!r}")


def _bootstrap(data: bytes) -> None:
    for address in parse_bootstrap(data.decode("utf-8", "replace")):
        claim(0 < int(address.rpartition(":")[2]) < 65_536, address)


TARGETS: Final = (
    FuzzTarget(
        "client-records",
        "records of a node are refused as corrupt, or every field of a message can be read",
        _records,
        ("quorumlog.records.batch", "quorumlog.records.message", "quorumlog.records.compression"),
        _record_examples,
        (CorruptRecordError, TooLargeError, InvalidRequestError),
        repaired=repaired,
    ),
    FuzzTarget(
        "client-compression",
        "a compressed body is refused by name, or has at most 32 MiB",
        _compression,
        ("quorumlog.records.compression",),
        _compression_examples,
        (CorruptRecordError, TooLargeError),
        memory_base_bytes=3 * compression.BODY_SIZE_BYTES_MAX,
    ),
    FuzzTarget(
        "client-error",
        "whatever a node says about a failed call becomes an error of the client",
        _error,
        ("quorumlog.errors",),
        lambda random: [message(random, common_pb2.Error).SerializeToString()],
        mutated=mutated_message(common_pb2.Error),
    ),
    FuzzTarget(
        "client-arguments",
        "a position is refused by name, or is an offset, a word or a time",
        _arguments,
        ("quorumlog.records.options",),
        lambda random: [b"first", b"17", b"@1700000000000", b"@2026-01-31T12:00:00Z",
                        text(random).encode("utf-8", "replace")],
        (InvalidRequestError,),
    ),
    FuzzTarget(
        "client-addresses",
        "addresses are refused by name, or have ports",
        _bootstrap,
        ("quorumlog.cluster.routes",),
        lambda _random: [b"127.0.0.1:8081", b"a:1,b:2, [::1]:3"],
        (InvalidRequestError,),
    ),
)  # fmt: skip
