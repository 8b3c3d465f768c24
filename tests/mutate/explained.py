"""The faults that survive and may, and why: explained.toml.

Owns that file; must not know how faults are judged.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutate.faults import Change

EXPLAINED_FILE: Final = Path(__file__).with_name("explained.toml")
REASONS: Final = {
    "equivalent": "no caller can see a difference",
    "second guard": "another check behind or before it catches the same",
    "speed": "only the time or the memory that something takes is another one",
    "figure": "only a metric, a log line or the text of an error is another one",
    "pacing": "only when something is done is another one, within what is promised",
    "tested slowly": "a test marked long or a suite of real processes fails; it is named",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """A fault that survives, and why that is as it should be."""

    name: str
    mark: str
    """Of what it changes."""
    reason: str
    why: str


def read_explained(path: Path = EXPLAINED_FILE) -> dict[str, Explained]:
    """Read what is explained, by name. Raises ValueError: a row is unfit."""
    rows = tomllib.loads(path.read_text()).get("fault", []) if path.exists() else []
    by_name: dict[str, Explained] = {}
    for row in rows:
        explained = Explained(**row)
        if explained.reason not in REASONS:
            reasons = ", ".join(REASONS)
            raise ValueError(f"{explained.name}: reason {explained.reason!r} is none of {reasons}")
        if len(explained.why) < 10:
            raise ValueError(f"{explained.name}: say why in a sentence, not {explained.why!r}")
        if explained.name in by_name:
            raise ValueError(f"{explained.name} is explained twice")
        by_name[explained.name] = explained
    return by_name


def current(rows: Mapping[str, Explained], changes: Mapping[str, Change]) -> dict[str, Explained]:
    """Return those that are about a fault that is there, and is still the one that was judged."""
    marks = {name: change.mark for name, change in changes.items()}
    return {name: row for name, row in rows.items() if marks.get(name) == row.mark}
