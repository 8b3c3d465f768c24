"""What a run found, as a table and as a document.

Owns what counts as a complaint and how it is told; must not know how faults are judged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.mutate.campaign import Verdict
from tests.mutate.explained import Explained
from tests.mutate.faults import OPERATORS
from tests.mutate.targets import Project


@dataclass(slots=True)
class Findings:
    """The verdicts of a run."""

    explained: dict[str, Explained]
    verdicts: list[Verdict] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    """Names of explained faults that are gone or changed. They are no complaint."""
    seconds: float = 0.0

    def survivors(self) -> list[Verdict]:
        """Return those that no test notices and nothing explains."""
        return [v for v in self.verdicts if v.is_alive and v.fault.name not in self.explained]

    def wrongly_explained(self) -> list[Verdict]:
        """Return those that are explained and yet killed."""
        return [v for v in self.verdicts if v.is_killed and v.fault.name in self.explained]

    def is_good(self) -> bool:
        """Whether nothing is left to do."""
        return not self.survivors() and not self.wrongly_explained()


def document_of(project: Project, findings: Findings) -> dict[str, Any]:
    """Return everything, for a program."""
    verdicts = findings.verdicts
    changes = project.changes_of(verdict.fault.name for verdict in findings.survivors())
    return {
        "planted": len(verdicts),
        "by_how": Counter(verdict.how for verdict in verdicts),
        "by_stage": Counter(verdict.stage for verdict in verdicts if verdict.is_killed),
        "seconds": round(findings.seconds, 1),
        "survivors": [
            {**_row(verdict), **changes[verdict.fault.name]._asdict()}
            for verdict in findings.survivors()
        ],
        "wrongly_explained": [_row(verdict) for verdict in findings.wrongly_explained()],
        "stale": findings.stale,
        "verdicts": [_row(verdict) for verdict in verdicts],
    }


def _row(verdict: Verdict) -> dict[str, Any]:
    fault = verdict.fault
    return {
        "name": fault.name,
        "line": fault.line,
        "how": verdict.how,
        "killer": verdict.killer,
        "stage": verdict.stage,
        "tests": list(verdict.tests),
    }


def lines_of(project: Project, findings: Findings) -> Iterator[str]:
    """Yield what a reader has to look at, and one line of figures."""
    changes = project.changes_of(verdict.fault.name for verdict in findings.survivors())
    for verdict in findings.survivors():
        fault = verdict.fault
        yield f"\n{fault.name}  (line {fault.line}: {OPERATORS[fault.operator]})"
        change = changes[fault.name]
        yield f"  - {change.before}"
        yield f"  + {change.after}"
        yield f"  mark {change.mark}"
        yield from _tests_of(verdict)
    for verdict in findings.wrongly_explained():
        yield f"\n{verdict.fault.name}\n  is explained, and yet {verdict.killer} kills it:"
        yield "  take it out of tests/mutate/explained.toml"
    for name in findings.stale:
        yield f"\n{name}\n  is explained, and gone or changed by now: explained.toml may lose it"
    verdicts = findings.verdicts
    counts = Counter(verdict.how for verdict in verdicts).most_common()
    said = ", ".join(f"{how} {count}" for how, count in counts)
    explained_count = sum(v.is_alive and v.fault.name in findings.explained for v in verdicts)
    yield (
        f"{len(verdicts)} faults planted: {said or 'none'}; {explained_count} explained, "
        f"{len(findings.survivors())} to look at; {findings.seconds:.1f} s"
    )


def _tests_of(verdict: Verdict) -> Iterator[str]:
    if verdict.how == "not loaded":
        yield "  not loaded: the session holds no function of this name and line"
        return
    if not verdict.tests:
        yield "  no test of a moderate length runs it"
        return
    if verdict.how == "not judged":
        yield f"  not judged: {verdict.tests[0]}"
        yield "  is not there, or does not pass without the fault"
        return
    yield f"  {len(verdict.tests)} tests ran it and none noticed; the nearest ones:"
    for node_id in verdict.tests[:3]:
        yield f"    {node_id}"
