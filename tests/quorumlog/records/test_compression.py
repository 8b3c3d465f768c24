"""Compressed bodies: the flag bits of RocketMQ, what is read back, and what is not believed."""

import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard

from quorumlog.consume.pop import PopMessage
from quorumlog.errors import CorruptRecordError, InvalidRequestError, TooLargeError
from quorumlog.produce.options import ProducerOptions
from quorumlog.produce.outgoing_messages import (
    OutgoingForm,
    entries_of,
    entry_of,
    form_of,
)
from quorumlog.records.batch import decode_records, encode_entries
from quorumlog.records.compression import (
    BODY_SIZE_BYTES_MAX,
    IS_COMPRESSED,
    KEPT_RATIO_MAX,
    KIND_MASK,
    LZ4,
    STEP_SIZE_BYTES,
    ZLIB,
    ZSTD,
    Compress,
    CompressedMessage,
    compressor,
    decompress,
)
from quorumlog.records.message import Message, OutgoingMessage
from store.record.message import decode_message, encode_message
from tests.seeds import noise

KINDS = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}
BODY = b"a line that is much like the next one\n" * 200


def records_of(body: bytes, compress: Compress | None, count: int = 1) -> bytes:
    entries = [
        entry_of("orders", body, None, None, 0, None, 0, OutgoingForm(compress))
        for _ in range(count)
    ]
    encoded = encode_entries(
        entries, lambda topic, queue_id, _: (topic, queue_id or 0), born_unix_ms=1
    )
    return b"".join(encoded.pieces)


def one(body: bytes, compress: Compress | None) -> Message:
    (message,) = decode_records(records_of(body, compress), topic="orders")
    return message


@pytest.mark.parametrize("name", KINDS)
def test_a_body_is_smaller_in_the_log_and_whole_for_its_reader(name: str) -> None:
    records = records_of(BODY, compressor(name, 1_000), count=3)
    assert len(records) < len(BODY)
    stored = decode_message(records)
    assert stored.sys_flag == IS_COMPRESSED | KINDS[name]
    messages = decode_records(records, topic="orders")
    assert [message.body for message in messages] == [BODY] * 3
    assert messages[0].sys_flag & KIND_MASK == KINDS[name]
    assert isinstance(messages[0], CompressedMessage)
    assert messages[0].stored_body == stored.body
    assert messages[0] == messages[0]
    assert messages[0].to_dict()["body"] == BODY


@pytest.mark.parametrize("name", KINDS)
def test_small_bodies_and_those_that_do_not_get_smaller_stay_as_they_are(name: str) -> None:
    compress = compressor(name, 1_000)
    for body in (b"", b"x" * 999, noise(2_000)):
        message = one(body, compress)
        assert (message.body, message.sys_flag, type(message)) == (body, 0, Message)


def test_messages_of_a_batch_may_differ() -> None:
    compress = compressor("zlib", 100)
    given: list[bytes | str | OutgoingMessage] = [
        b"small",
        BODY,
        OutgoingMessage(BODY, topic="bills"),
        OutgoingMessage("text" * 100, properties={"a": "c"}),
    ]
    entries = entries_of(given, "orders", None, None, 0, {"a": "b"}, OutgoingForm(compress))
    encoded = encode_entries(
        entries, lambda topic, queue_id, _: (topic, queue_id or 0), born_unix_ms=1
    )
    messages = decode_records(b"".join(encoded.pieces))
    assert [m.body for m in messages] == [b"small", BODY, BODY, b"text" * 100]
    assert [bool(m.sys_flag) for m in messages] == [False, True, True, True]
    assert [m.properties["a"] for m in messages] == ["b", "b", "b", "c"]


@pytest.mark.parametrize("unique_keys", [False, True])
def test_compressed_messages_get_keys_only_where_they_are_wanted(unique_keys: bool) -> None:
    form = form_of("zlib", 100, unique_keys)
    _, _, _, body, properties, _, _ = entry_of("orders", BODY, None, None, 0, None, 0, form)
    assert len(body) < len(BODY)
    assert bool(properties) is unique_keys


def test_old_clients_compress_without_saying_how() -> None:
    assert decompress(zlib.compress(BODY), IS_COMPRESSED) == BODY


@pytest.mark.parametrize("name", KINDS)
def test_a_small_message_does_not_become_a_huge_one(name: str) -> None:
    bomb, flag = compressor(name, 1)(bytes(BODY_SIZE_BYTES_MAX))
    assert len(decompress(bomb, flag)) == BODY_SIZE_BYTES_MAX
    packages = {
        "zlib": zlib.compress,
        "lz4": lz4.frame.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }
    with pytest.raises(TooLargeError, match="becomes larger"):
        decompress(packages[name](bytes(BODY_SIZE_BYTES_MAX + 1)), flag)
    with pytest.raises(TooLargeError, match="split it"):
        compressor(name, 1)(bytes(BODY_SIZE_BYTES_MAX + 1))


