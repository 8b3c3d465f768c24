"""The options that a seed draws before the start: the group, and the strength of each fault.

Owns the numbers. Times are simulated milliseconds.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from node.replication.ha.core.types import AckMode

RECORD_SIZE_BYTES = 8
HORIZON_MS = 12_000
CALM_MS = 60_000
"""Time to come to rest once all faults have ended."""


class HaSimulatorOptions(NamedTuple):
    """Options of one world."""

    replica_count: int
    copies: int
    mode: AckMode
    switches_mode: bool
    wipes: bool
    delay_ms: int
    sync_ms: int
    slow_sync: float
    crash: float
    """Chance of each fault in a round of faults, every 100 ms."""
    cut: float
    reset: float
    second_link: float
    advice: float
    window_size_bytes: int
    transfer_size_bytes: int


def draw(seed: int) -> HaSimulatorOptions:
    """Draw the options of a seed."""
    random = Random(seed)
    count, copies = random.choice([(3, 2), (3, 2), (3, 2), (3, 3), (5, 3), (5, 2), (2, 2), (4, 3)])

    def often(limit: float) -> float:
        return random.choice([0.0, limit / 4, limit])

    return HaSimulatorOptions(
        replica_count=count,
        copies=copies,
        mode=random.choice([AckMode.SYNC, AckMode.SYNC, AckMode.ASYNC]),
        switches_mode=random.random() < 0.2,
        wipes=random.random() < 0.3,
        delay_ms=random.choice([1, 5, 30]),
        sync_ms=random.choice([1, 5, 40]),
        slow_sync=random.choice([0.0, 0.1]),
        crash=often(0.2),
        cut=often(0.2),
        reset=often(0.3),
        second_link=often(0.2),
        advice=random.choice([0.05, 0.2]),
        window_size_bytes=random.choice([48, 256, 4096]),
        transfer_size_bytes=random.choice([8, 24, 1024]),
    )
