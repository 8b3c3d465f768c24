"""Planted faults in the machine of master-slave mode are found by a test by hand, each of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.mutants import Mutant, read, switched_on
from tests.node.replication.ha.core import test_ceiling, test_epochs, test_follower, test_leader

MUTANTS = read(Path(__file__).with_name("mutants.txt"))
TESTS = vars(test_ceiling) | vars(test_epochs) | vars(test_follower) | vars(test_leader)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_planted_fault_is_found(mutant: Mutant) -> None:
    killer: Callable[[], None] = TESTS[str(mutant.killer).rpartition("::")[2]]
    killer()
    with switched_on(mutant), pytest.raises(AssertionError):
        killer()


def test_the_machine_does_not_reach_raft() -> None:
    """The rules of the two modes share nothing; their shells serve one broker."""
    package = "node.replication.ha"
    program = f"import sys, {package}.core.machine, {package}.storage.epoch_file"
    check = "sys.exit(any(name.split('.')[0] == 'raft' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", f"{program}; {check}"], check=True)
