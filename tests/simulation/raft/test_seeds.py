"""Fixed seeds, seeds that are drawn for each run of the long tier, and those that once failed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simulation.raft import shrink
from simulation.raft.coverage import Coverage
from simulation.raft.runner import EVENT_COUNT_DEFAULT, Report, last_events, run_case, run_seed
from tests import seeds

HERE = Path(__file__).parent
FIXED_COUNT, FIXED_STEP = 200, 25
FRESH_COUNT = 1000
"""Of each of two shares, which two workers can run."""
ALWAYS_REACHED = (
    "leader_elected",
    "truncation",
    "crash_lost_unsynced",
    "snapshot_installed",
    "append_acked",
    "append_unknown",
    "read_served",
    "sync_outrun_by_commit",
    "old_copy_found",
    "append_without_room",
)


@cache
def report_of(number: int) -> Report:
    """Run a fixed seed once for all tests of this module."""
    return run_seed(number)


@pytest.mark.parametrize("first", range(0, FIXED_COUNT, FIXED_STEP))
def test_fixed_seeds(first: int) -> None:
    for number in range(first, first + FIXED_STEP):
        check(report_of(number))


def test_fixed_seeds_reach_every_rare_event() -> None:
    """A run in which nothing happens proves nothing."""
    coverage = Coverage()
    for number in range(FIXED_COUNT):
        coverage.counts.update(report_of(number).coverage.counts)
    assert not set(ALWAYS_REACHED) & set(coverage.missing()), coverage.missing()


@pytest.mark.long
@pytest.mark.parametrize("share", [0, 1])
def test_fresh_seeds(share: int) -> None:
    drawn = seeds.drawn("tests/simulation/raft/test_seeds.py -k fresh")
    first = (drawn << 16) + share * FRESH_COUNT
    for number in range(first, first + FRESH_COUNT):
        check(run_seed(number))


def check(report: Report) -> None:
    """Fail with the command that replays the run."""
    assert report.passed, (
        f"python -m simulation.raft replay {report.seed}\n{report.code}: {report.detail}"
    )


def regression_seeds() -> list[tuple[int, int]]:
    """Return (seed, events) of each line of regressions.txt."""
    found = []
    for line in (HERE / "regressions.txt").read_text().splitlines():
        text = line.partition("#")[0].split()
        if text:
            found.append((int(text[0]), int(text[1]) if len(text) > 1 else EVENT_COUNT_DEFAULT))
    assert found, "regressions.txt lists no seed"
    return found


@pytest.mark.parametrize(("seed", "events"), regression_seeds())
def test_regression_seed(seed: int, events: int) -> None:
    report = run_seed(seed, events)
    assert report.passed, f"seed {seed}: {report.code}: {report.detail}"


def test_there_are_regression_cases() -> None:
    assert len(list((HERE / "cases").glob("*.json"))) >= 2


@pytest.mark.parametrize(
    "path", sorted((HERE / "cases").glob("*.json")), ids=lambda path: path.stem
)
def test_regression_case(path: Path) -> None:
    """Shrunk cases keep their meaning when the draw of options changes; seeds do not."""
    case = shrink.from_json(path.read_text())
    report = run_case(case)
    assert report.passed, f"{report.code}: {report.detail}\n" + "\n".join(last_events(case))
