"""Cases of the simulation with a defect planted in what ships, in a process of its own:
`python -m tests.simulation.defects DEFECT [FAULTS SEEDS]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parents[2] / "chaos-tests"))

from raft.rules import leader, steady
from raft.state.state import RaftState
from simulation.plan import DISK_FAULTS, FAILING, HARMING, LEADER, Case, Fault, Options
from simulation.trial import run_case
from store.files.file_system import FileSystem

CASE = Case(
    Options(
        seed=5, node_count=3, duration_ms=5_000, client_count=2, rate_per_s=40,
        body_size_bytes_max=64, transport="auto", flush="sync",
    ),
    (Fault(1_500, "cut", LEADER, 2_500, 7), Fault(2_200, "kill", LEADER, 1_500, 7)),
)  # fmt: skip
"""A leader that is cut off from the others while clients append, and killed before it is back."""
NODE_COUNT = CASE.options.node_count
FAULTS = {
    "whole": DISK_FAULTS.keys() - FAILING.keys() - HARMING.keys(),
    "failing": DISK_FAULTS.keys() - HARMING.keys(),
    "harming": DISK_FAULTS.keys() - FAILING.keys(),
}
"""Which kinds of faults disks have: such as leave all that they promised; and some more."""


def case_of(faults: str, seed: int) -> Case:
    """Draw a case in which disks fail again and again."""
    random = Random(seed)
    weights = {kind: DISK_FAULTS[kind] for kind in sorted(FAULTS[faults])}
    drawn = []
    for at_ms in range(1_500, 11_500, 700):
        kind = random.choices(list(weights), list(weights.values()))[0]
        victim = 1 + seed % NODE_COUNT if kind in HARMING else random.randint(1, NODE_COUNT)
        duration_ms = random.choice((20, 200, 1_000, 3_000))
        drawn.append(Fault(at_ms, kind, victim, duration_ms, random.randrange(1 << 16)))
    options = replace(CASE.options, seed=seed, duration_ms=10_000, client_count=1, rate_per_s=3)
    return Case(options, tuple(drawn))


def _acknowledge_before_quorum() -> None:
    """A leader commits what its own disk has, whatever the others have."""

    def commit(state: RaftState) -> None:
        if state.synced > state.commit and state.synced >= state.own_term_first:
            state.commit = state.synced

    for module in (leader, steady):
        vars(module)["maybe_commit"] = commit


def _leave_out_syncs(part: str) -> None:
    real = FileSystem.sync

    def sync(fs: FileSystem, fd: int, path: str) -> None:
        if part not in path:
            real(fs, fd, path)

    setattr(FileSystem, "sync", sync)  # noqa: B010 - mypy takes no assignment to a method.


DEFECTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "acknowledged_before_quorum": _acknowledge_before_quorum,
    "no_sync": lambda: _leave_out_syncs(""),
    "no_vote_sync": lambda: _leave_out_syncs("/raft."),
    "no_log_sync": lambda: _leave_out_syncs("/data/0"),
    "no_directory_sync": lambda: setattr(FileSystem, "sync_directory", lambda fs, path: None),
}


def main() -> None:
    """Run the case, or those of seeds, with a defect; print what was wrong with each."""
    defect, *more = sys.argv[1:]
    DEFECTS[defect]()
    cases = [case_of(more[0], seed) for seed in json.loads(more[1])] if more else [CASE]
    print(json.dumps([run_case(case).problem for case in cases]))


if __name__ == "__main__":
    main()
