"""The state machine of a simulated process: applying, reads, answers, snapshots.

Owns how far entries are applied and what waits for that. Must not know the content of a state: a
state is the committed prefix up to an index, so the index identifies it, and a snapshot carries the
digest of the log at that index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raft.errors import CompactionRefusedError
from raft.messages import NO_INDEX, Index, SnapshotMeta
from raft.pump.effects import Completion, Resolution
from raft.rules import snapshot
from simulation.raft.world.workload import SimulatedCall

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process


class SimulatedMachine:
    """One life of the state machine of one process."""

    __slots__ = (
        "_completions",
        "_is_applying",
        "_last_hint",
        "_last_snapshot",
        "_process",
        "applied",
        "apply_hi",
        "reads",
        "snapshot_chains",
    )

    def __init__(self, process: Process) -> None:
        self._process = process
        image = process.disk.memory
        self._completions: deque[Completion] = deque()
        """Committed proposals to answer once applied, in order of index."""
        self.reads: list[tuple[Index, int]] = []
        """Reads confirmed at an index, to be served once that is applied."""
        self._is_applying = False
        self.applied: Index = process.replica.core.state.applied
        """Last applied entry."""
        self.apply_hi: Index = self.applied + 1
        """End of the entries handed out."""
        self._last_hint: Index = self.applied
        self._last_snapshot = NO_INDEX if image.snapshot is None else image.snapshot.index
        self.snapshot_chains: dict[Index, int] = {self._last_snapshot: image.snapshot_chain}
        """Digest of each snapshot of this life, by its index."""

    def install(self, meta: SnapshotMeta) -> None:
        image = self._process.disk.memory
        self._process.world.referee.on_install(self._process, meta.index, image.snapshot_chain)
        self.applied = meta.index
        self.apply_hi = meta.index + 1
        self._last_snapshot = meta.index
        self.snapshot_chains = {meta.index: image.snapshot_chain}
        self._answer_applied()

    def begin_apply(self) -> bool:
        """Apply the entries handed out, now or after a delay; return whether it is done."""
        if self._is_applying:
            return False
        world = self._process.world
        delay = world.apply_us
        if delay == 0:
            self._apply_through(self.apply_hi - 1)
            return True
        self._is_applying = True
        world.push(
            world.now + delay, self._on_applied, self._process.epoch, self.apply_hi - 1, None
        )
        return False

    def _on_applied(self, epoch: int, index: Index, _c: object) -> None:
        if epoch != self._process.epoch:
            return
        if self._process.is_paused:
            world = self._process.world
            world.push(world.now + self._process.tick_us, self._on_applied, epoch, index, None)
            return
        self._is_applying = False
        if index > self.applied:
            self._apply_through(index)
        if self.apply_hi - 1 > self.applied:
            self.begin_apply()
        self._process.settle()

    def _apply_through(self, index: Index) -> None:
        disk = self._process.disk
        self.applied = index
        self._process.replica.on_applied(index)
        self._answer_applied()
        if index <= disk.memory.base_index:
            return  # A snapshot has replaced these entries meanwhile, and is about to come here.
        options = self._process.world.options
        if options.hint_every and index - self._last_hint >= options.hint_every:
            self._last_hint = index
            disk.save_hint(index)
        every = options.snapshot_every
        if every and index - self._last_snapshot >= every:
            self._take_snapshot(index)

    def _answer_applied(self) -> None:
        completions = self._completions
        while completions and completions[0].index <= self.applied:
            self._answer(completions.popleft())
        if self.reads:
            self.serve_reads()

    def complete(self, completed: Sequence[Completion]) -> None:
        for completion in completed:
            if completion.resolution is Resolution.COMMITTED and completion.index > self.applied:
                self._completions.append(completion)
            else:
                self._answer(completion)

    def _answer(self, completion: Completion) -> None:
        waiter = completion.waiter
        assert isinstance(waiter, tuple), f"waiter {waiter!r}"
        call: SimulatedCall = waiter[0]
        attempt: int = waiter[1]
        call.client.completed(call, attempt, completion.resolution, self._process)

    def serve_reads(self) -> None:
        waiting = []
        for index, read_id in self.reads:
            if index <= self.applied:
                self._process.world.reads.serve(read_id, self.applied)
            else:
                waiting.append((index, read_id))
        self.reads = waiting

    # Snapshots.

    def _take_snapshot(self, index: Index) -> None:
        """Save the state at `index`; once that is durable, cut the log as far as allowed."""
        self._last_snapshot = index
        try:
            meta = snapshot.meta_at(self._process.replica.core.state, index)
        except CompactionRefusedError:
            return  # A node that joined lately does not know the members at that index.
        self._process.disk.save_snapshot(meta)
        self.snapshot_chains[index] = self._process.disk.memory.snapshot_chain
        world = self._process.world
        delay = world.sync_delay(self._process.sync_factor)
        world.push(
            world.now + delay,
            self._snapshot_synced,
            self._process.epoch,
            meta,
            self._process.disk.sync_id(),
        )
        world.coverage.hit("snapshot_taken")

    def _snapshot_synced(self, epoch: int, meta: SnapshotMeta, write_id: int) -> None:
        if epoch != self._process.epoch or not self._process.is_up:
            return
        self._process.disk.sync_done(write_id)
        if meta.index < self._process.disk.memory.base_index:
            return  # A received snapshot overtook it.
        replica = self._process.replica
        snapshot.snapshot_durable(replica.core.state, meta)
        index = snapshot.compactable_to(replica.core.state)
        if index > self._process.disk.memory.base_index:
            replica.compact_to(index)
            self._process.disk.cut(index)
            self._process.disk.save_hint(self.applied)
        self._process.settle()
