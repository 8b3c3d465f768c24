"""Text that other code writes to stderr past all logging: each of its lines becomes a log line.

Owns file descriptor 2 of a node with a JSON log. gRPC's core and other native code write to it
directly, for example a line for each failed TLS handshake; Python writes tracebacks of uncaught
exceptions. Must not know the form of a log line.

The log itself goes to a copy of the descriptor, at once and from any thread. Text of Python takes
the same way, so the last lines of an ending process are not lost. Text of native code goes through
a pipe that a thread reads; a full pipe drops lines and blocks no writer. Only stacks after a fatal
signal are written raw, since no other code is sure to run then.
"""

import atexit
import faulthandler
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, TextIO

LINE_SIZE_BYTES_MAX: Final = 8 * 1024
"""Size above which a line is written in parts."""
_CLOSE_S: Final = 1.0
_READ_SIZE_BYTES: Final = 64 * 1024

Write = Callable[[str], None]
"""Takes a line without its end."""


def take_over(on_python: Write, on_native: Write) -> TextIO:
    """Turn stderr into log lines for the rest of the process; return the original stderr.

    Raises OSError when there is no stderr.
    """
    real = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    if faulthandler.is_enabled():
        faulthandler.enable(file=real)
    sys.stderr = _Lines(on_python, real)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(target=_read, args=(reading, on_native), name="stderr", daemon=True)
    thread.start()

    def give_back() -> None:
        os.dup2(real.fileno(), 2)  # The last end of the pipe is closed, so the thread ends.
        thread.join(_CLOSE_S)

    atexit.register(give_back)
    return real


def _read(reading: int, write: Write) -> None:
    rest = b""
    while data := os.read(reading, _READ_SIZE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_SIZE_BYTES_MAX:
            lines.append(rest)
            rest = b""
        for line in lines:
            if line.strip():
                write(line[:LINE_SIZE_BYTES_MAX].decode("utf-8", "replace"))
    if rest:
        write(rest.decode("utf-8", "replace"))
    os.close(reading)


class _OfThread(threading.local):
    rest = ""
    is_writing = False


class _Lines(io.TextIOBase):
    """Takes the place of `sys.stderr`."""

    def __init__(self, on_line: Write, real: TextIO) -> None:
        self._on_line, self._real = on_line, real
        self._thread = _OfThread()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._real.fileno()

    def write(self, text: str) -> int:
        """Take text; whole lines are written at once."""
        *lines, rest = (self._thread.rest + text).split("\n")
        self._thread.rest = rest
        for line in lines:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        """Write the incomplete line of this thread."""
        rest, self._thread.rest = self._thread.rest, ""
        self._put(rest)

    def _put(self, line: str) -> None:
        if not line.strip():
            return
        if self._thread.is_writing:  # Logging itself has failed.
            self._real.write(f"{line}\n")
            return
        self._thread.is_writing = True
        try:
            self._on_line(line)
        finally:
            self._thread.is_writing = False
