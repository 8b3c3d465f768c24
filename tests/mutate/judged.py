"""What was judged before: the faults that a test kills, and those that are explained.

Owns the two files beside it; must not know how faults are judged.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tests.mutate.campaign import Verdict
from tests.mutate.faults import Change

KILLED_FILE: Final = Path(__file__).with_name("killed.txt")
EXPLAINED_FILE: Final = Path(__file__).with_name("explained.toml")
REASONS: Final = {
    "equivalent": "no caller can see a difference",
    "second guard": "another check behind or before it catches the same",
    "speed": "only the time or the memory that something takes is another one",
    "figure": "only a metric, a log line or the text of an error is another one",
    "pacing": "only when something is done is another one, within what is promised",
    "tested slowly": "a slow test or a suite of real processes fails; it is named",
}
_QUICK: Final = frozenset({"failed", "ended"})


@dataclass(frozen=True, slots=True)
class Killed:
    """A fault that a test killed when it was last judged."""

    name: str
    mark: str
    """Of what it changes."""
    killer: str
    how: str

    @property
    def is_quick(self) -> bool:
        return self.how in _QUICK


@dataclass(frozen=True, slots=True)
class Explained:
    """A fault that survives, and why that is as it should be."""

    name: str
    mark: str
    """Of what it changes."""
    reason: str
    why: str


_Row = TypeVar("_Row", Killed, Explained)


def read_killed(path: Path = KILLED_FILE) -> dict[str, Killed]:
    """Read what is killed, by name. A file that is missing is empty."""
    rows = path.read_text().splitlines() if path.exists() else []
    found = [Killed(*row.split("\t")) for row in rows if row and not row.startswith("#")]
    return {killed.name: killed for killed in found}


def write_killed(rows: Iterable[Killed], path: Path = KILLED_FILE) -> None:
    """Write what is killed, a line each: fault, mark, test, how."""
    lines = [f"{row.name}\t{row.mark}\t{row.killer}\t{row.how}\n" for row in rows]
    head = "# Written by `python -m tests.mutate --record`: fault, mark, what kills it, how.\n"
    path.write_text(head + "".join(sorted(lines)))


def read_explained(path: Path = EXPLAINED_FILE) -> dict[str, Explained]:
    """Read what is explained, by name. Raises ValueError: a row is unfit."""
    rows = tomllib.loads(path.read_text()).get("fault", []) if path.exists() else []
    found: dict[str, Explained] = {}
    for row in rows:
        explained = Explained(**row)
        if explained.reason not in REASONS:
            known = ", ".join(REASONS)
            raise ValueError(f"{explained.name}: reason {explained.reason!r} is none of {known}")
        if len(explained.why) < 10:
            raise ValueError(f"{explained.name}: say why in a sentence, not {explained.why!r}")
        if explained.name in found:
            raise ValueError(f"{explained.name} is explained twice")
        found[explained.name] = explained
    return found


def current(rows: Mapping[str, _Row], changes: Mapping[str, Change]) -> dict[str, _Row]:
    """Return those that are about a fault that is there, and is still the one that was judged."""
    marks = {name: change.mark for name, change in changes.items()}
    return {name: row for name, row in rows.items() if marks.get(name) == row.mark}


def after(
    killed: Mapping[str, Killed], verdicts: Iterable[Verdict], changes: Mapping[str, Change]
) -> list[Killed]:
    """Return what is killed after these verdicts, of the faults that are there."""
    now = current(killed, changes)
    for verdict in verdicts:
        if verdict.is_unjudged:
            continue
        name = verdict.fault.name
        before = now.pop(name, None)
        if verdict.killer is not None:
            how = "slow" if verdict.stage == "slow" else verdict.how
            if verdict.stage == "recorded" and before is not None:
                how = before.how
            now[name] = Killed(name, changes[name].mark, verdict.killer, how)
    return list(now.values())
