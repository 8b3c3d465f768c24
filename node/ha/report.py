"""What a replica says of itself and of its slaves: for status, metrics and the controller.

Types only; a picture, not kept up to date.
"""

from __future__ import annotations

from typing import NamedTuple

from node.ha.types import Binding, Mode, Role, Standing


class SlaveReport(NamedTuple):
    """What a serving master knows of another replica; at any other replica all but `is_connected`
    is unknown."""

    replica_id: int
    is_connected: bool
    """A link that it dialled is there, and it said who it is."""
    acked: int
    """It holds everything below, synced; -1: unknown."""
    lag_size_bytes: int
    """What it lacks of the master's log; -1: unknown."""
    is_in_sync: bool
    """It counts as a copy and holds everything that readers see."""
    caught_up_ms: int
    """When it last had all that the master had, on the clock of `HaReport.now_ms`; 0: never."""


class HaReport(NamedTuple):
    """One replica, as of now."""

    replica_id: int
    role: Role
    bound: Binding
    """The epoch it takes part in."""
    highest_seen: int
    """The highest epoch number it ever heard of: a new one has to be above it."""
    master_id: int
    """Who serves, as far as it knows; 0: nobody."""
    standing: Standing
    mode: Mode
    """How it acks, or would."""
    copies: int
    replica_ids: tuple[int, ...]
    log_epoch: int
    """Epoch of the last byte, and with the end what a fence compares."""
    first: int
    end: int
    durable: int
    confirm: int
    """Readers here see up to it."""
    epoch_start: int
    """Where the epoch of a serving master begins; -1 elsewhere."""
    in_sync: tuple[int, ...]
    """Of a serving master: itself and every replica that holds all that readers see."""
    slaves: tuple[SlaveReport, ...]
    now_ms: int
