"""The files of a node's log as they lie there, and how far they are known to be durable.

Owns how they are found and what is written in them; must not know what is done to them. Only what
is in the files counts: the node may be dead.
"""

from pathlib import Path

from store.durability.durable_mark import FILE_NAME, SLOT_AT, Mark, decode_slot


def log_files(data: Path) -> list[Path]:
    """The log files of a node, of Raft or of a master-slave group, oldest first."""
    found = [*data.glob("dledger-*/data/*"), *data.glob("commitlog/*")]
    return sorted(path for path in found if path.name.isdecimal())


def written_size(path: Path) -> int:
    """How much of a file is written; records end with text, and never with zeros."""
    return len(path.read_bytes().rstrip(b"\0"))


def newest(data: Path) -> tuple[Path, int]:
    """The last log file with something in it, and how much that is."""
    sizes = [(path, written_size(path)) for path in log_files(data)]
    return max((found for found in sizes if found[1]), default=sizes[0])


def end_position(data: Path) -> int:
    """Where the log of a node ends."""
    path, size_bytes = newest(data)
    return int(path.name) + size_bytes


def durable_mark(data: Path) -> Mark:
    """What the node knows to be durable: the newer of two slots
    (store/durability/durable_mark.py)."""
    found = (data / FILE_NAME).read_bytes()
    slots = [slot for at in SLOT_AT if (slot := decode_slot(found, at)) is not None]
    assert slots, f"no good mark in {data}"
    return max(slots, key=lambda slot: slot[0])[1]
