"""Seeds drawn afresh each time, and those that once failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raft.simulator import shrink
from raft.simulator.coverage import Coverage
from raft.simulator.runner import EVENT_COUNT_DEFAULT, last_events, run_case, run_many, run_seed

HERE = Path(__file__).parent
FRESH_COUNT = 1000
"""Of each of two shares, which two workers can run."""
FRESH_SECONDS = 80
"""A slow or busy machine runs fewer seeds; the limit of the suite is 90 s on 2 cores."""
FRESH_COUNT_MIN = 100
ALWAYS_REACHED = (
    "leader_elected",
    "truncation",
    "crash_lost_unsynced",
    "snapshot_installed",
    "append_acked",
    "append_unknown",
    "read_served",
    "sync_outrun_by_commit",
    "damage_done",
    "range_fetched",
    "append_without_room",
    "version_changed",
)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["one", "other"])
def test_fresh_seeds(share: str) -> None:
    base = int.from_bytes(os.urandom(5), "big")
    command = f"python -m raft.simulator run --seeds {base}..{base + FRESH_COUNT - 1}"
    print(f"the {share} share: {command}")
    coverage = Coverage()
    count = 0
    for report in run_many(
        range(base, base + FRESH_COUNT),
        event_count_max=EVENT_COUNT_DEFAULT,
        jobs=1,
        seconds=FRESH_SECONDS,
    ):
        count += 1
        coverage.counts.update(report.coverage.counts)
        assert report.passed, (
            f"{command}\npython -m raft.simulator replay {report.seed}\n"
            f"{report.code}: {report.detail}"
        )
    assert count >= FRESH_COUNT_MIN, f"only {count} seeds ran in {FRESH_SECONDS} s"
    assert not set(ALWAYS_REACHED) & set(coverage.missing()), coverage.missing()


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
