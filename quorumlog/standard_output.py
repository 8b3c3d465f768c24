"""Standard streams of our programs: what is printed arrives whole, and any text can be printed.

Owns what stands for a closed stream, the buffer below stdout, the encoding of all output, and the
one place where text for people is escaped. Programs call it first of all.
"""

import errno
import io
import os
import select
import sys
import time
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from quorumlog.foreign_text import shown_lines

_ENCODING: Final = "utf-8"
_ERRORS: Final = "backslashreplace"
"""A byte that was no UTF-8 is a lone surrogate in a text. It is written as `\\udcXX`, which in
JSON is the escape of that surrogate, so the byte is not lost."""


class UnprintableError(OSError):
    """Stdout does not take what the program prints. What was done before stays done."""


class _Stream(io.RawIOBase):
    """The descriptor of stdout or stderr. Its failures are no errors of a file that a command works
    on; a failed write to stderr is dropped, since the exit code says the same."""

    def __init__(self, below: io.RawIOBase, stream: object, *, is_stderr: bool) -> None:
        """`stream` owns the descriptor, and is kept, since it would close it."""
        self._below, self._stream, self._is_stderr = below, stream, is_stderr

    def write(self, data: Any) -> int | None:
        try:
            count = self._below.write(data)
            # A pipe that does not block and is full: its reader has no room for what would wait.
            return len(data) if count is None and self._is_stderr else count
        except OSError as error:
            if self._is_stderr:
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise
            raise UnprintableError(error.errno, error.strerror) from error

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._below.fileno()

    def close(self) -> None:
        super().close()
        self._below.close()

    def isatty(self) -> bool:
        return self._below.isatty()


def _told(stream: TextIO, *, is_stderr: bool) -> TextIO:
    """Return a stream on `_Stream` and on a buffer that encodes as `encoded` does."""
    buffer = getattr(stream, "buffer", None)
    raw = buffer.raw if isinstance(buffer, io.BufferedWriter) else buffer
    if not isinstance(raw, io.RawIOBase):  # Within this process, without a descriptor.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=_ENCODING, errors=_ERRORS)
        return stream
    is_line = is_stderr or raw is buffer or getattr(stream, "line_buffering", False)
    below = io.BufferedWriter(_Stream(raw, stream, is_stderr=is_stderr))
    return io.TextIOWrapper(below, _ENCODING, _ERRORS, line_buffering=is_line)


def is_stdout_closed() -> bool:
    """Return whether stdout cannot take anything, its stand-in included."""
    try:
        os.write(sys.stdout.fileno(), b"")
    except io.UnsupportedOperation:  # A stdout within this process has no descriptor.
        return False
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def wait_for_hang_up(within_s: float | None) -> bool:
    """Wait until the reader of stdout goes away, and return whether it did; a write would tell it
    only when there is something to write.

    False comes after `within_s` seconds; with None only where stdout cannot be watched."""
    try:
        hang_up = select.poll()
        hang_up.register(sys.stdout.fileno(), 0)
    except (AttributeError, io.UnsupportedOperation):  # Windows; a stdout within this process.
        time.sleep(within_s or 0)
        return False
    return bool(hang_up.poll(None if within_s is None else within_s * 1000))


def encoded(text: str) -> bytes:
    """Return a text as it is written: UTF-8, whatever the locale says."""
    return text.encode(_ENCODING, _ERRORS)


def stand_in_for_closed() -> None:
    """Open what stands for each standard descriptor that is closed: cron jobs and supervisors may
    start a program so.

    Else a socket gets its number, which libuv refuses with an abort, or a file of the store, into
    which the next error would be written. A read of the stand-in for stdin and a write to that for
    stdout fail (EBADF), since no input is not an empty one, and no output not one that arrived.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
            assert opened == number, f"the lowest free descriptor is {opened}, not {number}"
            os.set_inheritable(number, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding=_ENCODING, errors=_ERRORS))


def prepare_stdout() -> None:
    """Have stdout encode as `encoded` does, wait for a slow reader, and stand on a buffer; its
    failures are UnprintableError or BrokenPipeError.

    A pipe may be inherited without waiting (O_NONBLOCK): a write that does not fit would fail.
    Without a buffer (PYTHONUNBUFFERED) Python hands a text to the pipe in one system call and drops
    what that call did not take, which a signal suffices for: a long document would end in its
    middle, without an error."""
    stand_in_for_closed()
    sys.stdout = _told(sys.stdout, is_stderr=False)
    if os.name == "posix":
        with suppress(io.UnsupportedOperation):  # A stdout within this process has no descriptor.
            os.set_blocking(sys.stdout.fileno(), True)


def prepare_stderr() -> None:
    """Have stderr drop what it does not take: exit codes say the same to who cannot read it."""
    sys.stderr = _told(sys.stderr, is_stderr=True)


def drop_unwritten(*, waits: bool = True) -> None:
    """Drop what stdout does not take: at the exit Python would try again, and end with 120.

    Without `waits` drop also what its reader has not taken yet."""
    try:
        if waits:
            sys.stdout.flush()
            return
    except (OSError, KeyboardInterrupt):
        pass
    with suppress(io.UnsupportedOperation):  # A stdout within this process has no descriptor.
        number, nowhere = sys.stdout.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        if nowhere != number:
            os.close(nowhere)


def escape_output() -> None:
    """Have stdout and stderr show what is no printable text as escapes, whatever a program prints.

    Bytes for `buffer` go past it, and so do consoles of rich on `styled` streams: their escape
    sequences are ours, and the text in them is escaped where it becomes a part of them.
    """
    sys.stdout = cast(TextIO, _ShownText(sys.stdout))
    sys.stderr = cast(TextIO, _ShownText(sys.stderr))


def styled(stream: TextIO) -> TextIO:
    """Return the stream below one that escapes, for text with escape sequences of our own."""
    return stream.below if isinstance(stream, _ShownText) else stream


class _ShownText:
    """A text stream that shows what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.below: Final = stream

    def write(self, text: str) -> int:
        self.below.write(shown_lines(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)
