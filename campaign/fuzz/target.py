"""A fuzz target: a parser, the claim that holds for any bytes, and how to make good ones.

Owns the shape of a target and of a broken claim; must not know how inputs are searched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

KIB: Final = 1 << 10


class ClaimBrokenError(Exception):
    """A parser answered, and its answer breaks the claim of the target."""


def claim(holds: object, what: str) -> None:
    """Raise ClaimBrokenError unless the claim holds."""
    if not holds:
        raise ClaimBrokenError(what)


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A parser under attack. For any bytes `run` returns, or raises one of `errors`, within the
    bounds of memory and steps; everything else is a finding."""

    name: str
    states: str
    """The claim, as a sentence."""
    run: Callable[[bytes], None]
    """Parses the bytes and checks the answer. Raises ClaimBrokenError for a wrong one."""
    modules: tuple[str, ...]
    """Modules whose lines guide the search and count as steps."""
    examples: Callable[[Random], Sequence[bytes]]
    """Returns good inputs, from our own encoders where there are any."""
    errors: tuple[type[Exception], ...] = ()
    """Typed errors: a refusal is a right answer."""
    repaired: Callable[[bytes], bytes] | None = None
    """Puts sizes and checksums right again, so that mutations reach what is behind them."""
    mutated: Callable[[Random, bytes], bytes] | None = None
    """A mutation that knows the structure, used as often as those of bytes."""
    words: tuple[bytes, ...] = ()
    """Pieces that the parser gives a meaning to."""
    size_bytes_max: int = 4 * KIB
    memory_base_bytes: int = 512 * KIB
    memory_factor: int = 64
    """Memory of one input: at most the base and the factor times its size."""
    step_base_count: int = 20_000
    step_factor: int = 256
    """Lines of `modules` that one input runs: at most the base and the factor times its size."""

    def memory_bytes_max(self, data: bytes) -> int:
        """Return the limit of memory for an input."""
        return self.memory_base_bytes + self.memory_factor * len(data)

    def step_count_max(self, data: bytes) -> int:
        """Return the limit of lines for an input."""
        return self.step_base_count + self.step_factor * len(data)
