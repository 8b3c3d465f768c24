"""Seeds of tests with random faults: some that stay, and one that is new each time.

Owns how a fresh one is drawn and how it is had again: a failing test shows what it printed.
"""

import os
from typing import Final

SEED_VARIABLE: Final = "QUORUMLOG_TEST_SEED"
FRESH: Final = "fresh"
"""In place of a seed, for `chosen`."""


def chosen(seed: int | str, again: str) -> int:
    """Return a seed that stays as it is, and for FRESH a new one, or the one that is asked for.

    `again` selects the test, as for pytest: the command that repeats it is printed.
    """
    if isinstance(seed, int):
        return seed
    assert seed == FRESH, f"seed {seed!r}"
    given = os.environ.get(SEED_VARIABLE)
    drawn = int(given) if given else int.from_bytes(os.urandom(4), "big")
    print(f"seed {drawn}; again: {SEED_VARIABLE}={drawn} ./tests/run {again}")
    return drawn
