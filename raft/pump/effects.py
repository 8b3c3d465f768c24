"""The two ports of the replica pump: the log it writes to, and the effects it hands to its shell.

Types only. The real ledger and the simulator's in-memory log both implement `PumpLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from raft.messages import NO_INDEX, AppendRequest, Index, Message, SnapshotMeta, Term
from raft.ready import (
    EntryKind,
    EntryPositions,
    HardState,
    InitialState,
    ReadConfirmed,
    RoleChange,
)

Ticket: TypeAlias = int
Payload: TypeAlias = object
"""Raw bytes of a range of entries, opaque to the pump (a memoryview, or a tuple in the
simulator)."""
Checked: TypeAlias = object
"""Entries of a peer that `PumpLog.check_raw` accepted, for `PumpLog.write_raw`: a value that is
opaque to the pump and never changed."""


class PumpLog(EntryPositions, Protocol):
    """The stored log, as the pump sees it. All writes are buffered: a later sync makes them
    durable.

    An exception from any method but `save_hard_state` means that memory and disk may differ: the
    shell must end the process (house-style 7)."""

    def load(self) -> InitialState:
        """Return the stored state, unsynced writes included.

        Called at start and after a failed save_hard_state."""

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        """Write one entry this leader created, right after the last one.

        The proposer reserved space for it, so a failure here is fatal. `body` is the proposer's for
        DATA, None for NO_OP, a Configuration for CONFIGURATION."""

    def check_raw(self, message: AppendRequest, payload: Payload, held: Index) -> Checked | None:
        """Check a received payload against its message before the core sees either.

        Headers (magic, index, term against `message.runs`, size), checksums and the chain inside
        the payload. Entries through `held` are stored here with equal terms, so they must be equal
        (ForeignChainError). Returns None for entries that the core will not take. Raises
        PeerProtocolError; nothing is written."""

    def chain_at(self, index: Index) -> int | None:
        """Return the content of this log through an entry, as one number: equal ones, equal logs.

        None without that entry, and where damage keeps this log from answering for it."""

    def write_raw(self, lo: Index, hi: Index, checked: Checked) -> None:
        """Write entries [lo, hi) of those that `check_raw` accepted; they may begin before `lo`.

        The entry before `lo` is stored already.
        """

    def read_raw(self, lo: Index, hi: Index) -> Payload:
        """Return the bytes of entries [lo, hi) for sending, valid until the shell has sent them."""

    def truncate_from(self, lo: Index) -> None:
        """Drop entry `lo` and all after it, so that they cannot come back after a sync and
        crash."""

    def save_hard_state(self, hard_state: HardState) -> None:
        """Replace term, vote and standing. Raises HardStateNotSavedError: the old ones still
        stand."""

    def install_snapshot(self, meta: SnapshotMeta, payload: Payload) -> None:
        """Replace state and whole log by a received, verified snapshot; atomic across a crash."""


class Resolution(Enum):
    """Outcome of a proposal whose caller waits."""

    COMMITTED = "committed"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


class Completion(NamedTuple):
    """Decision on the proposal registered as `waiter` at (index, term)."""

    waiter: object
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    resolution: Resolution


class Outgoing(NamedTuple):
    """A message and, for an append with entries, the raw bytes. Snapshots are streamed by the
    shell."""

    message: Message
    payload: Payload | None


class Effects:
    """Work that one turn of the pump asks for, in the order of the fields.

    Most turns ask for one or two of them, so the others cost nothing: they stay with the class, and
    what has a default cannot be changed, but only replaced."""

    role_changes: Sequence[RoleChange] = ()
    """Changes of role, term or leader; listeners hear of them before anything is sent."""
    send: Sequence[Outgoing] = ()
    """Messages that may leave before anything below happens."""
    flush: Ticket | None = None
    """Sync all writes up to now, then `on_durable` with this ticket or a later one."""
    must_sync = False
    """Whether the ticket covers term, vote or a snapshot: then a real sync is needed, also
    where entries count as durable in the page cache (`flush=async`)."""
    install: SnapshotMeta | None = None
    """Snapshot that replaced the state machine; drop entries that are not yet applied."""
    apply_lo: Index = NO_INDEX
    apply_hi: Index = NO_INDEX
    """Apply [apply_lo, apply_hi) in order, then `on_applied(apply_hi - 1)`."""
    completed: Sequence[Completion] = ()
    """Callers to answer, after applying."""
    reads: Sequence[ReadConfirmed] = ()
    """Reads to serve, each once its index is applied."""
    reads_failed: Sequence[int] = ()
    loss_from: Index = NO_INDEX


NO_EFFECTS = Effects()
"""Returned by a turn without work. Never changed."""
