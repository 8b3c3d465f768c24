"""Standard output of our programs: what is printed arrives whole, and any text can be printed.

Owns the buffer below stdout and the encoding of all output. Programs call it first of all.
"""

import io
import os
import sys
from contextlib import suppress
from typing import Final

_ENCODING: Final = "utf-8"
_ERRORS: Final = "backslashreplace"
"""A byte that was no UTF-8 is a lone surrogate in a text. It is written as `\\udcXX`, which in
JSON is the escape of that surrogate, so the byte is not lost."""


def encoded(text: str) -> bytes:
    """Return a text as it is written: UTF-8, whatever the locale says."""
    return text.encode(_ENCODING, _ERRORS)


def prepare_stdout() -> None:
    """Have stdout encode as `encoded` does, wait for a slow reader, and stand on a buffer.

    A pipe may be inherited without waiting (O_NONBLOCK): a write that does not fit would fail.
    Without a buffer (PYTHONUNBUFFERED) Python hands a text to the pipe in one system call and drops
    what that call did not take, which a signal suffices for: a long document would end in its
    middle, without an error."""
    stdout = sys.stdout
    raw = getattr(stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), _ENCODING, _ERRORS, line_buffering=True
        )
    elif isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(encoding=_ENCODING, errors=_ERRORS)
    if raw is not None:
        with suppress(io.UnsupportedOperation):  # A stdout within this process has no descriptor.
            os.set_blocking(raw.fileno(), True)
