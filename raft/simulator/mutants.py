"""The list of planted faults: one line each, with the rule it breaks and who must notice.

Owns only the list; `mutation` knows how to switch one on. Each breaks a rule of fault-matrix
section 4 (R..) or 5 (S..) in the core, the pump, the simulated log or the simulated shell. Most are
hunted by the simulator, from seed 1 on, within the number of seeds given; the number leaves room
for changes of the draw. Faults that only hurt liveness, and those that another check hides in
random runs, name the directed test that kills them.
"""

from __future__ import annotations

from raft.simulator import (
    mutants_disk,
    mutants_lives,
    mutants_operation,
    mutants_replication,
)
from raft.simulator.mutation import Mutant

MUTANTS: tuple[Mutant, ...] = (
    mutants_replication.MUTANTS
    + mutants_operation.MUTANTS
    + mutants_disk.MUTANTS
    + mutants_lives.MUTANTS
)
