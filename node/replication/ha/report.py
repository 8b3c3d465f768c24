"""The report of a replica on its slaves, for status, metrics and the controller.

Owns the report and how it is made; must not know its readers, nor change any state.
"""

from __future__ import annotations

from typing import NamedTuple

from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import HaRole


class SlaveReport(NamedTuple):
    """A serving master's view of another replica; at any other replica all but `is_connected` is
    unknown."""

    replica_id: int
    is_connected: bool
    """Whether there is a link that it dialled and identified itself on."""
    acked: int
    """Position up to which it has synced everything; -1: unknown."""
    lag_size_bytes: int
    """Bytes of the master's log that it lacks; -1: unknown."""
    is_in_sync: bool
    """Whether it counts as a copy and holds everything that readers see."""
    caught_up_ms: int
    """When it last held the whole log of the master, on the clock of `HaState.now_ms`; 0:
    never."""


class CaughtUp:
    """When each replica last held the whole log of the master, from repeated looks."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, int]] = {}
        """By replica: the end of the log at an earlier look, and the time of that look."""
        self._caught_up_ms: dict[int, int] = {}

    def clear(self) -> None:
        """Forget all looks, since a new epoch begins: they say nothing about it."""
        self._marks.clear()
        self._caught_up_ms.clear()

    def look(self, state: HaState) -> None:
        """Compare the acks of replicas with the end of the log at an earlier look."""
        for replica_id in state.settings.replica_ids:
            acked = state.copies.acked(replica_id)
            end, since_ms = self._marks.get(replica_id, (state.end, state.now_ms))
            if acked is not None and acked >= end:
                self._caught_up_ms[replica_id] = since_ms
                end, since_ms = state.end, state.now_ms
            self._marks[replica_id] = end, since_ms

    def slaves(self, state: HaState) -> list[SlaveReport]:
        """Return the other replicas as of now."""
        is_master = state.role is HaRole.MASTER
        level = max(state.copies.epoch_start, state.confirm)
        connected = {link.peer for link in state.downs()}
        slaves = []
        for replica_id in state.settings.replica_ids:
            if replica_id == state.me:
                continue
            acked = state.copies.acked(replica_id) if is_master else None
            slaves.append(
                SlaveReport(
                    replica_id,
                    replica_id in connected,
                    -1 if acked is None else acked,
                    -1 if acked is None else max(0, state.end - acked),
                    acked is not None and acked >= level and replica_id in connected,
                    self._caught_up_ms.get(replica_id, 0) if is_master else 0,
                )
            )
        return slaves
