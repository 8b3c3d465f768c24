"""What lies in a directory of files of a log, and what is being made for it."""

from pathlib import Path

from store.files.staging import STAGING_DIRECTORY

SMALL_BYTES = 32 << 20


def disk_size_bytes(directory: Path) -> int:
    """Return what the files below a directory take of the disk, as `du` counts it."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


def names(directory: Path) -> list[str]:
    """Return the names in it, and those of its files in the making with "allocating/" before."""
    staging, prefix = directory.parent / STAGING_DIRECTORY, f"{directory.name}-"
    staged = sorted(path.name for path in staging.glob(f"{prefix}*"))
    own = sorted(path.name for path in directory.iterdir())
    return own + [f"{STAGING_DIRECTORY}/{name.removeprefix(prefix)}" for name in staged]
