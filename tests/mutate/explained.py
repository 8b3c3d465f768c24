"""The faults that survive and may, and why: explained.toml.

Owns that file; must not know how faults are judged.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutate.faults import Fault
from tests.mutate.targets import Project

EXPLAINED_FILE: Final = Path(__file__).with_name("explained.toml")
REASONS: Final = {
    "equivalent": "no caller can see a difference",
    "second guard": "another check behind or before it catches the same",
    "speed": "only the time or the memory that something takes is another one",
    "figure": "only a metric, a log line or the text of an error is another one",
    "pacing": "only when something is done is another one, within what is promised",
    "tested slowly": "a test marked long or a suite of real processes fails; it is named",
}
_WHY_SIZE_MIN: Final = 10


class Mark(NamedTuple):
    """A change of a function: the path and the name of the function, and the mark of the change."""

    function: str
    mark: str


def read_explained(path: Path = EXPLAINED_FILE) -> set[Mark]:
    """Read which changes are explained. Raises ValueError: a row is unfit."""
    marks: set[Mark] = set()
    for function, rows in tomllib.loads(path.read_text("utf-8")).items():
        for reason, (why, *changes) in rows.items():
            if reason not in REASONS:
                raise ValueError(f"{function}: reason {reason!r} is none of {', '.join(REASONS)}")
            if len(why) < _WHY_SIZE_MIN or not changes:
                raise ValueError(f"{function}: say why in a sentence, and give marks: {why!r}")
            marks.update(Mark(function, change) for change in changes)
    return marks


def explained_faults(
    project: Project, marks: Iterable[Mark], faults: Iterable[Fault]
) -> Mapping[str, Mark]:
    """Return those of these faults that are explained, by name."""
    marks = set(marks)
    functions = {mark.function for mark in marks}
    names = [fault.name for fault in faults if f"{fault.path}:{fault.function}" in functions]
    by_name = {
        name: Mark(name.rsplit(":", 2)[0], change.mark)
        for name, change in project.changes_of(names).items()
    }
    return {name: mark for name, mark in by_name.items() if mark in marks}
