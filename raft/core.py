"""The replica's state machine: messages, ticks and proposals in, `Ready` out. The public face of `raft`.

Owns the dispatch and the contract with the shell. Knows no socket, file, clock, thread or payload
byte. The rules live beside it, one module per idea: election, leader, follower, replication, quorum,
membership, read_index, transfer, snapshot, recovery. The shell's loop is:

    core.step(message) or core.tick() or core.propose(...)
    while (ready := core.ready()) is not None:
        do its fields in order, without waiting for the sync
        core.advance()
    when a sync ends: core.hard_state_stable(...), core.stable_to(...), then release what was held
    when entries are applied: core.applied_to(...)

`node/replica.py` is that loop, used unchanged by the production driver and by the simulator.
"""

from __future__ import annotations

from random import Random

from raft.config import RaftConfig
from raft.membership import Change
from raft.messages import Index, Message, NodeId, SnapshotMeta, Term
from raft.ready import EntryPositions, HardState, InitialState, Ready
from raft.stats import RaftStats


class RaftCore:
    """One replica. Not thread-safe, never blocks, deterministic in its inputs and the seed of `random`."""

    __slots__ = ("_state",)

    def __init__(
        self,
        config: RaftConfig,
        initial: InitialState,
        positions: EntryPositions,
        random: Random,
    ) -> None:
        """Start as a follower with what the disk holds.

        `initial.hard_state` must be durable already. `random` is used for election time-outs only.
        """
        raise NotImplementedError

    # Inputs.

    def step(self, message: Message) -> None:
        """Take one message from a peer.

        An append's payload and a snapshot's state stay with the shell; it must take the Ready that
        follows before it steps the next such message. Raises PeerProtocolError, with no state changed,
        for a message of another group, from this node, to another node, or of impossible content.
        """
        raise NotImplementedError

    def tick(self) -> None:
        """Let one tick interval pass."""
        raise NotImplementedError

    def propose(self, count: int = 1) -> tuple[Index, Term]:
        """Reserve `count` consecutive log positions for data; return the first index and the term.

        The shell must write the entries before it takes the next Ready. It must have taken any Ready
        that holds own entries before (they come first in the log): see `has_own_entries`.
        Raises NotLeaderError, TransferringError or BusyError; then nothing was reserved.
        """
        raise NotImplementedError

    def propose_change(self, change: Change) -> tuple[Index, Term]:
        """Append a membership change of one node; it is in force at once, final when committed.

        Raises NotLeaderError, TransferringError, BusyError or ChangeRefusedError.
        """
        raise NotImplementedError

    def read_index(self, read_id: int) -> None:
        """Ask for a linearizable read; the answer comes in `Ready.reads` or `Ready.reads_failed`.

        `read_id` is only handed back; a round of its own is used for the proof. Raises NotLeaderError
        or BusyError.
        """
        raise NotImplementedError

    def transfer_leadership(self, target: NodeId) -> None:
        """Hand leadership to a voter; proposals are refused until it took over or the time is up.

        Raises NotLeaderError or TransferRefusedError.
        """
        raise NotImplementedError

    def accept_loss(self) -> None:
        """Operator's decision: trust the log as it is after a loss of power of a majority.

        Ends RECOVERING on this node; `Ready.loss_from` says from where acked records may be missing.
        Raises RecoveryRefusedError when the node is not recovering.
        """
        raise NotImplementedError

    # Reports from the shell.

    def hard_state_stable(self, hard_state: HardState) -> None:
        """`hard_state` is durable. A candidate's own vote counts from here on."""
        raise NotImplementedError

    def stable_to(self, index: Index, term: Term) -> None:
        """Entries up to (index, term) are durable. Ignored if the log holds another term there.

        A shell that truncated from `lo` since it began that sync must report at most `lo - 1`: the
        same (index, term) may have been written a second time and not be synced (R16).
        """
        raise NotImplementedError

    def applied_to(self, index: Index) -> None:
        """Entries up to `index` are applied."""
        raise NotImplementedError

    def snapshot_durable(self, meta: SnapshotMeta) -> None:
        """A local snapshot is on disk, synced, renamed, directory synced. Never goes back."""
        raise NotImplementedError

    def configuration_at(self, index: Index) -> SnapshotMeta:
        """Return the meta for a snapshot taken at applied index `index`: its term and membership."""
        raise NotImplementedError

    def compactable_to(self) -> Index:
        """Return up to which index the log may be cut: a durable snapshot covers it, no follower that
        is close enough needs it. base_index when nothing may be cut."""
        raise NotImplementedError

    def compact_to(self, index: Index) -> None:
        """The shell cuts the log through `index`. Raises CompactionRefusedError."""
        raise NotImplementedError

    def report_unreachable(self, node: NodeId) -> None:
        """The link to `node` broke: what was in flight may be lost."""
        raise NotImplementedError

    def report_snapshot_failed(self, node: NodeId) -> None:
        """The snapshot being sent to `node` did not get there."""
        raise NotImplementedError

    # Output.

    def has_ready(self) -> bool:
        """Return whether `ready()` would return work."""
        raise NotImplementedError

    def has_own_entries(self) -> bool:
        """Return whether a no-op or configuration entry waits to be written by the shell."""
        raise NotImplementedError

    def ready(self) -> Ready | None:
        """Return the work owed since the last call, or None. Call `advance()` when it is done."""
        raise NotImplementedError

    def advance(self) -> None:
        """The last Ready was done, except for the sync: its writes can be read back and sent."""
        raise NotImplementedError

    def stats(self) -> RaftStats:
        """Return an immutable picture of this replica."""
        raise NotImplementedError
