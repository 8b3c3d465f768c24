"""Seeds of tests with random faults: fixed ones in the gate, and drawn ones in the long tier.

Owns how a seed is drawn and how it is had again: a failing test shows what it printed.
`./tests/run --all` draws one and sets SEED_VARIABLE, so that all of a run follows from it.
"""

import os
from collections.abc import Sequence
from random import Random, SystemRandom
from typing import Any, Final

import pytest

SEED_VARIABLE: Final = "QUORUMLOG_TEST_SEED"
_FRESH: Final = "fresh"
FRESH: Final = pytest.param(_FRESH, id=_FRESH, marks=pytest.mark.long)
"""In place of a fixed seed in a parameter list, for `chosen`: never in the gate."""


def chosen(seed: int | str, again: str) -> int:
    """Return a fixed seed as it is, and for FRESH the run's seed, or one that is drawn now.

    `again` selects the test, as for pytest: the command that repeats it is printed.
    """
    if isinstance(seed, int):
        return seed
    assert seed == _FRESH, f"seed {seed!r}"
    return drawn(again)


def drawn(again: str) -> int:
    """Return the run's seed, or one that is drawn now; for tests of the long tier."""
    given = os.environ.get(SEED_VARIABLE)
    seed = int(given) if given else SystemRandom().getrandbits(32)
    print(f"seed {seed}; again: {SEED_VARIABLE}={seed} ./tests/run {again}")
    return seed


def examples(count: int) -> int:
    """Return how many examples of `count` a test of Hypothesis has: in the gate a quarter.

    For these alone, since the long tier repeats them; other tests have `some_of` or two parameters.
    """
    return count if SEED_VARIABLE in os.environ else count // 4


def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes that do not compress and are equal in each run."""
    return Random(seed).randbytes(size_bytes)


def some_of(numbers: Sequence[int], count: int = 2) -> list[Any]:
    """Return seeds as parameters: the first `count` are in the gate, all others are not."""
    long = [pytest.param(number, marks=pytest.mark.long) for number in numbers[count:]]
    return [*numbers[:count], *long]
