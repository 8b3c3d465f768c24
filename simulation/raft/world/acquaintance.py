"""Handshakes of one simulated node, its memory of other nodes' lives, and old copies of disks
(D18).

Owns the shell's part in handshakes: before a node takes a message of a process it has not met, the
two exchange their state, as over a connection, and their memory of other nodes. The comparison is
that of `raft.lives`, as in production. Must not know when a disk is put back; `injector` does.

A refusal of a node that did not lose memory would be a false alarm, and is a failure of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raft.lives import NO_LIFE, PAST_MAX, Known, Lives, ToldLife, memory_lost
from raft.messages import NO_INDEX, Index, NodeId, Standing, Term
from simulation.raft.disk.image import DiskImage
from simulation.raft.verdict import InvariantError

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process

SAVE_TICKS = 10
"""Interval at which the memory of other nodes is saved to disk, besides after each handshake."""
BACKUPS_MAX = 3


class SavedLives(NamedTuple):
    """A node's memory of the others, as it is on disk."""

    known: dict[NodeId, Known]
    apart: dict[NodeId, tuple[Known, ...]]


class Backup(NamedTuple):
    """A copy of everything on a node's disk."""

    image: DiskImage
    life: int
    nonces: tuple[int, ...]
    joined: int
    saved: SavedLives


