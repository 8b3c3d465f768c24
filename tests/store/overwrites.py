"""Damage to files, through the file system and behind the back of a process that mapped them."""

from pathlib import Path

from store.files.mapped_file import MappedFile


def overwrite(file: MappedFile | Path | str, at: int, data: bytes) -> None:
    """Write bytes over those of a file; a map of it shows them at once."""
    with open(file.path if isinstance(file, MappedFile) else file, "r+b", buffering=0) as opened:
        opened.seek(at)
        assert opened.write(data) == len(data)


def flip(file: MappedFile, at: int, bits: int) -> None:
    """Flip bits of one byte of a file."""
    with open(file.path, "rb") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
    overwrite(file, at, bytes([byte ^ bits]))
