"""A case of the simulation with a defect planted in what ships, in a process of its own:
`python -m tests.simulation.defects DEFECT`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "chaos-tests"))

from raft.rules import leader, steady
from raft.state.state import RaftState
from simulation.plan import LEADER, Case, Fault, Options
from simulation.trial import run_case

CASE = Case(
    Options(
        seed=5, node_count=3, duration_ms=5_000, client_count=2, rate_per_s=40,
        body_size_bytes_max=64, transport="auto", flush="sync",
    ),
    (Fault(1_500, "cut", LEADER, 2_500, 7), Fault(2_200, "kill", LEADER, 1_500, 7)),
)  # fmt: skip
"""A leader that is cut off from the others while clients append, and killed before it is back."""


def _acknowledge_before_quorum() -> None:
    """A leader commits what its own disk has, whatever the others have."""

    def commit(state: RaftState) -> None:
        if state.synced > state.commit and state.synced >= state.own_term_first:
            state.commit = state.synced

    for module in (leader, steady):
        vars(module)["maybe_commit"] = commit


DEFECTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "acknowledged_before_quorum": _acknowledge_before_quorum,
}


def main() -> None:
    """Run the case with a defect; print what was wrong."""
    DEFECTS[sys.argv[1]]()
    print(json.dumps([run_case(CASE).problem]))


if __name__ == "__main__":
    main()
