"""What is printed arrives whole, also without Python's own buffer, and any text can be."""

import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, cast

import click
import pytest

from quorumlog.standard_output import encoded, prepare_stdout


class ShortPipe(io.RawIOBase):
    """Takes a few bytes of each write, as a pipe does when a signal comes."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))[:7]  # type: ignore[arg-type]
        self.taken += part
        return len(part)


def test_text_longer_than_one_write_takes_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ShortPipe()
    unbuffered = io.TextIOWrapper(cast(BinaryIO, pipe), "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", unbuffered)
    print("lost behind the seventh byte")
    assert bytes(pipe.taken) == b"lost be\n"  # What Python does, and what this is about.

    prepare_stdout()
    print("arrives \u2013 whole, and at once")
    assert pipe.taken.decode() == "lost be\narrives \u2013 whole, and at once\n"


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize(
    ("encoding", "errors"),
    [("ascii", "strict"), ("latin-1", "strict"), ("utf-8", "strict"), ("utf-8", "surrogateescape")],
)
def test_any_text_is_printed_whatever_the_encoding_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, is_buffered: bool
) -> None:
    pipe = ShortPipe()
    below = io.BufferedWriter(pipe) if is_buffered else cast(BinaryIO, pipe)
    stdout = io.TextIOWrapper(below, encoding, errors, write_through=not is_buffered)
    monkeypatch.setattr(sys, "stdout", stdout)
    prepare_stdout()
    text = json.dumps({"key": "höllo \udcff \u2013"}, ensure_ascii=False)
    click.echo(text)
    sys.stdout.flush()
    assert bytes(pipe.taken) == encoded(text) + b"\n"
    assert json.loads(pipe.taken) == {"key": "höllo \udcff \u2013"}


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_pipe_that_does_not_wait_is_made_to(
    monkeypatch: pytest.MonkeyPatch, buffering: int
) -> None:
    """As after a parent that has the pipe in its event loop."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb") as reader, ThreadPoolExecutor(1) as pool:
        below = open(writing, "wb", buffering=buffering)  # noqa: SIM115 - stdout closes it.
        stdout = io.TextIOWrapper(below)
        monkeypatch.setattr(sys, "stdout", stdout)
        prepare_stdout()
        assert os.get_blocking(writing)
        content = pool.submit(reader.read)
        print("x" * 1_000_000)
        sys.stdout.close()
        assert len(content.result()) == 1_000_001


def test_a_stdout_of_text_alone_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    prepare_stdout()
    assert sys.stdout is text
