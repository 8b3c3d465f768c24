"""What lies in a directory of files of a log, and what is being made for it."""

from pathlib import Path

from store.files.staging import STAGING_DIRECTORY


def names(directory: Path) -> list[str]:
    """Return the names in it, and those of its files in the making with "allocating/" before."""
    staging, prefix = directory.parent / STAGING_DIRECTORY, f"{directory.name}-"
    staged = sorted(path.name for path in staging.glob(f"{prefix}*"))
    own = sorted(path.name for path in directory.iterdir())
    return own + [f"{STAGING_DIRECTORY}/{name.removeprefix(prefix)}" for name in staged]
