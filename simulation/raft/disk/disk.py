"""A log on a disk that forgets: written state, durable state, and the remains after a crash.

Owns the stored log of one node, as `raft.pump.effects.PumpLog`, and the model of fault-matrix 10.3:
every write has an id, a sync makes the ids issued before it durable, and a crash keeps all synced
writes plus any subset of the rest, the last write torn, an unsynced truncation undone. Must not
know time or Raft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

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
from simulation.raft.coverage import Coverage
from simulation.raft.disk.image import (
    DirectoryEntry,
    DiskImage,
    DiskWrite,
    FileCut,
    Install,
    Operation,
    SaveHardState,
    SaveHint,
    SaveSnapshot,
    Truncate,
    chain_of,
    perform,
)
from simulation.raft.verdict import InvariantError

ENTRY_SIZE_BYTES = 100


class Disk:
    """The log of one node. `memory` is the image for reads, `durable` the part no crash can
    take."""

    __slots__ = (
        "checks_payload",
        "coverage",
        "done_id",
        "durable",
        "is_full",
        "memory",
        "meta_errors",
        "pending",
        "truncated",
    )

    def __init__(self, initial: InitialState, coverage: Coverage, *, checks_payload: bool) -> None:
        self.memory = DiskImage(initial)
        self.durable = DiskImage(initial)
        self.pending: list[Operation] = []
        """Writes not yet durable, oldest first. The id of pending[0] is done_id + 1."""
        self.done_id = 0
        self.meta_errors = 0
        """Bit mask of the next writes of term and vote that fail; the lowest bit is the next."""
        self.truncated: list[DirectoryEntry] = []
        """First dropped entry of each truncation since the referee last looked."""
        self.is_full = False
        """Whether there is no room for entries; term, vote and a leader's own entries have a
        reserve."""
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
            self._snapshot_of(image),
        )

    def _snapshot_of(self, image: DiskImage) -> SnapshotMeta | None:
        """Return the snapshot that the log may be cut by: a durable one, or the one it begins with.

        A core that begins again in a running process must not take a saved snapshot for durable."""
        durable = self.durable.snapshot
        if durable is not None and durable.index >= image.base_index:
            return durable
        if image.base_configuration is None or image.base_index < 0:
            return None
        return SnapshotMeta(image.base_index, image.base_term, image.base_configuration)

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        image = self.memory
        assert index == image.last_index + 1, f"append {index} after {image.last_index}"
        assert kind is not EntryKind.DATA or not self.is_full, f"append of {index} to a full disk"
        before = image.entries[-1].chain if image.entries else image.base_chain
        entry = DirectoryEntry(index, term, kind, body, chain_of(before, term, kind, body), before)
        image.entries.append(entry)
        self._write(DiskWrite(index, [entry]))

    def check_raw(
        self, message: AppendRequest, payload: Payload, held: Index
    ) -> list[DirectoryEntry]:
        assert isinstance(payload, list), f"payload {payload!r}"
        if not payload or payload[0].index != message.prev_index + 1:
            raise PeerProtocolError(message.sender, "the payload begins elsewhere")
        if payload[-1].index != message.hi - 1:
            raise PeerProtocolError(message.sender, "the payload ends elsewhere")
        if not self.checks_payload:
            return payload
        before = payload[0].previous_chain
        for entry in payload:
            if entry.previous_chain != before:
                raise PeerProtocolError(message.sender, f"chain broken at {entry.index}")
            before = chain_of(before, entry.term, entry.kind, entry.body)
            if before != entry.chain:
                raise PeerProtocolError(message.sender, f"digest of {entry.index} is wrong")
        if held > message.prev_index:
            here, there = self.memory.chain_at(held), payload[held - payload[0].index].chain
            if here != there:
                detail = f"entries through {held} differ from those here"
                raise ForeignChainError(message.sender, detail, held, there)
        return payload

    def chain_at(self, index: Index) -> int | None:
        return self.memory.chain_at(index)

    def write_raw(self, lo: Index, hi: Index, checked: Checked) -> None:
        assert isinstance(checked, list), f"checked {checked!r}"
        assert not self.is_full, f"write of [{lo}, {hi}) to a full disk"
        image = self.memory
        assert lo == image.last_index + 1, f"write {lo} after {image.last_index}"
        first = checked[0].index
        written = checked[lo - first : hi - first]
        before = image.entries[-1].chain if image.entries else image.base_chain
        if written[0].previous_chain != before:
            raise InvariantError("I3", f"entry {lo} was accepted after another prefix")
        image.entries += written
        self._write(DiskWrite(lo, written))

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

    # The shell's work beside the pump.

    def save_snapshot(self, meta: SnapshotMeta) -> None:
        """Write a snapshot of the state at `meta.index`; durable with the next sync."""
        chain = self.memory.chain_at(meta.index)
        assert chain is not None, f"no entry {meta.index} to take a snapshot at"
        operation = SaveSnapshot(meta, chain)
        perform(self.memory, operation)
        self._write(operation)

    def save_hint(self, commit: Index) -> None:
        """Remember how far entries were applied, which saves a restart from asking."""
        chain = self.memory.chain_at(commit)
        assert chain is not None, f"no entry {commit} to remember"
        operation = SaveHint(commit, chain)
        perform(self.memory, operation)
        self._write(operation)

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
        operation = FileCut(dropped[-1], configuration)
        perform(image, operation)
        self._write(operation)
        self.coverage.hit("log_cut")

    # Syncs and crashes.

    def sync_id(self) -> int:
        """Return the id of the newest write: a sync that begins now covers all writes up to it."""
        return self.done_id + len(self.pending)

    def sync_done(self, write_id: int) -> None:
        """Make all writes through `write_id` durable: a sync that covers it has ended."""
        count = write_id - self.done_id
        if count <= 0:
            return
        durable = self.durable
        for operation in self.pending[:count]:
            perform(durable, operation)
        del self.pending[:count]
        self.done_id = write_id

    def process_died(self) -> None:
        """Note that only the process ended: the page cache is kept, and recovery syncs it."""
        self.sync_done(self.sync_id())

    def power_lost(self, random: Random) -> None:
        """Keep all synced writes and any subset of the rest; then recover as the real store
        does."""
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
            if isinstance(operation, DiskWrite) and random.random() < 0.3:
                whole = random.randrange(len(operation.entries) + 1)
                if whole < len(operation.entries):
                    self.coverage.hit("crash_tore_a_write")
                survivors.append(DiskWrite(operation.lo, operation.entries[:whole]))
            else:
                survivors.append(operation)
        return _without_orphans(pending, survivors)

    def wipe(self, initial: InitialState) -> None:
        """Replace the disk by an empty one."""
        self.done_id = self.sync_id()
        self.pending.clear()
        self.durable = DiskImage(initial)
        self.memory = DiskImage(initial)

    def put_back(self, image: DiskImage) -> None:
        """Replace everything by an earlier image of this disk."""
        self.done_id = self.sync_id()
        self.pending.clear()
        self.durable = image.copy()
        self.memory = image.copy()


def _without_orphans(pending: list[Operation], survivors: list[Operation]) -> list[Operation]:
    """Drop writes to new files if the snapshot install before them was lost.

    A new log is written to new files, found only once the snapshot's rename survived: without it
    all later writes, except of term and vote, are gone too."""
    lost_install = next(
        (op for op in pending if isinstance(op, Install) and op not in survivors), None
    )
    if lost_install is None:
        return survivors
    later = pending[pending.index(lost_install) :]
    return [op for op in survivors if op not in later or isinstance(op, SaveHardState)]


def recover(image: DiskImage, survivors: Sequence[Operation], coverage: Coverage) -> None:
    """Lay the surviving writes over a durable image and scan it, as recovery does.

    The scan ends at the first entry that is missing or does not chain to the one before. So old
    entries behind a half-written truncation never count as part of the log."""
    slots = {entry.index: entry for entry in image.entries}
    latest: list[SaveSnapshot | SaveHint] = []
    for operation in survivors:
        if isinstance(operation, SaveSnapshot):
            latest.append(operation)
        elif isinstance(operation, SaveHint):
            # It is published only behind a sync of the log that it describes.
            if image.chain_at(operation.commit) == operation.chain:
                latest.append(operation)
        elif isinstance(operation, DiskWrite):
            slots.update((entry.index, entry) for entry in operation.entries)
        elif isinstance(operation, Truncate):
            slots = {index: entry for index, entry in slots.items() if index < operation.lo}
        elif isinstance(operation, FileCut):
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
        # A snapshot, too.
        if isinstance(saved, SaveHint) or image.chain_at(saved.meta.index) == saved.chain:
            perform(image, saved)
    last_term = image.entries[-1].term if image.entries else image.base_term
    hard_state = image.hard_state
    if last_term > hard_state.term:
        # The entries reached the disk and the term did not; no message revealed that term, so no
        # vote was given in it.
        coverage.hit("crash_kept_entries_without_their_term")
        image.hard_state = hard_state._replace(term=last_term, vote=0)
