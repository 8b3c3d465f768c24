"""The files of the repository, for the tests beside this file."""

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def files() -> tuple[str, ...]:
    """Name all files that git tracks or would track, relative to the root, sorted.

    Without git, as in an unpacked archive, all files count that are in no hidden directory.
    """
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = set(listing.stdout.decode().split("\0")) - {""}
    else:
        below = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = {p.as_posix() for p in below if not any(x[0] == "." for x in p.parts[:-1])}
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def text(name: str) -> str | None:
    """Read a file as text; None if it is binary."""
    data = (ROOT / name).read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def is_generated(name: str) -> bool:
    """Whether a generator owns the file's style."""
    return name.startswith(("quorumlog/pb/", "quorumlog/error_codes.py"))
