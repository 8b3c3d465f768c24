"""Remains of a directory after a power loss, from the shadow that the shim keeps (shim.c).

Owns the rules: synced data is there; each 4 KiB page that differs from it is there or not, by
chance; the last remaining page may be torn at 512 bytes. A name that was made or removed
since its directory was synced is as before or as after, by chance. Needs a file system that never
uses an inode number twice while the node lives, which tmpfs does not.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

PAGE_SIZE_BYTES: Final = 4096
SECTOR_SIZE_BYTES: Final = 512


@dataclass(slots=True)
class Lost:
    """Counts of the lost pages and names."""

    page_count: int = 0
    name_count: int = 0

    def __str__(self) -> str:
        return f"{self.page_count} pages, {self.name_count} names"


def lose(data: Path, shadow: Path, random: Random) -> Lost:
    """Turn a directory into a possible remainder of a power loss. Its process must be dead."""
    lost = Lost()
    # The surviving share differs from loss to loss: none, almost all, or any part.
    kept_ratio = random.choice((0.0, 0.2, 0.5, 0.8, 0.98))
    for directory, _, _ in os.walk(data, topdown=False):
        _lose_names(Path(directory), shadow, random, kept_ratio, lost)
    for directory, _, names in os.walk(data):
        for name in names:
            _lose_pages(Path(directory) / name, shadow, random, kept_ratio, lost)
    boot = data / "boot_id"
    if boot.exists():
        boot.write_text("00000000-0000-0000-0000-000000000000\ne3d274d5\n", "utf-8")
    _begin_again(data, shadow)
    return lost


def _begin_again(data: Path, shadow: Path) -> None:
    """Copy the remains to the shadow: they are durable from now on."""
    for old in shadow.iterdir():
        old.unlink()
    for directory, _, names in os.walk(data):
        entries = []
        for name in names:
            path = Path(directory) / name
            inode = path.stat().st_ino
            shutil.copyfile(path, shadow / f"f{inode}")
            entries.append(f"{inode} {name}\n")
        inode = Path(directory).stat().st_ino
        (shadow / f"d{inode}").write_text("".join(entries), "utf-8")


def _lose_names(directory: Path, shadow: Path, random: Random, kept: float, lost: Lost) -> None:
    """Undo changes of a directory since its sync, or not, name by name."""
    synced = _synced_names(shadow / f"d{directory.stat().st_ino}")
    if synced is None:
        return  # Never synced, so never relied on: all names may stay.
    for path in list(directory.iterdir()):
        if path.is_dir():
            continue  # Directories are made and synced before anything is in them.
        inode = path.stat().st_ino
        if synced.get(path.name) != inode and random.random() >= kept:
            path.unlink()
            lost.name_count += 1
    for name, inode in synced.items():
        path, copy = directory / name, shadow / f"f{inode}"
        # A name that was removed, or replaced by one that is lost now, is back. A file that was
        # removed and never synced had no content.
        if not path.exists() and copy.exists() and random.random() >= kept:
            path.write_bytes(copy.read_bytes())
            lost.name_count += 1


def _synced_names(listing: Path) -> dict[str, int] | None:
    if not listing.exists():
        return None
    pairs = (line.split(" ", 1) for line in listing.read_text("utf-8").splitlines())
    return {name: int(inode) for inode, name in pairs}


def _lose_pages(path: Path, shadow: Path, random: Random, kept: float, lost: Lost) -> None:
    """Undo changes of pages since their sync."""
    now = path.read_bytes()
    copy = shadow / f"f{path.stat().st_ino}"
    synced = copy.read_bytes() if copy.exists() else b""
    # The size of a file that was never synced counts as durable; zeros stand for holes.
    before = synced.ljust(len(now), b"\0")[: len(now)]
    if before == now:
        return
    with path.open("r+b") as file:
        for at in range(0, len(now), PAGE_SIZE_BYTES):
            old, new = before[at : at + PAGE_SIZE_BYTES], now[at : at + PAGE_SIZE_BYTES]
            if old == new or random.random() < kept:
                continue
            lost.page_count += 1
            torn = random.randrange(0, PAGE_SIZE_BYTES, SECTOR_SIZE_BYTES)
            page = new[:torn] + old[torn:] if random.random() < 0.2 else old
            file.seek(at)
            file.write(page)
