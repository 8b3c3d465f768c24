"""The sources of work: simulators, chaos suites, planted faults, fuzzers.

Owns what a unit of each is, its share of the time, and how its counts are read from what it says.
Must not know when a unit runs. The runner requests the next unit of a source by number. At
one commit a source never gives two equal units: the number is part of each seed.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from campaign.fuzz.targets import TARGETS
from campaign.unit import WorkUnit

CORE_SEEDS: Final = 100
HA_SEEDS: Final = 100
WORLD_SEEDS: Final = 20
FUZZ_INPUTS: Final = 5_000
MUTANTS: Final = 10
_MINUTE: Final = 60.0

_SIMULATED: Final = re.compile(r"(\d+) simulated s, (\d+) faults, (\d+) operations")
_ACKED: Final = re.compile(r"(\d+) acked")
_SEEDS: Final = re.compile(r"^(\d+) passed, (\d+) failed", re.MULTILINE)
_WORLD: Final = re.compile(
    r"^(\d+) passed, (\d+) failed; (\d+) simulated s, (\d+) faults, (\d+) operations",
    re.MULTILINE,
)
_CHAOS: Final = re.compile(r"(\d+) faults\s+([\d,]+) operations")
_PLANTED: Final = re.compile(r'"planted": (\d+)')
_INPUTS: Final = re.compile(r"(\d+) inputs")


@dataclass(frozen=True, slots=True)
class WorkSource:
    """A source of units."""

    name: str
    weight: int
    """Its share of the time, beside the others that are there."""
    unit: Callable[[int], WorkUnit]
    """Makes the unit of a number, from 0 on."""
    counts: Callable[[str], Counter[str]]
    """Reads counts from what a unit said, also one that failed or was ended."""
    missing: Callable[[], str] = lambda: ""
    """Returns why there is no such work here; empty if there is."""


def _range(number: int, size: int) -> str:
    return f"{1 + number * size}..{(number + 1) * size}"


def _core(number: int) -> WorkUnit:
    seeds = _range(number, CORE_SEEDS)
    arguments = ("run", "--seeds", seeds)
    return WorkUnit("core", f"core seeds {seeds}", "simulation.raft", arguments, 60 * _MINUTE)


def _ha(number: int) -> WorkUnit:
    seeds = _range(number, HA_SEEDS)
    module = "simulation.ha"
    return WorkUnit("ha", f"HA seeds {seeds}", module, ("run", "--seeds", seeds), 60 * _MINUTE)


def _world(number: int) -> WorkUnit:
    seeds = _range(number, WORLD_SEEDS)
    arguments = ("run", "--seeds", seeds)
    return WorkUnit("world", f"world seeds {seeds}", "simulation", arguments, 60 * _MINUTE)


def _world_missing() -> str:
    found = importlib.util.find_spec("simulation")
    return "" if found is not None else "this commit has no package `simulation`"


CHAOS_SUITES: Final = tuple(
    (mode, suite)
    for suite in ("--slice", "--features", "")
    for mode in ("raft", "sync_master", "async_master")
)
"""Modes, and tiers of scenarios: the slice, the features, the short tier."""


def _chaos(number: int) -> WorkUnit:
    mode, suite = CHAOS_SUITES[number % len(CHAOS_SUITES)]
    arguments = ("--mode", mode, "--seed", str(1 + number), *((suite,) if suite else ()))
    title = f"chaos {mode} {suite.removeprefix('--') or 'short'}"
    return WorkUnit(
        "chaos", title, "chaos", arguments, 40 * _MINUTE, path="chaos-tests", not_run_code=3
    )


def _mutants(number: int) -> WorkUnit:
    seed = str(1 + number)
    arguments = ("--sample", str(MUTANTS), "--seed", seed, "--jobs", "1", "--json")
    title = f"planted faults, sample {seed}"
    return WorkUnit("mutants", title, "tests.mutate", arguments, 30 * _MINUTE)


_TARGET_NAMES: Final = tuple(TARGETS)


def _fuzz(number: int) -> WorkUnit:
    """Each target in turn; where atheris is installed, it searches with every second seed."""
    name = _TARGET_NAMES[number % len(_TARGET_NAMES)]
    seed = 1 + number // len(_TARGET_NAMES)
    is_atheris = seed % 2 == 0 and importlib.util.find_spec("atheris") is not None
    options = ("--atheris",) if is_atheris else ()
    arguments = ("fuzz", name, "--seed", str(seed), "--count", str(FUZZ_INPUTS), *options)
    return WorkUnit("fuzz", f"fuzz {name}, seed {seed}", "campaign", arguments, 60 * _MINUTE)


def _seed_counts(output: str) -> Counter[str]:
    found = Counter[str]()
    for passed, failed in _SEEDS.findall(output):
        found["seeds"] += int(passed) + int(failed)
    for simulated_s, faults, operations in _SIMULATED.findall(output):
        found["simulated_s"] += int(simulated_s)
        found["faults"] += int(faults)
        found["operations"] += int(operations)
    for acked in _ACKED.findall(output):
        found["operations"] += int(acked)
    return found


def _world_counts(output: str) -> Counter[str]:
    found = Counter[str]()
    for passed, failed, simulated_s, faults, operations in _WORLD.findall(output):
        found["seeds"] += int(passed) + int(failed)
        found["simulated_s"] += int(simulated_s)
        found["faults"] += int(faults)
        found["operations"] += int(operations)
    return found


def _chaos_counts(output: str) -> Counter[str]:
    found = Counter[str]()
    for faults, operations in _CHAOS.findall(output):
        found["scenarios"] += 1
        found["faults"] += int(faults)
        found["operations"] += int(operations.replace(",", ""))
    return found


def _mutant_counts(output: str) -> Counter[str]:
    return Counter(mutants=sum(map(int, _PLANTED.findall(output))))


def _fuzz_counts(output: str) -> Counter[str]:
    return Counter(inputs=sum(map(int, _INPUTS.findall(output))))


SOURCES: Final[Mapping[str, WorkSource]] = {
    source.name: source
    for source in (
        WorkSource("core", 3, _core, _seed_counts),
        WorkSource("ha", 1, _ha, _seed_counts),
        WorkSource("world", 4, _world, _world_counts, _world_missing),
        WorkSource("chaos", 4, _chaos, _chaos_counts),
        WorkSource("mutants", 1, _mutants, _mutant_counts),
        WorkSource("fuzz", 3, _fuzz, _fuzz_counts),
    )
}
"""By name, in the order in which they begin."""
