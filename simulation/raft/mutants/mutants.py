"""The list of planted faults: one line each, with the broken rule and the check that must notice.

Owns the list and the table of a hunt; `mutation` switches a fault on. Each breaks a rule of
fault-matrix section 4 (R..) or 5 (S..) in the core, the pump, the simulated log or the simulated
shell. Most are hunted by the simulator, from seed 1 on, within the number of seeds given; the
number leaves room for changes of the draw. Faults that only hurt liveness, and faults that another
check hides in random runs, name the directed test that kills them.
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.raft.mutants import disk as mutants_disk
from simulation.raft.mutants import lives as mutants_lives
from simulation.raft.mutants import operation as mutants_operation
from simulation.raft.mutants import replication as mutants_replication
from simulation.raft.mutants import steady as mutants_steady
from simulation.raft.mutants.mutation import Mutant, hunt, run_tests

MUTANTS: tuple[Mutant, ...] = (
    mutants_replication.MUTANTS
    + mutants_operation.MUTANTS
    + mutants_disk.MUTANTS
    + mutants_lives.MUTANTS
    + mutants_steady.MUTANTS
)


def run_table(names: list[str], *, directed: bool, tell: Callable[[str], None] = print) -> int:
    """Hunt all mutants, print the table, return non-zero when one survives or never ran."""
    wanted = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in wanted}
    if unknown:
        tell(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    if not directed:
        wanted = [mutant for mutant in wanted if isinstance(mutant.killer, int)]
    nodes = sorted({mutant.killer for mutant in wanted if isinstance(mutant.killer, str)})
    if nodes and run_tests(nodes, "")[0] != 0:
        tell("the directed tests fail without any mutant: nothing can be concluded")
        return 1
    tell(f"{'mutant':34} {'rule':5} {'killed by':44} {'when':18} {'line ran':>9} {'s':>6}")
    survivors, idle = [], []
    for mutant in wanted:
        kill = hunt(mutant)
        if not kill.killed_by:
            survivors.append(mutant.name)
        if not kill.ran:
            idle.append(mutant.name)
        tell(
            f"{mutant.name:34} {mutant.rule:5} {kill.killed_by or 'SURVIVED':44} "
            f"{kill.when:18} {kill.ran:>9} {kill.seconds:>6.1f}"
        )
    if idle:
        tell(f"changed lines that never ran: {', '.join(idle)}")
    if survivors:
        tell(f"survivors: {', '.join(survivors)}")
    tell(f"{len(wanted) - len(survivors)} of {len(wanted)} mutants killed")
    return 1 if survivors or idle else 0