class Acquaintance:
    """One node's side. `life`, `nonces`, `joined`, `saved` and what was found are on disk."""

    __slots__ = (
        "_copied_incarnation",
        "_disk_end",
        "_incarnation",
        "_is_copy",
        "_node",
        "_peers",
        "_run",
        "_start",
        "backups",
        "joined",
        "life",
        "lives",
        "nonces",
        "saved",
        "tells",
    )

    def __init__(self, node: Process) -> None:
        self._node = node
        self.life = 0
        self.nonces: tuple[int, ...] = ()
        """Nonces of this life and the earlier ones, the newest first."""
        self.joined = 0
        self.saved = SavedLives({}, {})
        self.lives = Lives()
        self.tells = False
        """Whether the process is of a version that knows lives."""
        self._run = 0
        self._start: tuple[Term, Index] = (0, NO_INDEX)
        self._disk_end: tuple[Term, Index] | None = None
        """Term and last index of the disk before its repair, which may raise both: what an old copy
        promised in between is forgotten all the same."""
        self._peers: dict[NodeId, int] = {}
        """Process of each other node that was met and believed, by its number of the run."""
        self.backups: list[Backup] = []
        self._is_copy = False
        self._copied_incarnation = 0
        self._incarnation = 0
        """Incarnation from which on this node knows that it is an old copy. A second notice
        may come before that is stored."""

    @property
    def is_copy(self) -> bool:
        """Whether the disk was replaced by an old copy, and its hard state does not show it yet."""
        incarnation = self._node.disk.durable.hard_state.incarnation
        if self._is_copy and incarnation >= self._incarnation:
            self._is_copy = False
            self._node.world.coverage.hit("old_copy_joins")
        return self._is_copy

    @property
    def is_unnoticed_copy(self) -> bool:
        """Whether the node continues as if the old copy were its disk.

        A copy that was in doubt since, for any reason, was brought up to date by a leader, and
        promises what it has now."""
        incarnation = self._node.disk.durable.hard_state.incarnation
        return self.is_copy and incarnation <= self._copied_incarnation

    def begin_repair(self) -> None:
        """Note what the disk alone held."""
        if self._disk_end is None:
            state = self._node.disk.load()
            self._disk_end = state.hard_state.term, state.last_index

    def begin(self) -> None:
        """Begin a life: a process starts on the disk."""
        node = self._node
        self._run += 1
        self.tells = not node.is_old
        self._peers = {}
        self.lives = Lives(*self.saved)
        disk_end, self._disk_end = self._disk_end, None
        if self.tells:
            self.life += 1
            self.nonces = (node.world.new_nonce(), *self.nonces[:PAST_MAX])
            state = node.disk.load()
            self._start = state.hard_state.term, state.last_index
            if disk_end is not None:
                self._start = disk_end[0], min(disk_end[1], state.last_index)
            for other in node.world.nodes.values():
                if other is not node and other.is_up and self._is_open(other):
                    _greet(node, other)

    def wipe(self) -> None:
        """Forget everything on disk: it was replaced by an empty one."""
        self.life = self.joined = 0
        self.nonces = ()
        self.saved = SavedLives({}, {})
        self._disk_end = None
        self._is_copy = False
        self.backups.clear()

    def told(self) -> ToldLife:
        node = self._node
        hard_state = node.disk.durable.hard_state
        if hard_state.standing is Standing.JOINING:
            self.joined = max(self.joined, hard_state.incarnation)
        # While the log is repaired no life has begun, so the peers answer an old copy as well.
        has_begun = self.tells and node.repair is None
        return ToldLife(
            self.life if has_begun else NO_LIFE,
            self.nonces[0] if self.nonces else 0,
            *self._start,
            hard_state.term,
            node.disk.memory.last_index,
            hard_state.standing,
            hard_state.incarnation,
            self.joined,
            self.nonces[1:],
        )

    def lets_in(self, sender: Process) -> bool:
        """Whether a message of `sender` gets here, after a handshake if the two have not met.

        While a node repairs its log it remembers no process, and needs no memory of one: the chain
        proves what it fetches. A connection needs both to believe each other. A process that ended
        shakes no hands: its last messages came over connections that ended with the process that
        they were for."""
        theirs = sender.acquaintance
        if not theirs.tells or not self.tells or self._node.repair is not None:
            return True
        if not (self._believes(theirs) and theirs._believes(self)) and sender.is_alive:
            _greet(self._node, sender)
        return self._believes(theirs) and (sender.repair is not None or theirs._believes(self))

    def _believes(self, other: Acquaintance) -> bool:
        return self._peers.get(other._node.node_id) == other._run

    def judge(self, other: Process) -> None:
        """Believe a node, or refuse it."""
        if not self.tells or not other.acquaintance.tells:
            return
        node = self._node
        self.look()
        lost = self.lives.judge(other.node_id, other.acquaintance.told())
        if lost:
            self.refuse(other.node_id, lost)
        else:
            self._peers[other.node_id] = other.acquaintance._run
        self._save()
        if node.world.trace is not None:
            node.world.note(f"{node} meets {other}: {lost or 'believed'}")

    def refuse(self, node_id: NodeId, lost: str) -> None:
        world = self._node.world
        if not world.nodes[node_id].acquaintance.is_copy:
            raise InvariantError(
                "D18", f"{self._node} takes node {node_id} for an old copy: {lost}"
            )
        world.coverage.hit("old_copy_refused")
        self._peers.pop(node_id, None)

    def hear(self, other: Process) -> None:
        """Take over another node's memory, of third nodes and of this one."""
        if not self.tells or not other.acquaintance.tells:
            return
        for node_id, known in other.acquaintance.lives.known.items():
            if node_id == self._node.node_id:
                self._hear_of_self(known)
            elif node_id != other.node_id and self.lives.hear(node_id, known):
                self._peers.pop(node_id, None)

    def _hear_of_self(self, known: Known) -> None:
        node = self._node
        lost = memory_lost(known, self.told())
        if not lost or not node.is_up:
            return
        if not self.is_copy:
            raise InvariantError("D18", f"{node} takes itself for an old copy: {lost}")
        incarnation = node.world.new_incarnation()
        self._incarnation = min(self._incarnation, incarnation)
        node.world.note(f"{node} hears that it is an old copy: {lost}")
        node.replica.lose_memory(incarnation)
        node.end_turn()

    def look(self) -> None:
        """Take over everything the own replica has learned."""
        if not self._node.is_up or not self.tells:
            return
        state = self._node.replica.core.state
        for node_id in [n for n in state.terms_seen if self.lives.of(n).incarnation]:
            # A message from before the node's disk was replaced may come late here. Over a
            # connection this is impossible: the handshake with the new disk comes after it.
            del state.terms_seen[node_id]
        self.lives.look(state)

    def on_tick(self, tick: int) -> None:
        if tick % SAVE_TICKS == 0:
            self.look()
            self._save()

    def _save(self) -> None:
        self.saved = SavedLives(dict(self.lives.known), dict(self.lives.apart))

    def keep(self) -> None:
        """Copy the disk, as a backup or a snapshot of a virtual machine does."""
        image = self._node.disk.durable.copy()
        backup = Backup(image, self.life, self.nonces, self.joined, self.saved)
        self.backups = [*self.backups[1 - BACKUPS_MAX :], backup]

    def is_known_to_all(self, backup: Backup) -> bool:
        """Whether every other node would recognise the copy by its saved memory.

        A copy that no remaining node can recognise is undetectable (docs/guarantees.md), so the
        injector does not put such a copy back."""
        others = [n for n in self._node.world.nodes.values() if n is not self._node]
        hard_state = backup.image.hard_state
        last_index = backup.image.last_index
        told = ToldLife(
            backup.life + 1,
            -1,
            hard_state.term,
            last_index,
            hard_state.term,
            last_index,
            hard_state.standing,
            hard_state.incarnation,
            backup.joined,
            backup.nonces,
        )
        node_id = self._node.node_id
        return bool(others) and all(
            other.acquaintance.tells and Lives(*other.acquaintance.saved).judge(node_id, told)
            for other in others
        )

    def put_back(self, backup: Backup) -> None:
        """Replace the contents of the disk by a copy. The process must not run."""
        self.life, self.nonces, self.joined = backup.life, backup.nonces, backup.joined
        self.saved = backup.saved
        self._disk_end = None
        self._is_copy = True
        self._copied_incarnation = backup.image.hard_state.incarnation
        self._incarnation = 1 << 40

    def _is_open(self, other: Process) -> bool:
        link = self._node.world.network.link
        mine, theirs = self._node.node_id, other.node_id
        return not link(mine, theirs).cuts and not link(theirs, mine).cuts


def _greet(node: Process, other: Process) -> None:
    """Let two processes meet: each judges the other, and learns of it if reachable."""
    mine, theirs = node.acquaintance, other.acquaintance
    mine.judge(other)
    if other.is_up:
        theirs.judge(node)
    if node.is_up and other.is_up and mine._is_open(other):
        theirs.hear(node)
        mine.hear(other)
        mine.judge(other)
        theirs.judge(node)
