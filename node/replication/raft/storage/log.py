"""The stored log of one replica: `raft.pump.effects.PumpLog` over a store, with more for the shell.

Owns the translation between Raft's words (index, term, kind, configuration) and the store's
(entries, positions, queues), the list of configurations in the log, and the initial state of a
restart. Must not know elections, peers or the event loop. One thread, the loop's, calls everything
here unless a docstring says otherwise; only rare calls wait for a disk: term and vote, members, a
truncation, a snapshot and `open`.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import Final, Self, Unpack

from node.replication.raft.storage.configurations import (
    LogConfigurations,
    decode_configuration,
    encode_configuration,
)
from node.replication.raft.storage.hard_state import NodeFile, load_node_file
from node.replication.raft.storage.received_snapshot import ReceivedSnapshot
from node.replication.raft.storage.snapshot import Snapshot, decode_snapshot
from node.state.appends import Prepared
from raft.errors import ForeignChainError, PeerProtocolError
from raft.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    Configuration,
    ConfigurationAt,
    Index,
    NodeId,
    SnapshotMeta,
    Term,
)
from raft.pump.effects import Checked, Payload
from raft.ready import EntryKind, HardState, InitialState, bootstrap_state, joining_state
from raft.rules.divergence import check_same_chain
from store.config import StoreConfig
from store.engine import Around, Closing
from store.errors import CorruptionError, FileSystemError, ForeignEntryError, StoreFullError
from store.files.file_system import FileSystem
from store.format import ENTRY_HEADER_SIZE_BYTES
from store.ledger.entry import ChainLink
from store.ledger.ledger import Deletion, PreparedEntry
from store.ledger.raw import CheckedEntries, chain_crc_of
from store.opening import Recovery
from store.replicated.ledger_store import ReplicaStore

OWN_ENTRY_SIZE_BYTES_MAX: Final = 64 * 1024
"""Room a node must have before it may campaign or change members: its no-op or configuration has to
fit. Far above the size of either."""
RECENT_ENTRY_COUNT_MAX: Final = 4096
"""Entries whose positions are kept: those in flight to followers that are in step. A power of two.
"""
_RECENT_MASK: Final = RECENT_ENTRY_COUNT_MAX - 1
_FIELDS: Final = frozenset({"chain CRC", "position"})
"""Fields of an entry that follow from all entries before."""


class _RecentEntries:
    """Positions of the entries [lo, hi) that this node appended last as a leader, and of the end of
    the last one: so it does not read an index that it has just written."""

    __slots__ = ("hi", "lo", "positions")

    def __init__(self) -> None:
        self.positions = [0] * RECENT_ENTRY_COUNT_MAX
        """Position of entry i of [lo, hi) in place `i & _RECENT_MASK`; in that of `hi` the end of
        the last one. Between two of them there may be a blank, at the end of a file."""
        self.lo: Index = NO_INDEX
        self.hi: Index = NO_INDEX - 1
        """The entry after the last one. Below `lo`: nothing is known."""

    def add(self, index: Index, position: int, end_position: int) -> None:
        """Note the place of an entry that was appended."""
        positions = self.positions
        if index != self.hi:
            self.lo = index
        positions[index & _RECENT_MASK] = position
        positions[index + 1 & _RECENT_MASK] = end_position
        self.hi = index + 1
        if self.hi - self.lo > _RECENT_MASK:
            self.lo = self.hi - _RECENT_MASK

    def forget(self) -> None:
        """Forget all: entries were written or cut in another way."""
        self.lo, self.hi = NO_INDEX, NO_INDEX - 1


class LedgerLog(Closing):
    """Implements `raft.pump.effects.PumpLog`."""

    def __init__(self, store: ReplicaStore, node_file: NodeFile, fs: FileSystem) -> None:
        """Only `open` calls this."""
        self.store: Final = store
        self._ledger: Final = store.ledger
        self.node_file: Final = node_file
        self.received: Final = ReceivedSnapshot(fs, store.root)
        self._configurations: Final = LogConfigurations(store.ledger, node_file)
        self._applied: Index = NO_INDEX
        self._committed: Index = NO_INDEX
        self._recent: Final = _RecentEntries()

    # --- Opening ---

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig,
        *,
        cluster_id: str,
        node_id: NodeId,
        **around: Unpack[Around],
    ) -> Self:
        """Open the directory of a node, made if necessary, and finish what a crash left half done.

        Raises as `Store.open`, and IdentityMismatchError, LayoutError or CorruptionError of the
        node file, all of them before anything is promised. `start_at` comes next.
        """
        assert config.container == "ledger", f"container {config.container}"
        fs = around["fs"] = around.get("fs") or FileSystem()
        node_file = NodeFile(fs, root)

        def before_running(recovery: Recovery) -> None:
            load_node_file(node_file, recovery, config, cluster_id, node_id)

        store = ReplicaStore.open(root, config, before_running=before_running, **around)
        try:
            log = cls(store, node_file, fs)
            log._finish_opening()
        except BaseException:
            store.close()
            raise
        return log

    def _finish_opening(self) -> None:
        interrupted = self.received.load()
        if interrupted is not None:
            self._replace_log(interrupted)
        self._configurations.load()
        record = self.node_file.record
        if self._ledger.last_term > record.hard_state.term:
            # Entries of that term reached the disk, so this memory gave no vote in it.
            hard_state = record.hard_state._replace(term=self._ledger.last_term, vote=0)
            self.node_file.save(replace(record, hard_state=hard_state))

    def start_at(self, applied_index: Index, committed_index: Index = NO_INDEX) -> None:
        """Set the applied index of the state machine's checkpoint; before `load`.

        All entries up to it are committed, so readers may see them. A checkpoint from a snapshot
        may be ahead of the log. `committed_index`: more entries may be known to be committed.
        """
        self._committed = committed_index
        base = self.base_index
        self._applied = max(base, min(applied_index, self._ledger.last_index))
        if self._applied > base:
            self.dispatch(self._applied + 1)

    @property
    def is_founded(self) -> bool:
        """Whether this node is in a cluster. If not, call `found` or `join` before `load`."""
        return self.node_file.record.is_founded

    @property
    def is_untouched(self) -> bool:
        """Whether it has no entry and entered no term, so that it never made a promise."""
        return self.last_index == NO_INDEX and self.node_file.record.hard_state.term == NO_TERM

    def found(self, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> None:
        """Make this empty disk a founder of a new cluster; durable on return."""
        self._begin(bootstrap_state(voters, learners))

    def join(self, *, incarnation: int = 1) -> None:
        """Join an existing cluster with this empty disk; durable on return. See `joining_state`."""
        self._begin(joining_state(incarnation=incarnation))

    def _begin(self, initial: InitialState) -> None:
        assert not self.is_founded, "the node takes part in a cluster already"
        assert self._ledger.last_index == NO_INDEX, f"log up to {self._ledger.last_index}"
        base = initial.configurations[0] if initial.configurations else None
        self.node_file.save(
            replace(
                self.node_file.record,
                is_founded=True,
                hard_state=initial.hard_state,
                base_configuration=base,
            )
        )
        self._configurations.load()

    def load(self) -> InitialState:
        """Return what is stored now; see `PumpLog.load`."""
        assert self.is_founded, "neither founder nor member: nothing to begin with"
        ledger, record = self._ledger, self.node_file.record
        base_index, last_index = self.base_index, ledger.last_index
        snapshot: SnapshotMeta | None = None
        configurations = tuple(self._configurations.all)
        if base_index > NO_INDEX and configurations and configurations[0].index <= base_index:
            snapshot = SnapshotMeta(base_index, ledger.start.link.term, configurations[0])
        return InitialState(
            hard_state=record.hard_state,
            base_index=base_index,
            base_term=ledger.start.link.term,
            last_index=last_index,
            runs=tuple(ledger.term_runs()),
            configurations=configurations,
            commit=max(self._applied, self.store.dispatched_index, self._committed),
            applied=self._applied,
            synced=None,
            snapshot=snapshot,
        )

    @property
    def base_index(self) -> Index:
        """Index before the first entry that is kept."""
        return self._ledger.first_index - 1

    @property
    def last_index(self) -> Index:
        """Index of the newest entry, committed or not."""
        return self._ledger.last_index

    # --- Writing ---

    def save_hard_state(self, hard_state: HardState) -> None:
        """Replace term, vote and standing; see `NodeFile.save_hard_state`. Durable on return."""
        self.node_file.save_hard_state(hard_state)

    def prepare(self, batch: bytes) -> Prepared:
        """Do everything of an append of encoded records that can fail, before it is proposed.

        Writes nothing. The next write, if any, must be the `append` of the result. Raises
        RecordFormatError, LimitExceededError, TopicNameError (bad input), StoreFullError,
        FileSystemError or BusyError (try again later).
        """
        entry = self.store.prepare(batch)
        return Prepared(entry, self._ledger.stamper.next_offsets)

    def append(self, index: Index, term: Term, kind: EntryKind, body: object) -> None:
        """Append an entry; see `PumpLog.append`. The body of DATA is the newest `Prepared`."""
        if kind is EntryKind.DATA:
            assert type(body) is Prepared, f"data must be prepared: {body!r}"
            content = body.content
            assert type(content) is PreparedEntry, f"prepared as {content!r}"
            body.result = result = self.store.append_prepared(content, term)
            landed = result.entry_index
            self._recent.add(landed, result.position, result.end_position)
        elif kind is EntryKind.CONFIGURATION:
            assert isinstance(body, Configuration), f"{body!r} is no configuration"
            self._recent.forget()
            self._configurations.add([ConfigurationAt(index, body)])
            landed = self.store.append_own(int(kind), term, encode_configuration(body))
        else:
            self._recent.forget()
            landed = self.store.append_own(int(kind), term, b"")
        assert landed == index, f"entry {index} landed at {landed}"

    def has_room(self, size_bytes: int) -> bool:
        """Whether own or raw entries of `size_bytes` in all could be written without an error.

        Never waits; the call makes the store prepare the next file. Ask before a peer's append is
        handed to the replica, and before a campaign.
        """
        if self._ledger.has_room_at_hand(size_bytes):
            self.store.room_error = None
            return True
        return self.store.has_room(size_bytes)

    def has_room_for(self, size_bytes: int, configurations: list[Index]) -> bool:
        """Note these indexes of configurations; return as `has_room`. SyncFailedError: stop."""
        if not (self._ledger.has_room_at_hand(size_bytes) or self.store.has_room(size_bytes)):
            return False
        try:
            if configurations:
                self._configurations.note(configurations)
        except (StoreFullError, FileSystemError):
            return False
        return True

    def check_raw(
        self, message: AppendRequest, payload: Payload, held: Index = NO_INDEX
    ) -> CheckedEntries | None:
        """Check a peer's entries; see `PumpLog.check_raw`. Skips entries that the core will not
        take, as this log lacks the entry before."""
        ledger, prev = self._ledger, message.prev_index
        last_index, last_term, _ = ledger.tail.link
        if prev != last_index or message.prev_term != last_term:
            if not self.base_index <= prev <= last_index:
                return None
            if ledger.term_at(prev) != message.prev_term:
                return None
        assert type(payload) is memoryview or type(payload) is bytes, f"payload {type(payload)}"
        data = bytes(payload)
        try:
            checked = ledger.check_raw(data, prev)
        except ForeignEntryError as error:
            # The whole header identifies a repetition: any bit of it that changes on the way makes
            # the stored chain CRC a wrong one.
            if error.index == prev + 1 and error.field in _FIELDS:
                header = data[:ENTRY_HEADER_SIZE_BYTES]
                raise ForeignChainError(message.sender, str(error), error.index, header) from error
            raise PeerProtocolError(message.sender, str(error)) from error
        if checked.hi_index != message.hi:
            problem = f"entries up to {checked.hi_index - 1}, announced up to {message.hi - 1}"
            raise PeerProtocolError(message.sender, problem)
        is_one_run = message.runs == ((prev + 1, message.prev_term),)
        if checked.term_changes or not is_one_run:
            runs = [run for run in message.runs if run[1] != message.prev_term]
            if checked.term_changes != runs:
                problem = f"terms {checked.term_changes}, announced {runs}"
                raise PeerProtocolError(message.sender, problem)
        if checked.configurations or message.configurations:
            configurations = tuple(
                ConfigurationAt(index, configuration)
                for index, body in checked.configurations
                if (configuration := decode_configuration(body)) is not None
            )
            if configurations != message.configurations:
                problem = f"configurations {configurations}, announced {message.configurations}"
                raise PeerProtocolError(message.sender, problem)
        if held > prev:
            self._check_held(message.sender, checked, held)
        return checked

    def _check_held(self, sender: NodeId, checked: CheckedEntries, held: Index) -> None:
        """Compare entries through `held`, which the ledger has by their terms, with those in the
        ledger.

        Raises ForeignChainError with the first one that differs; CorruptionError as
        `Ledger.tail_at`.
        """

        def here(index: Index) -> int:
            return self._ledger.tail_at(index).link.chain_crc

        if here(held) == chain_crc_of(checked, held):
            return
        indexes = range(checked.first_index, held)  # Behind the first difference all are different.
        first = checked.first_index + bisect_left(
            indexes, True, key=lambda index: here(index) != chain_crc_of(checked, index)
        )
        check_same_chain(sender, first, here(first), chain_crc_of(checked, first))

    def write_raw(self, lo: Index, hi: Index, checked: Checked) -> None:
        """Write entries that `check_raw` accepted; see `PumpLog.write_raw`."""
        assert type(checked) is CheckedEntries, f"[{lo}, {hi}) was not checked"
        assert checked.hi_index == hi, f"checked up to {checked.hi_index}, not {hi}"
        new = []
        for index, body in checked.configurations:
            if index >= lo:
                configuration = decode_configuration(body)
                assert configuration is not None, f"entry {index} was checked"
                new.append(ConfigurationAt(index, configuration))
        if new:
            self._configurations.add(new)
        if self._recent.hi > self._recent.lo:
            self._recent.forget()
        self.store.write_raw(checked, lo)

    def truncate_from(self, lo: Index) -> None:
        """Truncate the log; see `PumpLog.truncate_from`. Durable on return."""
        self._recent.forget()
        self.store.truncate_from(lo)
        self._configurations.cut(lo)

    # --- Reading ---

    def read_raw(self, lo: Index, hi: Index) -> bytes:
        """Return whole entries back to back, without blanks at file ends (`PumpLog.read_raw`)."""
        ledger, recent = self._ledger, self._recent
        if lo >= recent.lo and hi <= recent.hi:
            position = recent.positions[lo & _RECENT_MASK]
            end_position = recent.positions[hi & _RECENT_MASK]
            file = ledger.files.files[-1]
            # Written by this process into the file that is still mapped, and not found damaged.
            if position >= file.position and position >= ledger.checked.trusted_position:
                return file.read(position, end_position - position)
        return ledger.read_entries(lo, hi)

    def distrust_from(self, lo: Index) -> None:
        """Compare entries from `lo` on with their checksums when they are read next, although they
        were checked or written by this process: a peer found them damaged."""
        ledger = self._ledger
        lo = max(lo, ledger.first_index)
        if lo <= ledger.last_index:
            ledger.checked.distrust(ledger.place_of(lo), ledger.max_position)

    def position_of(self, index: Index, /) -> int:
        """Return the position of an entry; see `EntryPositions.position_of`."""
        recent = self._recent
        if recent.lo <= index <= recent.hi:
            return recent.positions[index & _RECENT_MASK]
        return self._ledger.place_of(index)

    def chain_at(self, index: Index) -> int | None:
        """Return the chain CRC of an entry; see `PumpLog.chain_at`. The chain has to prove it: a
        bit that flipped on the disk must not look like another history, so a damaged log gives no
        CRC."""
        ledger = self._ledger
        if not ledger.first_index - 1 <= index <= ledger.last_index:
            return None
        try:
            return ledger.tail_at(index).link.chain_crc
        except (CorruptionError, FileSystemError):
            return None  # The next reader of that entry, or the scrub, has it repaired.

    # --- Consequences of commits and roles ---

    def dispatch(self, hi: Index) -> None:
        """Show readers the entries before `hi`, which are committed. Repeating it changes nothing.

        Raises StoreFullError or FileSystemError when a queue cannot grow: call it again later, and
        apply nothing before it returned. Any other error: stop.
        """
        self.store.dispatch_to(self._ledger.end_of(hi - 1))

    # --- Snapshots ---

    def install_snapshot(self, meta: SnapshotMeta, payload: Payload) -> None:
        """Replace the log by an `encode_snapshot` of another node; see `PumpLog.install_snapshot`.

        Durable on return, and atomic: after a crash half-way the next `open` finishes it, if it was
        complete on the disk; otherwise the old log is there. The state machine must then restore
        `installed_state`.
        """
        assert isinstance(payload, bytes | memoryview), f"payload {type(payload)}"
        data = bytes(payload)
        snapshot = decode_snapshot(data)
        assert snapshot.meta == meta, f"announced {meta}, received {snapshot.meta}"
        self.received.stage(data, snapshot)
        self._replace_log(snapshot)
        self._configurations.load()
        self._applied = meta.index

    def _replace_log(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self._recent.forget()
        link = ChainLink(meta.index, meta.term, snapshot.chain_crc)
        self.store.restart(snapshot.end_position, link, snapshot.next_offsets)
        self.node_file.save(
            replace(
                self.node_file.record,
                is_founded=True,
                base_configuration=meta.configuration_at,
                former_base_configuration=None,
                configuration_indexes=(),
            )
        )
        self.received.mark_installed()

    def installed_state(self) -> bytes:
        """Return the state that came with the snapshot installed last."""
        snapshot = self.received.installed
        assert snapshot is not None, "no snapshot was installed"
        return snapshot.state

    # --- Retention ---

    def plan_deletion(self, limit_index: Index) -> Deletion | None:
        """Return the steps that delete the expired files with entries up to `limit_index` only.

        1. here, on the loop; 2. `write_start` on a thread; 3. `Replica.compact_to(index)` and
        `store.forget` on the loop; 4. `remove` and `store.delete_expired_derived` on the thread.
        Stop when `write_start` or `forget` return False.
        """
        deletion = self.store.deletion(limit_index)
        if deletion is not None:
            self._configurations.keep_base(deletion.start.link.entry_index)
        return deletion

    # --- Closing ---

    def close(self) -> None:
        """Make everything durable and release the directory. Raises as `Store.close`."""
        self.store.close()
