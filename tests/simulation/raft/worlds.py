"""Worlds in which nothing goes wrong unless a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.raft.options import SimulatorOptions, draw
from simulation.raft.world.world import World

EVENT_COUNT_MAX = 10**6


def calm_options(seed: int, **changes: Any) -> SimulatorOptions:
    """Return the options of five honest nodes on a fast network, with two clients."""
    calm = replace(
        draw(seed, 10**6),
        voter_count=5,
        client_count=2,
        delay_us=300,
        delay_shape="constant",
        loss=0.0,
        duplication=0.0,
        corruption=0.0,
        link_capacity=64,
        sync_us=100,
        apply_us=0,
        apply_entry_count_max=4096,
        page_cache=False,
        read_share=0.2,
        patience=1.0,
        clock_spread=False,
        fault_kinds=(),
        disk_kinds=(),
        total_loss=False,
        lease_drift_percent=None,
        cas_share=0.0,
        hint_every=0,
        relapses=False,
    )
    return replace(calm, **changes)


def run_for(world: World, elections: float) -> None:
    """Let some election time-outs pass."""
    until_us = world.now + int(elections * world.options.election_us)
    world.run(until_us=until_us, event_count_max=EVENT_COUNT_MAX)
    world.now = until_us


def run_until(world: World, is_done: Callable[[], bool], *, elections: int = 40) -> None:
    """Let time pass until something is true, at most so many election time-outs."""
    for _ in range(4 * elections):
        if is_done():
            return
        run_for(world, 0.25)
    assert is_done(), f"not after {elections} election time-outs"
