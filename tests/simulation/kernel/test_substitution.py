"""Simulated parts stand in every place where a module holds a real one, and only for a while."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

import pytest

from simulation.kernel.substitution import Substitution

MODULE = "substituted_module"


def fake() -> float:
    return 7.0


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that holds a clock in four ways."""
    made = ModuleType(MODULE)
    made.__dict__.update(time=time, now=time.monotonic, dataclass=dataclass, field=field)
    code = """
def later(clock=now): return clock()
class Timed:
    clock = staticmethod(now)
@dataclass
class Record:
    began_s: float = field(default_factory=now)
"""
    sys.modules[MODULE] = made
    exec(compile(code, MODULE, "exec"), made.__dict__)
    yield made
    del sys.modules[MODULE]


READS: dict[str, Callable[[ModuleType], float]] = {
    "name": lambda module: module.now(),
    "default": lambda module: module.later(),
    "class attribute": lambda module: module.Timed.clock(),
    "default factory": lambda module: module.Record().began_s,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_part_is_replaced_and_comes_back(
    module: ModuleType, read: Callable[[ModuleType], float]
) -> None:
    substitution = Substitution([MODULE])
    substitution.replace({time.monotonic: fake})
    assert read(module) == 7.0
    substitution.undo()
    assert read(module) != 7.0
