"""Runs the tests here with a planted fault on, when the environment names one.

`python -m simulation.raft mutants` uses this to prove that a directed test kills its mutant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.raft.mutants.mutants import MUTANTS
from simulation.raft.mutants.mutation import COUNT_VARIABLE, MUTANT_VARIABLE, switched_on


@pytest.fixture(scope="session", autouse=True)
def planted_fault() -> Iterator[None]:
    """Switch the named mutant on for the whole session, and write down how often its line ran."""
    name = os.environ.get(MUTANT_VARIABLE)
    if not name:
        yield
        return
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with switched_on(mutant) as switch:
        yield
    Path(os.environ[COUNT_VARIABLE]).write_text(str(switch.ran))
