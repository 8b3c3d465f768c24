"""The replica pump: input, core, log, effects. The same code runs in production and in the simulator.

Owns the order in which a replica's work is done: write, send what promises nothing, sync, release what
promises something, apply. Knows no socket, event loop, thread or clock; every method returns at once.
The shell (asyncio driver or simulator) feeds inputs, calls `pump()` once per turn and carries the
effects out:

    effects = replica.pump()
    send effects.send                      # may leave before anything is synced
    if effects.flush is not None:          # start or queue one sync of everything written so far
        ... later, from any turn: replica.on_durable(effects.flush); replica.pump()
    apply effects.apply; replica.on_applied(hi - 1)
    then answer effects.completed and effects.reads

One sync may serve many tickets: tickets are consecutive, and `on_durable(n)` covers all up to n.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from raft.messages import Configuration, Index, Message, SnapshotMeta, Term, TermRun
from raft.ready import EntryKind, HardState, InitialState

Ticket: TypeAlias = int
Payload: TypeAlias = object
"""Raw bytes of a range of entries, opaque to the pump (a memoryview, or a tuple in the simulator)."""


class Log(Protocol):
    """The stored log, as the pump sees it. All writes are buffered: a later sync makes them durable.

    An exception from any method but `save_hard_state` means that memory and disk may differ: the shell
    must end the process (house-style 7).
    """

    def load(self) -> InitialState:
        """Return what is stored now, unsynced writes included. Called at start and after a failed
        save_hard_state."""
        ...

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        """Write one entry this leader created, right after the last one.

        `body` is what the proposer gave for DATA, None for NO_OP, a Configuration for CONFIGURATION.
        """
        ...

    def write_raw(
        self, lo: Index, hi: Index, payload: Payload, payload_lo: Index, runs: Sequence[TermRun]
    ) -> None:
        """Write entries [lo, hi) as a peer sent them; `payload` begins with entry `payload_lo` <= lo.

        `runs` are the terms the peer claims for [payload_lo, hi). Checks header, chain and body
        checksums and terms before the first byte is written; a mismatch raises PeerProtocolError with
        nothing written.
        """
        ...

    def read_raw(self, lo: Index, hi: Index) -> Payload:
        """Return the bytes of entries [lo, hi) for sending, valid until the shell has sent them."""
        ...

    def truncate_from(self, lo: Index) -> None:
        """Drop entry `lo` and all after it, so that they cannot come back after a sync and crash."""
        ...

    def save_hard_state(self, hard_state: HardState) -> None:
        """Replace term, vote and standing. Raises HardStateNotSavedError: the old ones still stand."""
        ...

    def install_snapshot(self, meta: SnapshotMeta, payload: Payload) -> None:
        """Replace state and whole log by a received, verified snapshot: all or, after a crash, nothing."""
        ...

    def position_of(self, index: Index, /) -> int:
        """Return where entry `index` starts; for last index + 1 the end (raft.ready.EntryPositions)."""
        ...


class Resolution(Enum):
    """What became of a proposal whose caller waits."""

    COMMITTED = "committed"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


class Completion(NamedTuple):
    """The proposal registered as `waiter` at (index, term) is decided."""

    waiter: object
    index: Index
    term: Term
    resolution: Resolution


class Outgoing(NamedTuple):
    """A message and, for an append with entries, the raw bytes. Snapshots are streamed by the shell."""

    message: Message
    payload: Payload | None


__all__ = ["Completion", "Configuration", "Log", "Outgoing", "Payload", "Resolution", "Ticket"]