def frame_of_unknown_size(name: str, size_bytes: int) -> bytes:
    """Zeros in one frame that does not say its size."""
    kinds: dict[str, Callable[[], Any]] = {
        "zlib": lambda: zlib.compressobj(1),
        "lz4": lambda: lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        "zstd": lambda: zstandard.ZstdCompressor().compressobj(),
    }
    made = kinds[name]()
    begin = made.begin() if name == "lz4" else b""
    piece = bytes(1 << 20)
    pieces = [made.compress(piece) for _ in range(size_bytes >> 20)]
    return b"".join((begin, *pieces, made.flush()))


@pytest.mark.parametrize("name", KINDS)
def test_memory_never_exceeds_the_limit_of_a_body(name: str) -> None:
    """However much it would become: it grows in place, so an eighth more and a few steps."""
    flag = IS_COMPRESSED | KINDS[name]
    bomb, whole = (frame_of_unknown_size(name, size) for size in (48 << 20, BODY_SIZE_BYTES_MAX))
    for body, limit in ((bomb, 1 << 20), (bomb, BODY_SIZE_BYTES_MAX), (whole, BODY_SIZE_BYTES_MAX)):
        tracemalloc.start()
        try:
            if body is whole:
                assert len(decompress(body, flag, limit)) == limit
            else:
                with pytest.raises(TooLargeError, match=f"larger than {limit} bytes"):
                    decompress(body, flag, limit)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes <= limit + limit // 8 + 4 * STEP_SIZE_BYTES


@pytest.mark.parametrize("name", KINDS)
def test_a_body_is_one_whole_frame(name: str) -> None:
    flag = IS_COMPRESSED | KINDS[name]
    empty, frame = (frame_of_unknown_size(name, size) for size in (0, 1 << 20))
    assert decompress(empty, flag) == b""
    assert decompress(frame, flag, 1 << 20) == bytes(1 << 20)
    for wrong in (frame + frame, frame + b"x", frame + empty, empty + frame, frame[:-1]):
        with pytest.raises(CorruptRecordError, match="cannot be read"):
            decompress(wrong, flag)


def test_a_batch_whose_bodies_were_read_holds_little_more_than_was_sent() -> None:
    large, small = bytes(1 << 20), noise(1 << 12) * 2
    messages = decode_records(
        records_of(large, compressor("zlib", 1), count=32)
        + records_of(small, compressor("zlib", 1))
    )
    stored_bytes = sum(len(message.stored_body) for message in messages)
    tracemalloc.start()
    try:
        assert [len(message.body) for message in messages] == [len(large)] * 32 + [len(small)]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < KEPT_RATIO_MAX * stored_bytes
    assert messages[-1].body is messages[-1].body, "others are decompressed once"


def test_a_faulty_message_is_shown_compared_and_popped() -> None:
    """Only its body is missing: its neighbours are received with it."""
    records = encode_message("orders", 0, b"garbage", {}, sys_flag=IS_COMPRESSED | ZLIB)
    (faulty,) = decode_records(records)
    good, packed = one(BODY, None), one(BODY, compressor("zlib", 1))
    assert "7 bytes" in repr(faulty)
    assert faulty == decode_records(records)[0] != good
    popped = [PopMessage(each, "handle", 1, 2) for each in (faulty, good, packed)]
    assert [message.body for message in popped[1:]] == [BODY, BODY]
    assert popped[0].stored_body == b"garbage"
    with pytest.raises(CorruptRecordError):
        _ = popped[0].body


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_body_is_an_error_of_that_message_only(name: str) -> None:
    body, flag = compressor(name, 1)(BODY)
    for damaged in (b"no such thing", body[:-3], b""):
        with pytest.raises(CorruptRecordError, match="cannot be read"):
            decompress(damaged, flag)
    with pytest.raises(CorruptRecordError, match="0x400"):
        decompress(body, IS_COMPRESSED | 0x400)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InvalidRequestError, match=r"quorumlog\[compression\]"):
        compressor("zstd", 1)
    with pytest.raises(InvalidRequestError) as caught:
        decompress(b"x", IS_COMPRESSED | ZSTD)
    assert caught.value.code == "client.no_package"


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="zlib, lz4, zstd"):
        compressor("brotli", 1)
    with pytest.raises(InvalidRequestError, match="compress_from_size_bytes"):
        ProducerOptions(compress_from_size_bytes=0)
