"""The fault plan: data, drawn from the seed before the run, so that it can be shrunk.

Owns which fault strikes when; must not know how. A fault names its victim by number or as "the
leader of that moment", since faults that follow the leader find most defects.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import NamedTuple

from simulation.raft.options import SimulatorOptions

_RELAPSE_ELECTIONS = 8
"""Time-outs between two relapses; each relapse takes about as long."""
LEADER = 0
"""Used in place of a node: the leader at the time of the fault."""


class Fault(NamedTuple):
    """One fault. The meaning of `number` depends on the kind: a mask of nodes, a percentage, a
    count."""

    at_us: int
    kind: str
    node: int
    duration_us: int
    number: int


def draw_plan(options: SimulatorOptions) -> list[Fault]:
    """Draw the faults of a run in order of time."""
    faults = _draw_kinds(options, options.fault_kinds, 0x5EED_F00D)
    if options.disk_kinds:
        faults += _draw_kinds(options, options.disk_kinds, 0xD15C_F00D)
        faults.sort(key=lambda fault: fault.at_us)
    if options.copy_kinds:
        faults += _draw_kinds(options, options.copy_kinds, 0xC0B1_F00D)
        faults.sort(key=lambda fault: fault.at_us)
    if options.total_loss and options.relapses:
        rarely = replace(options, fault_gap_us=_RELAPSE_ELECTIONS * options.election_us)
        faults += _draw_kinds(rarely, ("relapse",), 0x4E1A_F00D)
        faults.sort(key=lambda fault: fault.at_us)
    return faults


def _draw_kinds(options: SimulatorOptions, kinds: tuple[str, ...], salt: int) -> list[Fault]:
    random = Random(options.seed ^ salt)
    faults: list[Fault] = []
    at_us = 0
    if not kinds:
        return faults
    while True:
        at_us += 1 + int(random.expovariate(1 / options.fault_gap_us))
        if at_us >= options.duration_us:
            return faults
        kind = random.choice(kinds)
        node = LEADER if random.random() < 0.4 else random.randint(1, options.voter_count + 2)
        duration_us = int(options.election_us * random.choice((0.05, 0.5, 1.5, 4)))
        faults.append(Fault(at_us, kind, node, duration_us, random.getrandbits(16)))
