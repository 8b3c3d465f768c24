"""What was judged before: the faults that a test kills, and those that are explained.

Owns the two files beside it; must not know how faults are judged.
"""

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tests.mutate.campaign import Verdict
from tests.mutate.faults import Change, Fault

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
BESIDE_COUNT_MAX: Final = 40
"""Tests near a fault that are asked about it."""
_ROW: Final = "[[fault]]\n"
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


def drop_explained(names: Collection[str], path: Path = EXPLAINED_FILE) -> None:
    """Take these out of the file of what is explained; the rest of its text stays as it is."""
    head, *rows = path.read_text().split(_ROW)
    kept = [row for row in rows if tomllib.loads(row)["name"] not in names]
    path.write_text((head + "".join(_ROW + row for row in kept)).rstrip("\n") + "\n")


def tests_beside(
    faults: Iterable[Fault], killed: Mapping[str, Killed], *, with_slow: bool
) -> dict[str, tuple[str, ...]]:
    """Return for each fault the tests that killed others near it, the best ones first.

    Those of the same function come first, whatever has become of its faults, then those of the
    same file and of its folder."""
    rows = [row for row in killed.values() if with_slow or row.how != "slow"]
    counts = Counter(row.killer for row in rows)
    found = {}
    for fault in faults:
        beside = f"{fault.path}:{fault.function}:", f"{fault.path}:", _folder_of(fault.path)
        near: dict[str, int] = {}
        for row in rows:
            rank = next((at for at, lead in enumerate(beside) if row.name.startswith(lead)), None)
            if rank is not None:
                near[row.killer] = min(rank, near.get(row.killer, rank))
        # Of those that are equally near, the ones that kill the most.
        best = sorted(near, key=lambda test: (near[test], -counts[test], test))
        found[fault.name] = tuple(best[:BESIDE_COUNT_MAX])
    return found


def _folder_of(path: str) -> str:
    return path[: path.rfind("/") + 1]


def current(rows: Mapping[str, _Row], changes: Mapping[str, Change]) -> dict[str, _Row]:
    """Return those that are about a fault that is there, and is still the one that was judged."""
    marks = {name: change.mark for name, change in changes.items()}
    return {name: row for name, row in rows.items() if marks.get(name) == row.mark}


def after(
    killed: Mapping[str, Killed], verdicts: Iterable[Verdict], changes: Mapping[str, Change]
) -> list[Killed]:
    """Return what is killed after these verdicts. `changes` has all of their faults.

    The others stay, whether their fault is there or not: what killed it may kill what came of it.
    """
    now = dict(killed)
    for verdict in verdicts:
        if verdict.is_unjudged:
            continue
        name = verdict.fault.name
        before = now.pop(name, None)
        if verdict.killer is not None:
            how = "slow" if verdict.stage == "slow" else verdict.how
            if verdict.stage == "recorded" and before is not None:
                how = before.how if before.killer == verdict.killer else how
            now[name] = Killed(name, changes[name].mark, verdict.killer, how)
    return list(now.values())
