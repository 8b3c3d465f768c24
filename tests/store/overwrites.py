"""Damage to files, through the file system and behind the back of a process that mapped them."""

from collections.abc import Iterator
from pathlib import Path

from store.files.mapped_file import MappedFile


def overwrite(file: MappedFile | Path | str, at: int, data: bytes) -> None:
    """Write bytes over those of a file; a map of it shows them at once."""
    with open(file.path if isinstance(file, MappedFile) else file, "r+b", buffering=0) as opened:
        opened.seek(at)
        assert opened.write(data) == len(data)


def flip(file: MappedFile | Path | str, at: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file."""
    with open(file.path if isinstance(file, MappedFile) else file, "rb") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
    overwrite(file, at, bytes([byte ^ bits]))


def bit_flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each bit, and the bytes with that bit flipped."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(flipped)
