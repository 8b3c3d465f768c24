"""What `qlog consume` writes, byte for byte, and how it meets a slow or a vanished reader."""

import asyncio
import base64
import io
import json
import os
import sys

import pytest

from qlog.message_rows import message_row
from qlog.messages.consume_output import MessageWriter, OutputFormat
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message
from store.record.message import encode_message


def made(bodies: list[bytes], **properties: str) -> list[Message]:
    """Messages as a node sends them."""
    records = b"".join(
        encode_message("orders", 2, body, properties, born_unix_ms=1_700_000_000_000)
        for body in bodies
    )
    return decode_records(records)


def written(
    monkeypatch: pytest.MonkeyPatch, output: OutputFormat, *batches: list[Message]
) -> bytes:
    """Everything that arrives at stdout."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)

    async def act() -> None:
        async with MessageWriter.opened(output) as writer:
            for batch in batches:
                await writer.write(batch)

    asyncio.run(act())
    assert isinstance(stdout.buffer, io.BytesIO)
    return stdout.buffer.getvalue()


@pytest.mark.parametrize("output", [OutputFormat.JSON, OutputFormat.JSONL])
def test_a_property_that_is_no_utf_8_keeps_nothing_back(
    monkeypatch: pytest.MonkeyPatch, output: OutputFormat
) -> None:
    """Its bytes can be told from the output: as the surrogate escapes of Python."""
    record = encode_message("orders", 2, b"first", {"KEYS": "k???", "colour???": "r???"})
    (odd,) = decode_records(record.replace(b"???", b"\xff\xc3("))
    text = written(monkeypatch, output, [odd, *made([b"second"])]).decode()
    rows = json.loads(text) if output is OutputFormat.JSON else map(json.loads, text.splitlines())
    first, second = rows
    assert first["key"].encode("utf-8", "surrogateescape") == b"k\xff\xc3("
    assert first["properties"] == {"colour\udcff\udcc3(": "r\udcff\udcc3("}
    assert second["body"] == "second"


@pytest.mark.parametrize("output", OutputFormat)
def test_a_body_that_cannot_be_unpacked_is_shown_as_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch, output: OutputFormat
) -> None:
    (odd,) = decode_records(encode_message("orders", 2, b"no zlib", {}, sys_flag=0x301))
    text = written(monkeypatch, output, [odd, *made([b"second"])]).decode()
    assert text.index("no zlib") < text.index("second")
    assert ("utf-8, compressed" in text) == (output in (OutputFormat.JSON, OutputFormat.JSONL))


def test_a_table_shows_bytes_that_are_no_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    record = encode_message("orders", 2, b"first", {"KEYS": "k???"})
    text = written(
        monkeypatch, OutputFormat.TABLE, decode_records(record.replace(b"???", b"\xff\xc3("))
    )
    assert rb"k\udcff\udcc3(" in text


def test_lines_and_raw_are_the_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = made([b"one", b"\xff\x00"]), made([b""]), made([])
    assert written(monkeypatch, OutputFormat.LINES, *batches) == b"one\n\xff\x00\n\n"
    assert written(monkeypatch, OutputFormat.RAW, *batches) == b"one\xff\x00"


def test_json_lines_have_all_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = made(["höllo".encode(), b"\xff\x00"], KEYS="k", TAGS="t", colour="red")
    lines = written(monkeypatch, OutputFormat.JSONL, batch).decode().splitlines()
    first, second = map(json.loads, lines)
    assert first == {
        "topic": "orders",
        "queue_id": 2,
        "queue_offset": 0,
        "message_id": "7F000001000000000000000000000000",
        "key": "k",
        "tag": "t",
        "properties": {"colour": "red"},
        "born_unix_ms": 1_700_000_000_000,
        "store_unix_ms": 0,
        "log_position": 0,
        "body_size_bytes": 6,
        "body_encoding": "utf-8",
        "body": "höllo",
        "broker_group": "",
    }
    assert second["body_encoding"] == "base64"
    assert base64.b64decode(second["body"]) == b"\xff\x00"
    assert list(first) == list(second) == list(message_row(batch[0]))


@pytest.mark.parametrize("sizes", [[], [0], [1], [2, 0, 1], [0, 3]])
def test_json_is_one_array_however_it_came(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    batches = [made([b"x"] * size) for size in sizes]
    rows = json.loads(written(monkeypatch, OutputFormat.JSON, *batches))
    assert [row["body"] for row in rows] == ["x"] * sum(sizes)


def test_a_table_has_a_head_and_escapes_what_a_terminal_would_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = made([b"\x1b[31mred\n"], KEYS="k")
    head, line = written(monkeypatch, OutputFormat.TABLE, batch).decode().splitlines()
    assert head.split() == ["queue_id", "queue_offset", "store_time", "tag", "key", "body"]
    assert line.split() == ["2", "0", "1970-01-01T00:00:00.000Z", "-", "k", r"\x1b[31mred\n"]
    assert head.index("body") == line.index(r"\x1b")


def test_a_table_is_folded_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qlog.messages.consume_output.line_width", lambda: 80)
    batch = made([b"some words " * 20], KEYS="k" * 60)
    batch += [one for length in range(8, 20) for one in made([b"." * length], KEYS="k3")]
    lines = written(monkeypatch, OutputFormat.TABLE, batch).decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).count("some words") == 20
    assert "k" * 60 in lines[2]


async def test_a_slow_reader_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    stdout = open(writing, "w", encoding="utf-8")  # noqa: ASYNC230, SIM115  Closed below.
    monkeypatch.setattr(sys, "stdout", stdout)
    body = b"x" * (1 << 20)  # A pipe takes 64 KiB before its reader reads.
    try:
        async with MessageWriter.opened(OutputFormat.RAW) as writer:
            task = asyncio.ensure_future(writer.write(made([body])))
            for _ in range(10):
                await asyncio.sleep(0)  # The loop turns although the write waits.
            assert not task.done()
            size_bytes = 0
            while size_bytes < len(body):
                size_bytes += len(await asyncio.to_thread(os.read, reading, 1 << 16))
            await task
            assert size_bytes == len(body)
    finally:
        stdout.close()
        os.close(reading)
