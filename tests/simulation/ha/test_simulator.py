"""The simulator of master-slave mode: seeds pass, runs repeat, planted faults are found."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.ha.mutants import MUTANTS, run_seed
from simulation.ha.world import HaWorld
from simulation.mutants import Mutant, hunt, switched_on
from tests import seeds
from tests.node.replication.ha.core import test_ceiling, test_follower, test_leader

FRESH_COUNT = 500
ROOT = Path(__file__).resolve().parents[3]
FOR_SEEDS = [mutant for mutant in MUTANTS if isinstance(mutant.killer, int)]
DIRECTED = [mutant for mutant in MUTANTS if isinstance(mutant.killer, str)]


def test_seeds_pass_and_faults_happen() -> None:
    reports = [HaWorld(seed).run() for seed in range(1, 201)]
    assert [(r.seed, r.code, r.detail) for r in reports if r.code] == []
    # A run in which nothing happens proves nothing.
    assert sum(r.promotions for r in reports) > 50
    assert sum(r.cuts for r in reports) > 5
    assert sum(r.lost for r in reports) > 0
    assert sum(r.acked for r in reports) > 1000


def test_a_run_repeats_in_another_process() -> None:
    program = "from simulation.ha.world import HaWorld; print(HaWorld(5).run().digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=dict(os.environ) | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {f"{HaWorld(5).run().digest}\n"}


@pytest.mark.long
def test_fresh_seeds_pass() -> None:
    base = seeds.drawn("tests/simulation/ha/test_simulator.py")
    reports = [HaWorld(seed).run() for seed in range(base, base + FRESH_COUNT)]
    assert [(r.seed, r.code, r.detail) for r in reports if r.code] == []


@pytest.mark.long
@pytest.mark.parametrize("mutant", FOR_SEEDS, ids=[mutant.name for mutant in FOR_SEEDS])
def test_planted_faults_are_found(mutant: Mutant) -> None:
    code = hunt(mutant, run_seed).killed_by
    assert code, "it survived"
    assert code.startswith("I") or code == "assert", f"a {code}, and no invariant, finds it"


@pytest.mark.parametrize("mutant", DIRECTED, ids=[mutant.name for mutant in DIRECTED])
def test_planted_faults_too_rare_for_seeds_are_found_by_a_test(mutant: Mutant) -> None:
    found = vars(test_leader) | vars(test_follower) | vars(test_ceiling)
    test: Callable[[], None] = found[str(mutant.killer).rpartition("::")[2]]
    test()
    with switched_on(mutant), pytest.raises(AssertionError):
        test()


def test_every_mutant_still_fits_the_source() -> None:
    for mutant in MUTANTS:
        with switched_on(mutant):
            pass


def test_the_machine_does_not_reach_raft() -> None:
    """The rules of the two modes share nothing; their shells serve one broker."""
    package = "node.replication.ha"
    program = f"import sys, {package}.core.machine, {package}.storage.epoch_file"
    program += ", simulation.ha.mutants"
    check = "sys.exit(any(name.split('.')[0] == 'raft' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", f"{program}; {check}"], cwd=ROOT, check=True)
