"""Whole nodes whose disks fail: nothing acknowledged is lost, and replicas agree.

`whole`: disks keep what they promised, and nodes die at any file-system call. `failing`: calls fail
and hang as well. `harming`: the disk of one node loses what it promised.
"""

from collections import Counter
from typing import Any

import pytest

from tests.two_processes import in_two_processes, results_of

MODULE = "tests.simulation.disk.trials"
MANY = range(100, 120)


def check(results: list[dict[str, Any]]) -> Counter[str]:
    """Fail unless every seed passed; return how often each fault was done."""
    failed = [one for one in results if one["problem"]]
    assert not failed, "\n".join(f"seed {one['seed']}: {one['problem']}" for one in failed)
    assert min(one["acked_count"] for one in results) >= 20
    counts: Counter[str] = Counter()
    for one in results:
        counts.update(one["counts"])
    return counts


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "wanted"),
    [
        ("whole", ["died_at_call", "power_at_call", "disk_full", "disk_slow"]),
        ("failing", ["sync_fails", "calls_fail", "disk_hang"]),
        ("harming", ["disk_lies", "damaged_log", "damaged_hard_state"]),
    ],
)
def test_disks_fail_over_many_seeds(faults: str, wanted: list[str]) -> None:
    counts: Counter[str] = Counter()
    for lo in range(MANY.start, MANY.stop, 20):
        counts += check(in_two_processes(MODULE, "none", faults, cases=range(lo, lo + 20)))
    print(f"{faults}: {counts}")
    assert all(counts[name] > 0 for name in wanted), f"{wanted} of {counts}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("defect", "seed_count"),
    [("no_sync", 2), ("no_directory_sync", 6), ("no_vote_sync", 4), ("no_log_sync", 16)],
)
def test_a_defect_is_found(defect: str, seed_count: int) -> None:
    results = in_two_processes(MODULE, defect, "whole", cases=range(1, seed_count + 1))
    assert any(one["problem"] for one in results)


@pytest.mark.long
def test_a_seed_is_one_run() -> None:
    first, second = (results_of(MODULE, "none", "all", "[3]", hash_seed=one) for one in ("1", "2"))
    assert first == second
    assert not first[0]["problem"]
