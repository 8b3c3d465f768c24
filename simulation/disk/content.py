"""The bytes of a file, without the zeros that a hole at its end stands for.

Owns reading, comparing and writing them. Queue files are 6 MB of which some KB are used, and each
sync reads its file, so what is a hole must cost nothing.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

PAGE: Final = 4096
_DENSE_SIZE_BYTES_MAX: Final = 128 * 1024


class Content(NamedTuple):
    """`data`, and zeros up to `size_bytes`."""

    data: bytes
    size_bytes: int

    def page(self, at: int) -> bytes:
        """Return the page at a position, shorter at the end of the file."""
        size_bytes = max(0, min(PAGE, self.size_bytes - at))
        return self.data[at : at + size_bytes].ljust(size_bytes, b"\0")

    def part(self, at: int, size_bytes: int) -> bytes:
        """Return bytes from a position on, fewer at the end of the file."""
        size_bytes = max(0, min(size_bytes, self.size_bytes - at))
        return self.data[at : at + size_bytes].ljust(size_bytes, b"\0")

    def changed(self, at: int, new: bytes) -> Content:
        """Return it with other bytes at a position; it grows if they go past its end."""
        data = self.data.ljust(at, b"\0")
        data = data[:at] + new + data[at + len(new) :]
        return Content(data, max(self.size_bytes, at + len(new)))

    def cut(self, size_bytes: int) -> Content:
        """Return it with another size."""
        return Content(self.data[:size_bytes], size_bytes)


EMPTY: Final = Content(b"", 0)


def changed_pages(old: Content, new: Content) -> list[int]:
    """Return the positions of the pages of `new` that `old` does not have."""
    if old == new:
        return []
    hi = min(max(len(old.data), len(new.data)), new.size_bytes)
    return [at for at in range(0, hi, PAGE) if old.page(at) != new.page(at)]


def read_content(fd: int) -> Content:
    """Read an open file."""
    size_bytes = os.fstat(fd).st_size
    if size_bytes <= _DENSE_SIZE_BYTES_MAX:
        return Content(os.pread(fd, size_bytes, 0), size_bytes)
    hi = 0
    while True:
        try:
            lo = os.lseek(fd, hi, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # The rest is a hole.
        hi = os.lseek(fd, lo, os.SEEK_HOLE)
    return Content(os.pread(fd, hi, 0), size_bytes)


def read_file(path: str) -> Content:
    """Read a file by its path. Raises FileNotFoundError."""
    with open(path, "rb", buffering=0) as file:
        return read_content(file.fileno())


def write_file(path: str, content: Content) -> None:
    """Make a file."""
    with open(path, "wb", buffering=0) as file:
        file.write(content.data)
        file.truncate(content.size_bytes)


def write_in_place(path: str, content: Content) -> None:
    """Give a file other bytes; maps of it show them."""
    with open(path, "r+b", buffering=0) as file:
        file.write(content.data)


def copy_file(source: str, target: str) -> str:
    """Copy a file with its times, and with its hole."""
    write_file(target, read_file(source))
    found = os.stat(source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return target
