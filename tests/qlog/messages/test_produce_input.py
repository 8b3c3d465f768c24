"""What `qlog produce` reads, byte for byte, from files and pipes and at every cut of a chunk."""

import asyncio
import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlog.messages.produce_input import (
    MESSAGE_SIZE_BYTES_MAX,
    InputFormat,
    InputMessage,
    LineSplitter,
    messages,
    opened,
    read_chunks,
)
from qlog.messages.template import Template
from quorumlog.command_errors import CliError


def read(
    path: Path, input_format: InputFormat | Template = InputFormat.LINES
) -> tuple[list[InputMessage], CliError | None]:
    """All messages of a file, and the error that ended it."""
    read_messages: list[InputMessage] = []

    async def act() -> None:
        with opened(str(path)) as fd:
            async for batch in messages(fd, name=path.name, input_format=input_format):
                read_messages.extend(batch)

    try:
        asyncio.run(act())
    except CliError as error:
        return read_messages, error
    return read_messages, None


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_lines_do_not_depend_on_where_chunks_end(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter("x")
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    lines = [line for lo, hi in itertools.pairwise(edges) for line in splitter.feed(data[lo:hi])]
    lines += splitter.finish()
    expected = data.split(b"\n")
    assert lines == (expected[:-1] if expected[-1] == b"" else expected)
    assert splitter.line_count == len(lines)


def test_each_line_is_a_message_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"one\n\n two \r\nlast")
    bodies = [message.body for message in read(path)[0]]
    assert bodies == [b"one", b"", b" two \r", b"last"]
    path.write_bytes(b"")
    assert read(path) == ([], None)


def test_the_key_ends_at_the_first_separator(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes("k1::a::b\n::empty key\nschlüssel::c\n".encode())
    messages, error = read(path, Template.parse_input("%k::%s"))
    assert error is None
    assert [(m.key, m.body) for m in messages] == [
        ("k1", b"a::b"),
        (None, b"empty key"),
        ("schlüssel", b"c"),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no json", "Expecting value"),
        ("[1]", "a JSON object is needed"),
        ('{"body": ' + "[" * 100_000, "nested"),
        ('{"body": "a", "queue_id": 2147483648}', "queue_id is not from 0 to 2147483647"),
        ("{}", "body is missing"),
        ('{"body": "a", "headers": {}}', "unknown key 'headers'"),
        ('{"body": "a", "Key": "k"}', "unknown key 'Key'; did you mean 'key'?"),
        ('{"body": 1}', "body is missing or no text"),
        ('{"body": "*", "body_encoding": "base64"}', "no base64"),
        ('{"body": "a", "body_encoding": "rot13"}', "rot13"),
        ('{"body": "a", "queue_id": "1"}', "queue_id"),
        ('{"body": "a", "queue_id": true}', "queue_id"),
        ('{"body": "a", "properties": {"a": 1}}', "properties"),
        ('{"body": "a", "key": 1}', "key is no text"),
    ],
)
def test_json_that_is_no_message_is_refused(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "in"
    path.write_text('{"body": "good", "queue_id": 3}\n' + line + "\n")
    messages, error = read(path, InputFormat.JSONL)
    assert messages == [InputMessage(b"good", queue_id=3)]
    assert error is not None
    assert "line 2 of in is no message" in str(error)
    assert says in str(error)


@pytest.mark.parametrize("input_format", [InputFormat.LINES, InputFormat.RAW])
def test_input_without_an_end_in_sight_is_refused(
    tmp_path: Path, input_format: InputFormat
) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"x" * (MESSAGE_SIZE_BYTES_MAX + 1))
    messages, error = read(path, input_format)
    assert messages == []
    assert "is larger than" in str(error)


async def test_a_pipe_is_read_as_it_is_written() -> None:
    """Each piece arrives before the next one is written: nothing waits for a full chunk."""
    reading, writing = os.pipe()
    chunks, pieces = list[bytes](), [b"one\n", b"two\nthr", b"ee\n"]
    os.write(writing, pieces.pop(0))
    try:
        async for chunk in read_chunks(reading):
            chunks.append(chunk)
            if pieces:
                os.write(writing, pieces.pop(0))
            elif len(chunks) == 3:
                os.close(writing)
        assert chunks == [b"one\n", b"two\nthr", b"ee\n"]
    finally:
        os.close(reading)


def test_waiting_for_a_pipe_can_be_cancelled_and_leaves_no_thread() -> None:
    reading, writing = os.pipe()

    async def act() -> None:
        task = asyncio.ensure_future(anext(read_chunks(reading)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    before = set(threading.enumerate())
    try:
        asyncio.run(act())
        assert set(threading.enumerate()) <= before
    finally:
        os.close(reading)
        os.close(writing)


def test_a_file_that_is_missing_or_a_directory_is_named(tmp_path: Path) -> None:
    for path, error in ((tmp_path / "nothing", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error) as caught, opened(str(path)):
            pass
        assert caught.value.filename == str(path)
