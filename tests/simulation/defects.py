"""Cases of the simulation with a defect planted in what ships, in a process of their own:
`python -m tests.simulation.defects DEFECT [SEED, ...]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "chaos-tests"))

from raft.rules import leader, steady
from raft.state.state import RaftState
from simulation.plan import draw
from simulation.trial import run_case

DURATION_MS = 8_000


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
    """Run seeds with a defect; print what was wrong with each."""
    DEFECTS[sys.argv[1]]()
    seeds = json.loads(sys.argv[2])
    print(json.dumps([run_case(draw(seed, DURATION_MS)).problem for seed in seeds]))


if __name__ == "__main__":
    main()
