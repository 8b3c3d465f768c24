"""A stored log in memory that forgets what was not synced when told to crash."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from raft.errors import ForeignChainError, HardStateNotSavedError, PeerProtocolError
from raft.messages import (
    NO_INDEX,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    Index,
    SnapshotMeta,
    Term,
)
from raft.pump.effects import Checked, Payload
from raft.ready import EntryKind, HardState, InitialState

ENTRY_SIZE_BYTES = 100


def runs_of(terms: Sequence[Term], lo: Index = 0) -> tuple[tuple[Index, Term], ...]:
    """Return the runs of entries of these terms that begin at index `lo`."""
    return tuple(
        (lo + at, term) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term
    )


class StoredEntry(NamedTuple):
    index: Index  # type: ignore[assignment]
    term: Term
    kind: EntryKind
    body: object


class Image(NamedTuple):
    """Everything on the disk at one moment."""

    hard_state: HardState
    entries: tuple[StoredEntry, ...]
    base_index: Index
    base_term: Term
    base_configuration: ConfigurationAt | None
    snapshot: SnapshotMeta | None
    snapshot_state: object


class MemoryLog:
    """Implements raft.pump.effects.PumpLog. `sync()` makes the present durable, `crash()` returns
    to it."""

    def __init__(self, initial: InitialState | None = None) -> None:
        state = initial or InitialState()
        self.hard_state = state.hard_state
        self.base_index = state.base_index
        self.base_term = state.base_term
        self.entries: list[StoredEntry] = []
        self.base_configuration = state.configurations[0] if state.configurations else None
        self.snapshot = state.snapshot
        self.snapshot_state: object = None
        self.applied: Index = state.applied
        self.commit_hint: Index = state.commit
        self.fails_hard_state = False
        self.operations: list[str] = []
        at, runs = state.base_index + 1, list(state.runs)
        for position, (first, term) in enumerate(runs):
            run_hi = runs[position + 1][0] if position + 1 < len(runs) else state.last_index + 1
            assert first == at
            for index in range(first, run_hi):
                self.entries.append(StoredEntry(index, term, EntryKind.DATA, f"{index}@{term}"))
            at = run_hi
        self._durable = self.image()

    def image(self) -> Image:
        return Image(
            self.hard_state,
            tuple(self.entries),
            self.base_index,
            self.base_term,
            self.base_configuration,
            self.snapshot,
            self.snapshot_state,
        )

    def sync(self, image: Image | None = None) -> None:
        """Make the present durable, or what was there when a sync began."""
        self.operations.append("sync")
        self._durable = image or self.image()

    def crash(self) -> None:
        """Lose everything since the last sync."""
        image = self._durable
        self.hard_state = image.hard_state
        self.entries = list(image.entries)
        self.base_index, self.base_term = image.base_index, image.base_term
        self.base_configuration = image.base_configuration
        self.snapshot, self.snapshot_state = image.snapshot, image.snapshot_state
        self.applied = self.base_index

    @property
    def last_index(self) -> Index:
        return self.entries[-1].index if self.entries else self.base_index

    @property
    def durable_hard_state(self) -> HardState:
        return self._durable.hard_state

    @property
    def durable_last_index(self) -> Index:
        entries = self._durable.entries
        return entries[-1].index if entries else self._durable.base_index

    def terms(self) -> list[Term]:
        return [entry.term for entry in self.entries]

    def bodies(self) -> list[object]:
        return [entry.body for entry in self.entries if entry.kind is EntryKind.DATA]

    # The protocol.

    def load(self) -> InitialState:
        runs: list[tuple[Index, Term]] = []
        configurations = [self.base_configuration] if self.base_configuration else []
        for entry in self.entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
            if isinstance(entry.body, Configuration):
                configurations.append(ConfigurationAt(entry.index, entry.body))
        return InitialState(
            self.hard_state,
            self.base_index,
            self.base_term,
            self.last_index,
            tuple(runs),
            tuple(configurations),
            max(self.applied, self.commit_hint),
            self.applied,
            None,
            self.snapshot,
        )

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        assert index == self.last_index + 1, f"append {index} after {self.last_index}"
        self.operations.append(f"append {index}@{term}")
        self.entries.append(StoredEntry(index, term, kind, body))

    def check_raw(self, message: AppendRequest, payload: Payload, held: Index) -> Checked:
        assert isinstance(payload, tuple)
        if [entry.index for entry in payload] != list(range(message.prev_index + 1, message.hi)):
            raise PeerProtocolError(message.sender, "payload does not cover the range")
        for entry in payload[: held - message.prev_index]:
            if entry != self.entries[entry.index - self.base_index - 1]:
                raise ForeignChainError(message.sender, "another one", entry.index, entry.body)
        return payload

    def chain_at(self, index: Index) -> int | None:
        if self.base_index > NO_INDEX or index > self.last_index:
            return None  # A cut log does not know what it was made of.
        entries = self.entries[: index + 1]
        return zlib.crc32(repr([(entry.term, entry.body) for entry in entries]).encode())

    def write_raw(self, lo: Index, hi: Index, checked: Checked) -> None:
        assert isinstance(checked, tuple)
        assert lo == self.last_index + 1, f"write {lo} after {self.last_index}"
        self.operations.append(f"write {lo}..{hi - 1}")
        first = checked[0].index
        self.entries.extend(checked[lo - first : hi - first])

    def read_raw(self, lo: Index, hi: Index) -> Payload:
        assert self.base_index < lo < hi <= self.last_index + 1, f"read [{lo}, {hi})"
        at = lo - self.base_index - 1
        return tuple(self.entries[at : at + hi - lo])

    def truncate_from(self, lo: Index) -> None:
        self.operations.append(f"truncate {lo}")
        del self.entries[lo - self.base_index - 1 :]

    def save_hard_state(self, hard_state: HardState) -> None:
        if self.fails_hard_state:
            raise HardStateNotSavedError("no space left")
        self.operations.append(f"hard_state {hard_state.term}/{hard_state.vote}")
        self.hard_state = hard_state

    def install_snapshot(self, meta: SnapshotMeta, payload: Payload) -> None:
        self.operations.append(f"install {meta.index}@{meta.term}")
        self.entries.clear()
        self.base_index, self.base_term = meta.index, meta.term
        self.base_configuration = meta.configuration_at
        self.snapshot, self.snapshot_state = meta, payload
        self.applied = meta.index

    def position_of(self, index: Index, /) -> int:
        assert self.base_index < index <= self.last_index + 1, f"position of {index}"
        return index * ENTRY_SIZE_BYTES

    # What the shell does beside the pump.

    def cut(self, index: Index) -> None:
        """Drop the log through `index`, which a durable snapshot covers."""
        kept = [entry for entry in self.entries if entry.index > index]
        dropped = [entry for entry in self.entries if entry.index <= index]
        for entry in dropped:
            if isinstance(entry.body, Configuration):
                self.base_configuration = ConfigurationAt(entry.index, entry.body)
        if dropped:
            self.base_index, self.base_term = dropped[-1].index, dropped[-1].term
        self.entries = kept

    def __repr__(self) -> str:
        return f"MemoryLog({self.base_index}, {self.terms()})"
