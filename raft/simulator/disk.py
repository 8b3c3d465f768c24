"""A log on a disk that forgets: what was written, what is durable, what a crash leaves.

Owns the stored log of one node, as `node.effects.Log`, and the model of fault-matrix 10.3: every
write has an id, a sync makes the ids issued before it durable, and a crash keeps all that was
synced plus any subset of the rest, the last write torn, an unsynced truncation undone. Must not
know time or Raft. Payload bytes do not exist: an entry is an index, a term, a kind and a unique
value, chained by a digest to the one before, as the real ledger chains its entries. So equal
digests mean equal prefixes, and comparing two logs costs one comparison of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from node.effects import Payload
from raft.errors import HardStateNotSavedError, PeerProtocolError
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    Index,
    SnapshotMeta,
    Term,
)
from raft.ready import EntryKind, HardState, InitialState
from raft.simulator.coverage import Coverage
from raft.simulator.verdict import InvariantError

ENTRY_SIZE_BYTES = 100
EMPTY_CHAIN = 0
"""The digest before the first entry."""


class Entry(NamedTuple):
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which nobody needs here.
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


class Image:
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
        self.entries: list[Entry] = []
        self.base_index: Index = NO_INDEX
        self.base_term: Term = NO_TERM
        self.base_chain = EMPTY_CHAIN
        self.base_configuration: ConfigurationAt | None = (
            initial.configurations[0] if initial.configurations else None
        )
        self.snapshot: SnapshotMeta | None = None
        self.snapshot_chain = EMPTY_CHAIN
        self.commit_hint: Index = NO_INDEX

    def copy(self) -> Image:
        other = Image.__new__(Image)
        for name in Image.__slots__:
            setattr(other, name, getattr(self, name))
        other.entries = list(self.entries)
        return other

    @property
    def last_index(self) -> Index:
        return self.base_index + len(self.entries)

    def chain_at(self, index: Index) -> int | None:
        """Return the digest at `index`, or None if it is not there any more or not yet."""
        at = index - self.base_index - 1
        if at < 0:
            return self.base_chain if at == -1 else None
        return self.entries[at].chain if at < len(self.entries) else None

    def holds(self, index: Index, chain: int) -> bool:
        """Return whether this image holds exactly the log that ends in (index, chain)."""
        if index < self.base_index:
            return True  # Behind a snapshot; its digest was compared when it was made.
        return self.chain_at(index) == chain


class Write(NamedTuple):
    lo: Index
    entries: list[Entry]


class Truncate(NamedTuple):
    lo: Index


class SaveHardState(NamedTuple):
    hard_state: HardState


class Install(NamedTuple):
    meta: SnapshotMeta
    chain: int


class Cut(NamedTuple):
    to: Entry
    configuration: ConfigurationAt | None


class SaveSnapshot(NamedTuple):
    meta: SnapshotMeta
    chain: int


class SaveHint(NamedTuple):
    commit: Index


Operation = Write | Truncate | SaveHardState | Install | Cut | SaveSnapshot | SaveHint


def perform(image: Image, operation: Operation) -> None:
    """Carry one operation out on an image that has all earlier ones."""
    kind = type(operation)
    if kind is Write:
        assert operation.lo == image.last_index + 1  # type: ignore[union-attr]
        image.entries += operation.entries  # type: ignore[union-attr]
    elif isinstance(operation, Truncate):
        del image.entries[operation.lo - image.base_index - 1 :]
    elif isinstance(operation, SaveHardState):
        image.hard_state = operation.hard_state
    elif isinstance(operation, SaveHint):
        image.commit_hint = operation.commit
    elif isinstance(operation, SaveSnapshot):
        image.snapshot, image.snapshot_chain = operation.meta, operation.chain
    elif isinstance(operation, Cut):
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


class Disk:
    """The log of one node. `memory` is what a read returns, `durable` what no crash can take."""

    __slots__ = (
        "checks_payload",
        "coverage",
        "done_id",
        "durable",
        "memory",
        "meta_errors",
        "pending",
        "truncated",
    )

    def __init__(self, initial: InitialState, coverage: Coverage, *, checks_payload: bool) -> None:
        self.memory = Image(initial)
        self.durable = Image(initial)
        self.pending: list[Operation] = []
        """Not yet durable, oldest first. The id of pending[0] is done_id + 1."""
        self.done_id = 0
        self.meta_errors = 0
        """Which of the next writes of term and vote fail: one bit each, the lowest is the next."""
        self.truncated: list[Entry] = []
        """First dropped entry of each truncation since the referee last looked."""
        self.checks_payload = checks_payload
        self.coverage = coverage

    def _write(self, operation: Operation) -> None:
        self.pending.append(operation)

    # The pump's log.

    def load(self) -> InitialState:
        image = self.memory
        runs: list[tuple[Index, Term]] = []
        term = -1
        configurations = [image.base_configuration] if image.base_configuration else []
        for entry in image.entries:
            if entry.term != term:
                term = entry.term
                runs.append((entry.index, term))
            if isinstance(entry.body, Configuration):
                configurations.append(ConfigurationAt(entry.index, entry.body))
        applied = image.snapshot.index if image.snapshot is not None else NO_INDEX
        return InitialState(
            image.hard_state,
            image.base_index,
            image.base_term,
            image.last_index,
            tuple(runs),
            tuple(configurations),
            max(image.commit_hint, applied),
            applied,
            None,
            image.snapshot,
        )

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        image = self.memory
        assert index == image.last_index + 1, f"append {index} after {image.last_index}"
        before = image.entries[-1].chain if image.entries else image.base_chain
        entry = Entry(index, term, kind, body, chain_of(before, term, kind, body), before)
        image.entries.append(entry)
        self._write(Write(index, [entry]))

    def check_raw(self, message: AppendRequest, payload: Payload) -> None:
        assert isinstance(payload, list), f"payload {payload!r}"
        if not payload or payload[0].index != message.prev_index + 1:
            raise PeerProtocolError(message.sender, "the payload begins elsewhere")
        if payload[-1].index != message.hi - 1:
            raise PeerProtocolError(message.sender, "the payload ends elsewhere")
        if not self.checks_payload:
            return
        before = payload[0].previous_chain
        for entry in payload:
            if entry.previous_chain != before:
                raise PeerProtocolError(message.sender, f"chain broken at {entry.index}")
            before = chain_of(before, entry.term, entry.kind, entry.body)
            if before != entry.chain:
                raise PeerProtocolError(message.sender, f"digest of {entry.index} is wrong")

    def write_raw(self, lo: Index, hi: Index, payload: Payload, payload_lo: Index) -> None:
        assert isinstance(payload, list), f"payload {payload!r}"
        image = self.memory
        assert lo == image.last_index + 1, f"write {lo} after {image.last_index}"
        written = payload[lo - payload_lo : hi - payload_lo]
        before = image.entries[-1].chain if image.entries else image.base_chain
        if written[0].previous_chain != before:
            raise InvariantError("I3", f"entry {lo} was accepted after another prefix")
        image.entries += written
        self._write(Write(lo, written))

    def read_raw(self, lo: Index, hi: Index) -> Payload:
        image = self.memory
        assert image.base_index < lo < hi <= image.last_index + 1, f"read [{lo}, {hi})"
        at = lo - image.base_index - 1
        return image.entries[at : at + hi - lo]

    def truncate_from(self, lo: Index) -> None:
        image = self.memory
        at = lo - image.base_index - 1
        assert 0 <= at < len(image.entries), f"truncate from {lo}, log ends {image.last_index}"
        self.truncated.append(image.entries[at])
        self.coverage.hit("truncation")
        if at < len(image.entries) - 1:
            self.coverage.hit("truncation_of_many")
        if any(isinstance(entry.body, Configuration) for entry in image.entries[at:]):
            self.coverage.hit("configuration_truncated")
        del image.entries[at:]
        self._write(Truncate(lo))

    def save_hard_state(self, hard_state: HardState) -> None:
        fails = self.meta_errors & 1
        self.meta_errors >>= 1
        if fails:
            self.coverage.hit("meta_write_failed")
            raise HardStateNotSavedError("simulated")
        self.memory.hard_state = hard_state
        self._write(SaveHardState(hard_state))

    def install_snapshot(self, meta: SnapshotMeta, payload: Payload) -> None:
        assert isinstance(payload, int), f"snapshot state {payload!r}"
        operation = Install(meta, payload)
        perform(self.memory, operation)
        self._write(operation)

    def position_of(self, index: Index, /) -> int:
        return index * ENTRY_SIZE_BYTES

    # What the shell does beside the pump.

    def save_snapshot(self, meta: SnapshotMeta) -> None:
        """Write a snapshot of the state at `meta.index`; durable with the next sync."""
        chain = self.memory.chain_at(meta.index)
        assert chain is not None, f"no entry {meta.index} to take a snapshot at"
        operation = SaveSnapshot(meta, chain)
        perform(self.memory, operation)
        self._write(operation)

    def save_hint(self, commit: Index) -> None:
        """Remember how far entries were applied, so that a restart need not ask."""
        self.memory.commit_hint = commit
        self._write(SaveHint(commit))

    def cut(self, index: Index) -> None:
        """Drop the head of the log through `index`."""
        image = self.memory
        snapshot = self.durable.snapshot
        if snapshot is None or snapshot.index < index:
            raise InvariantError("R32", f"cut through {index}, durable is only {snapshot}")
        dropped = image.entries[: index - image.base_index]
        configuration = image.base_configuration
        for entry in dropped:
            if isinstance(entry.body, Configuration):
                configuration = ConfigurationAt(entry.index, entry.body)
        operation = Cut(dropped[-1], configuration)
        perform(image, operation)
        self._write(operation)
        self.coverage.hit("log_cut")

    # Syncs and crashes.

    def sync_id(self) -> int:
        """Return the id of the newest write: a sync that begins now covers all up to it."""
        return self.done_id + len(self.pending)

    def sync_done(self, write_id: int) -> None:
        """A sync that covers `write_id` has ended."""
        count = write_id - self.done_id
        if count <= 0:
            return
        durable = self.durable
        for operation in self.pending[:count]:
            perform(durable, operation)
        del self.pending[:count]
        self.done_id = write_id

    def process_died(self) -> None:
        """Only the process ended: the page cache keeps everything, and recovery syncs it."""
        self.sync_done(self.sync_id())

    def power_lost(self, random: Random) -> None:
        """Keep what was synced and any subset of the rest; then recover as the real store does."""
        survivors = self._survivors(random)
        self.done_id = self.sync_id()
        lost = len(self.pending) - len(survivors)
        if lost:
            self.coverage.hit("crash_lost_unsynced")
        undone = any(isinstance(op, Truncate) and op not in survivors for op in self.pending)
        if undone:
            self.coverage.hit("crash_undid_truncation")
        self.pending.clear()
        recover(self.durable, survivors, self.coverage)
        self.memory = self.durable.copy()

    def _survivors(self, random: Random) -> list[Operation]:
        pending = self.pending
        if not pending:
            return []
        mode = random.randrange(4)
        at = random.randrange(len(pending) + 1)
        if mode == 0:
            kept: Iterable[Operation] = pending[:at]
        elif mode == 1:
            kept = pending[at:]
        elif mode == 2:
            kept = [operation for operation in pending if random.random() < 0.5]
        else:
            kept = []
        survivors: list[Operation] = []
        for operation in kept:
            if isinstance(operation, Write) and random.random() < 0.3:
                whole = random.randrange(len(operation.entries) + 1)
                if whole < len(operation.entries):
                    self.coverage.hit("crash_tore_a_write")
                survivors.append(Write(operation.lo, operation.entries[:whole]))
            else:
                survivors.append(operation)
        return _without_orphans(pending, survivors)

    def wipe(self, initial: InitialState) -> None:
        """Replace the disk by an empty one."""
        self.done_id = self.sync_id()
        self.pending.clear()
        self.durable = Image(initial)
        self.memory = Image(initial)


def _without_orphans(pending: list[Operation], survivors: list[Operation]) -> list[Operation]:
    """A new log is written to new files, found only once the snapshot's rename survived: without
    it everything written after it, except term and vote, is gone too."""
    lost_install = next(
        (op for op in pending if isinstance(op, Install) and op not in survivors), None
    )
    if lost_install is None:
        return survivors
    later = pending[pending.index(lost_install) :]
    return [op for op in survivors if op not in later or isinstance(op, SaveHardState)]


def recover(image: Image, survivors: Sequence[Operation], coverage: Coverage) -> None:
    """Lay the surviving writes over a durable image and scan it, as recovery does.

    The scan ends at the first entry that is missing or does not chain to the one before, so old
    entries behind a truncation that is half there are never taken for the log."""
    slots = {entry.index: entry for entry in image.entries}
    durable_last = image.last_index
    latest: list[SaveSnapshot | SaveHint] = []
    for operation in survivors:
        if isinstance(operation, SaveSnapshot | SaveHint):
            latest.append(operation)
        elif isinstance(operation, Write):
            slots.update((entry.index, entry) for entry in operation.entries)
        elif isinstance(operation, Truncate):
            slots = {index: entry for index, entry in slots.items() if index < operation.lo}
        elif isinstance(operation, Cut):
            image.base_index, image.base_term = operation.to.index, operation.to.term
            image.base_chain, image.base_configuration = operation.to.chain, operation.configuration
        else:
            perform(image, operation)
            if isinstance(operation, Install):
                slots.clear()
    image.entries = []
    chain = image.base_chain
    while (entry := slots.get(image.last_index + 1)) is not None and entry.previous_chain == chain:
        image.entries.append(entry)
        chain = entry.chain
    for saved in latest:
        # What speaks of the log is published only behind a sync of the log it speaks of.
        if isinstance(saved, SaveSnapshot):
            if image.chain_at(saved.meta.index) == saved.chain:
                perform(image, saved)
        elif saved.commit <= durable_last:
            perform(image, saved)
    last_term = image.entries[-1].term if image.entries else image.base_term
    hard_state = image.hard_state
    if last_term > hard_state.term:
        # The entries reached the disk and the term did not; nothing of that term was revealed, so
        # no vote was given in it.
        coverage.hit("crash_kept_entries_without_their_term")
        image.hard_state = hard_state._replace(term=last_term, vote=0)
