"""The planted faults of the machine of master-slave mode, and the run that has to find them.

Owns nothing but the two; the table is `mutants.txt`. Only tests import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulation import mutants
from simulation.ha.world import HaWorld

MUTANTS: Final = mutants.read(Path(__file__).with_suffix(".txt"))


def run_seed(seed: int) -> str:
    """Run a seed and return the code of the violation, or an empty text."""
    return HaWorld(seed).run().code
