"""The files of a node's log on disk, and the extent known to be durable.

Owns their location, the amount written and the flip of bits; must not know why it is done. Only
the content of the files counts: the node may be dead.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from store.durability.durable_mark import FILE_NAME, SLOT_AT, Mark, decode_slot


def log_files(data: Path) -> list[Path]:
    """Return the log files of a node, of Raft or of a master-slave group, oldest first."""
    files = [*data.glob("dledger-*/data/*"), *data.glob("commitlog/*")]
    return sorted(path for path in files if path.name.isdecimal())


def flip_bits(path: Path, places: Sequence[int], random: Random) -> int:
    """Flip a random bit of each of these bytes; return their number."""
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << random.randrange(8)]))
    return len(places)


def written_size(path: Path) -> int:
    """Return the written size of a file; records end with text, and never with zeros."""
    return len(path.read_bytes().rstrip(b"\0"))


def newest(data: Path) -> tuple[Path, int]:
    """Return the last non-empty log file and its written size."""
    sizes = [(path, written_size(path)) for path in log_files(data)]
    return max((found for found in sizes if found[1]), default=sizes[0])


def end_position(data: Path) -> int:
    """Return the position at which the log of a node ends."""
    path, size_bytes = newest(data)
    return int(path.name) + size_bytes


def durable_mark(data: Path) -> Mark:
    """Return the node's durable mark: the newer of two slots (store/durability/durable_mark.py)."""
    content = (data / FILE_NAME).read_bytes()
    slots = [slot for at in SLOT_AT if (slot := decode_slot(content, at)) is not None]
    assert slots, f"no good mark in {data}"
    return max(slots, key=lambda slot: slot[0])[1]
