"""Standard output of our programs: what is printed arrives whole.

Owns the buffer below stdout. Programs call it first of all.
"""

import io
import sys


def buffer_stdout() -> None:
    """Put a buffer below stdout if Python runs without one (PYTHONUNBUFFERED).

    Python then hands a text to the pipe in one system call and drops what that call did not take,
    which a signal suffices for: a long document would end in its middle, without an error."""
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=True,
        )
