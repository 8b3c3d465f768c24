"""Contents of a simulated disk at one moment, and the writes that change it.

Owns the shape of an entry, the image of a whole disk and the effect of each kind of write. Must not
know when a write becomes durable; `disk` does. Payload bytes do not exist: an entry is an index, a
term, a kind and a unique value, chained by a digest to the one before, as the real ledger chains
its entries. So equal digests mean equal prefixes, and comparing two logs costs one comparison of
integers.
"""

from __future__ import annotations

from typing import NamedTuple

from raft.messages import (
    NO_INDEX,
    NO_TERM,
    Configuration,
    ConfigurationAt,
    Index,
    SnapshotMeta,
    Term,
)
from raft.ready import EntryKind, HardState, InitialState

EMPTY_CHAIN = 0
"""The digest before the first entry."""


class DirectoryEntry(NamedTuple):
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    kind: EntryKind
    body: object
    chain: int
    """Digest of this entry and all before it."""
    previous_chain: int


def chain_of(previous_chain: int, term: Term, kind: EntryKind, body: object) -> int:
    """Return the digest of an entry after `previous_chain`.

    Only integers are hashed: their hash does not depend on the process, unlike that of None or of a
    string."""
    return hash((previous_chain, term, int(kind), 0 if body is None else body))


class DiskImage:
    """Everything on the disk at one moment. Mutable; the durable one follows the syncs."""

    __slots__ = (
        "base_chain",
        "base_configuration",
        "base_index",
        "base_term",
        "commit_hint",
        "entries",
        "hard_state",
        "snapshot",
        "snapshot_chain",
    )

    def __init__(self, initial: InitialState) -> None:
        assert initial.last_index == NO_INDEX, "simulated logs start empty"
        self.hard_state = initial.hard_state
        self.entries: list[DirectoryEntry] = []
        self.base_index: Index = NO_INDEX
        self.base_term: Term = NO_TERM
        self.base_chain = EMPTY_CHAIN
        self.base_configuration: ConfigurationAt | None = (
            initial.configurations[0] if initial.configurations else None
        )
        self.snapshot: SnapshotMeta | None = None
        self.snapshot_chain = EMPTY_CHAIN
        self.commit_hint: Index = NO_INDEX

    def copy(self) -> DiskImage:
        other = DiskImage.__new__(DiskImage)
        for name in DiskImage.__slots__:
            setattr(other, name, getattr(self, name))
        other.entries = list(self.entries)
        return other

    @property
    def last_index(self) -> Index:
        return self.base_index + len(self.entries)

    def log_end(self) -> tuple[Term, Index]:
        """Return term and index of the end of the log, in the order in which votes compare logs."""
        last_term = self.entries[-1].term if self.entries else self.base_term
        return last_term, self.last_index

    def configuration(self) -> Configuration | None:
        """Return the newest configuration, committed or not: the one that a node uses."""
        for entry in reversed(self.entries):
            if isinstance(entry.body, Configuration):
                return entry.body
        return self.base_configuration.configuration if self.base_configuration else None

    def chain_at(self, index: Index) -> int | None:
        """Return the digest at `index`, or None if the entry is compacted or not yet there."""
        at = index - self.base_index - 1
        if at < 0:
            return self.base_chain if at == -1 else None
        return self.entries[at].chain if at < len(self.entries) else None

    def holds(self, index: Index, chain: int) -> bool:
        """Whether this image holds exactly the log that ends in (index, chain)."""
        if index < self.base_index:
            return True  # Behind a snapshot; its digest was compared when it was made.
        return self.chain_at(index) == chain


class DiskWrite(NamedTuple):
    lo: Index
    entries: list[DirectoryEntry]


class Truncate(NamedTuple):
    lo: Index


class SaveHardState(NamedTuple):
    hard_state: HardState


class Install(NamedTuple):
    meta: SnapshotMeta
    chain: int


class FileCut(NamedTuple):
    to: DirectoryEntry
    configuration: ConfigurationAt | None


class SaveSnapshot(NamedTuple):
    meta: SnapshotMeta
    chain: int


class SaveHint(NamedTuple):
    commit: Index
    chain: int


Operation = DiskWrite | Truncate | SaveHardState | Install | FileCut | SaveSnapshot | SaveHint


def perform(image: DiskImage, operation: Operation) -> None:
    """Apply one operation to an image that has all earlier ones."""
    kind = type(operation)
    if kind is DiskWrite:
        assert operation.lo == image.last_index + 1  # type: ignore[union-attr]
        image.entries += operation.entries  # type: ignore[union-attr]
    elif isinstance(operation, Truncate):
        del image.entries[operation.lo - image.base_index - 1 :]
    elif isinstance(operation, SaveHardState):
        image.hard_state = operation.hard_state
    elif isinstance(operation, SaveHint):
        image.commit_hint = max(image.commit_hint, operation.commit)
    elif isinstance(operation, SaveSnapshot):
        image.snapshot, image.snapshot_chain = operation.meta, operation.chain
    elif isinstance(operation, FileCut):
        entry = operation.to
        del image.entries[: entry.index - image.base_index]
        image.base_index, image.base_term, image.base_chain = entry.index, entry.term, entry.chain
        image.base_configuration = operation.configuration
    elif isinstance(operation, Install):
        meta = operation.meta
        image.entries.clear()
        image.base_index, image.base_term = meta.index, meta.term
        image.base_chain = image.snapshot_chain = operation.chain
        image.base_configuration, image.snapshot = meta.configuration_at, meta
        image.commit_hint = meta.index
