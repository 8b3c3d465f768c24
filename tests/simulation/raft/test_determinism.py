"""The same seed gives the same run: twice in one process, and in processes that hash otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.raft.runner import run_seed

SEED_COUNT = 200
EVENT_COUNT_MAX = 1200
ROOT = Path(__file__).resolve().parents[3]

SCRIPT = f"""
from simulation.raft.runner import run_seed
for seed in range({SEED_COUNT}):
    report = run_seed(seed, {EVENT_COUNT_MAX})
    print(report.digest, report.event_count, report.operation_count)
"""


def digests_of_a_process(hash_seed: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env=dict(os.environ) | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.splitlines()


@pytest.mark.long
def test_same_seed_same_run_in_every_process() -> None:
    here = []
    for seed in range(SEED_COUNT):
        report, again = run_seed(seed, EVENT_COUNT_MAX), run_seed(seed, EVENT_COUNT_MAX)
        assert report.digest == again.digest, f"seed {seed} differs within one process"
        here.append(f"{report.digest} {report.event_count} {report.operation_count}")

    for hash_seed in ("1", "2"):
        assert digests_of_a_process(hash_seed) == here, f"PYTHONHASHSEED={hash_seed} matters"


def test_different_seeds_are_different_runs() -> None:
    digests = {run_seed(seed, 300).digest for seed in range(30)}
    assert len(digests) == 30
