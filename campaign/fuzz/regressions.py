"""Inputs that once broke a claim, as files of hexadecimal digits that the tests replay.

Owns their place and form. A file's name is the checksum of its bytes, so that a crash found twice
is one file.
"""

import tracemalloc
import zlib
from pathlib import Path
from typing import Final

from campaign.fuzz.engine import ACCEPTED, REFUSED, ROOT, Crash, judge
from campaign.fuzz.target import FuzzTarget
from campaign.fuzz.trace import LineTrace

CORPUS: Final = ROOT / "tests" / "campaign" / "corpus"
_LINE_DIGITS: Final = 96


def save(crash: Crash, corpus: Path = CORPUS) -> Path:
    """Write the input of a crash; return its file."""
    path = corpus / crash.target / f"{zlib.crc32(crash.data):08x}.hex"
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = crash.data.hex()
    lines = [digits[at : at + _LINE_DIGITS] for at in range(0, len(digits), _LINE_DIGITS)]
    path.write_text("\n".join(lines) + "\n", "ascii")
    return path


def load(path: Path) -> bytes:
    """Return the input of a file. Raises ValueError."""
    return bytes.fromhex(path.read_text("ascii"))


def files_of(corpus: Path = CORPUS) -> list[Path]:
    """Return all files, in order."""
    return sorted(corpus.glob("*/*.hex"))


def problem_of(target: FuzzTarget, data: bytes) -> str:
    """Return how an input breaks the claim of its target; empty if it does not."""
    trace = LineTrace(target.modules)
    tracemalloc.start(1)
    try:
        judge(target, data, trace)  # Fills caches.
        kind, detail = judge(target, data, trace)
    finally:
        tracemalloc.stop()
    return "" if kind in (ACCEPTED, REFUSED) else f"{kind}\n{detail}"
