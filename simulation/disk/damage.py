"""Damage to what a disk holds: flipped bits, misdirected writes, stale and zeroed sectors.

Owns the kinds of files, the zones of a file, and how each operation changes bytes. Damage is done
to what is on the disk; a page that the page cache holds newer, not yet written, covers it.
"""

from __future__ import annotations

import os
import re
from random import Random
from typing import Final, NamedTuple

from simulation.disk.content import PAGE, write_in_place
from simulation.disk.disk import Disk
from simulation.disk.durability import SECTOR, File

KINDS: Final[dict[str, str]] = {
    "log": r"(dledger-[^/]+/data|commitlog)/[0-9]+$",
    "log_index": r"dledger-[^/]+/index/[0-9]+$",
    "queue": r"consumequeue/.+/[0-9]+$",
    "inner_batch_queue": r"batchconsumequeue/.+$",
    "key_index": r"index/[0-9]+$",
    "checksum": r"checksums/.+$",
    "checkpoint": r"checkpoint$",
    "mark": r"marks$",
    "hard_state": r"raft\.[01]$",
    "lives": r"lives\.[01]$",
    "start": r"dledger-[^/]+/start\.[01]$",
    "state": r"config/.+$",
    "snapshot": r"snapshot\.(received|installed)$",
    "prepared": r"(.+/)?allocating/.+$",
    "aside": r"(.+/)?(aside|damaged|cut)/.+$",
    "run": r"(boot_id|abort|lock)$",
    "ha": r"(epochFileCheckpoint.*|haReplica\.[01]|haBinding\.[01]|haLosses\.[01])$",
}
"""Kinds of files, by their path below the directory of a node."""
ZONES: Final = ("head", "middle", "newest", "blank")
"""Of a file: its first page; any byte that is in use; the last page in use; zeros after it."""
OPERATIONS: Final = ("bit_flip", "misdirected", "stale", "zeroed")
_PATTERNS: Final = [(kind, re.compile(pattern)) for kind, pattern in KINDS.items()]


class Damage(NamedTuple):
    """One damage that was done: the operation, and the bytes it changed."""

    operation: str
    kind: str
    zone: str
    path: str
    position: int
    size_bytes: int

    @property
    def name(self) -> str:
        """Return the name of its counter."""
        return f"{self.operation}.{self.kind}.{self.zone}"


def kind_of(path: str) -> str:
    """Return the kind of a file, by its path below a node's directory."""
    for kind, pattern in _PATTERNS:
        if pattern.match(path):
            return kind
    return "other"


def files_by_kind(disk: Disk, directory: str) -> dict[str, list[File]]:
    """Return the durable files below a node's directory, by kind; only those with bytes."""
    files: dict[str, list[File]] = {}
    for file in disk.model.files(directory):
        if file.synced.size_bytes:
            files.setdefault(kind_of(os.path.relpath(file.path, directory)), []).append(file)
    return files


def damage(
    disk: Disk,
    directory: str,
    random: Random,
    *,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> Damage | None:
    """Damage one file of a node; return what was done, or None if there is nothing to damage."""
    files = files_by_kind(disk, directory)
    there = [kind for kind in kinds if kind in files]
    if not there:
        return None
    kind = random.choice(there)
    file = random.choice(files[kind])
    operation = random.choice(OPERATIONS)
    used = len(file.synced.data.rstrip(b"\0"))
    size_bytes = file.synced.size_bytes
    if operation == "stale":
        changed = stale_positions(file)
        if not changed:
            return None
        position = random.choice(changed)
        zone = "newest" if position // PAGE == max(0, used - 1) // PAGE else "middle"
        new = file.before.part(position, SECTOR).ljust(SECTOR, b"\0")
    else:
        zone = random.choice([one for one in ZONES if one != "blank" or used < size_bytes])
        position = _position(zone, used, size_bytes, random)
        if operation == "bit_flip":
            new = bytes([file.synced.part(position, 1)[0] ^ 1 << random.randrange(8)])
        else:
            position -= position % SECTOR
            new = bytes(SECTOR) if operation == "zeroed" else _sector(files[kind], random)
    new = new[: size_bytes - position]
    if not new or new == file.synced.part(position, len(new)):
        return None
    apply(file, position, new)
    return Damage(operation, kind, zone, file.path, position, len(new))


def _position(zone: str, used: int, size_bytes: int, random: Random) -> int:
    match zone:
        case "head":
            lo, hi = 0, min(PAGE, size_bytes)
        case "middle":
            lo, hi = 0, used
        case "newest":
            lo, hi = max(0, used - 1) // PAGE * PAGE, used
        case _:
            lo, hi = used, size_bytes
    return random.randrange(lo, max(hi, lo + 1))


def stale_positions(file: File) -> list[int]:
    """Return the sectors that the last sync changed: that write may be the one that got lost."""
    old, new = file.before, file.synced
    hi = min(max(len(old.data), len(new.data)), new.size_bytes)
    found = range(0, hi, SECTOR)
    return [at for at in found if old.part(at, SECTOR) != new.part(at, SECTOR)]


def _sector(others: list[File], random: Random) -> bytes:
    """Return a sector that was meant for another place: of a file of that kind."""
    content = random.choice(others).synced
    at = random.randrange(0, max(1, len(content.data) - SECTOR)) // SECTOR * SECTOR
    return content.part(at, SECTOR)


def apply(file: File, position: int, new: bytes) -> None:
    """Have the disk hold other bytes of a file; the page cache as well, where it is clean."""
    old, cached = file.synced, file.current()
    file.synced = old.changed(position, new)
    for at in range(position // PAGE * PAGE, position + len(new), PAGE):
        if cached.page(at) == old.page(at):
            cached = cached.changed(at, file.synced.page(at))
    if file.final is None and os.path.isfile(file.path):
        write_in_place(file.path, cached)
