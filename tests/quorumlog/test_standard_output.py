"""What is printed arrives whole, also without Python's own buffer."""

import io
import sys
from typing import BinaryIO, cast

import pytest

from quorumlog.standard_output import buffer_stdout


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

    buffer_stdout()
    print("arrives \u2013 whole, and at once")
    assert pipe.taken.decode() == "lost be\narrives \u2013 whole, and at once\n"


def test_buffered_stdout_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    buffered = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", buffered)
    buffer_stdout()
    assert sys.stdout is buffered
