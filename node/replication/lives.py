"""Keeps this node's life and its memory of the others, and acts on the others' memory of it.

Owns when lives are sent, compared and saved; the comparison itself is `raft.lives`, the file
`node.peers.lives_file`. Must not know sockets. Nothing here is on the path of an append:
acknowledged indexes are looked at when a peer connects or disconnects, when roles change, and once
a second.

A node that is found to be an old copy gets no connection, so that its votes and acks do not count;
it learns the reason, becomes JOINING, and is accepted as such. A leader tells the others
once a second how far each node has acknowledged, so that they know it when the leader is gone.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from node.peers.frames import FrameKind
from node.peers.handshake import CloseCode
from node.peers.lives_codec import (
    NOTHING,
    NUMBER_MAX,
    LivesFormatError,
    ToldBuild,
    decode_lives,
    encode_lives,
)
from node.peers.lives_file import LivesFile, LivesRecord
from node.state.tables.level import LEVEL
from raft.errors import PeerProtocolError
from raft.lives import PAST_MAX, Known, Lives, ToldLife, memory_lost
from raft.messages import NO_INDEX, Index, NodeId, Standing, Term
from store.errors import FileSystemError, StoreError, StoreFullError
from store.files.file_system import FileSystem

if TYPE_CHECKING:
    from node.peers.link import PeerLink

TELL_MS: Final = 1_000
"""How often a leader tells the others how far each of them has acknowledged, and how often every
node saves its memory while that grows. Lives and terms are saved at once."""
_log: Final = structlog.get_logger(component="lives")


class Facts(NamedTuple):
    """A node's memory of itself; all of it is durable."""

    term: Term
    last_index: Index
    """Up to where the log went in this term, including entries that a repair has cut since."""
    standing: Standing
    incarnation: int
    """Grows with each loss of memory that the node knows of."""


class Memory(Protocol):
    """Storage of a node's promises."""

    incarnation_max: int
    """No node of this mode has a higher incarnation."""

    @property
    def life(self) -> int:
        """The newest life that is known outside the file `lives`."""

    def begin(self, life: int) -> None:
        """Store the number of the life that begins, if this storage keeps it."""

    def facts(self) -> Facts | None:
        """Return what is durable now; None for a node that is not in a cluster yet."""

    def become_joining(self, incarnation: int) -> None:
        """Stop counting for quorums, under a new incarnation: this disk is an old copy."""

    def look(self, lives: Lives) -> None:
        """Report what was seen of other nodes since the last look."""

    @property
    def is_leading(self) -> bool:
        """Whether the others promise this node how far they hold its log."""

    @property
    def committed_index(self) -> Index | None:
        """Up to where the log is committed and durable here; None when that is not known yet."""


class NodeLives:
    """The lives known to one node. On the loop's thread, except for the writing of the file."""

    def __init__(self, node_id: NodeId, on_fatal: Callable[[BaseException], None]) -> None:
        self._node_id, self._on_fatal = node_id, on_fatal
        self._lives = Lives()
        self._nonce = secrets.randbits(63) | 1
        self._start: tuple[Term, Index] | None = None
        """Term and last index on the disk at the start of this life; None for a new disk."""
        self._memory: Memory | None = None
        self._file: LivesFile
        self._record: LivesRecord
        self._saved: LivesRecord
        self._saving = asyncio.Lock()
        self._trouble = ""
        self._thread = ThreadPoolExecutor(1, "lives")
        """Saves one record after the other, also when the task that began a save was cancelled."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.link: PeerLink | None = None
        """The link over which lives are sent, once there is one."""
        self._last_broadcast: Mapping[NodeId, Known] = {}
        self._members: frozenset[NodeId] = frozenset()
        self.refused: dict[NodeId, str] = {}
        """Nodes that began with an old copy of their disk, and in what respect it was older."""
        self.refused_count = 0
        """Connections refused for that reason, since the start."""
        self.build = ToldBuild(LEVEL)
        """What handshakes tell of this process."""
        self.builds: dict[NodeId, ToldBuild] = {}
        """The same of each node, as its last handshake said."""

    # --- The parts, in the order of their creation ---

    def open(self, fs: FileSystem, directory: str, cluster_id: str, memory: Memory) -> None:
        """Begin the next life; durable on return. Call it before any peer learns of the log.

        Raises StoreFullError, FileSystemError, or SyncFailedError (stop)."""
        self._file = LivesFile(fs, directory)
        record = self._file.load(cluster_id, self._node_id)
        life = 1 + max(record.life, memory.life)
        # A life that is only in the other file: this file is lost.
        past = record.nonces[:PAST_MAX] if record.life >= memory.life else ()
        self._record = replace(record, life=life, nonces=(self._nonce, *past))
        facts = memory.facts()
        if facts is not None:
            self._start = facts.term, facts.last_index
        self._memory = memory
        self.own()
        try:
            self._file.save(self._record)
        except StoreError:
            self._memory = None  # No life has begun, and `stop` has nothing to save.
            raise
        self._saved = self._record
        memory.begin(life)
        met, self._lives = self._lives, Lives(record.known, record.apart)
        for node, told in met.statements.items():
            self._take(node, told)  # Met for a repair, before there was a file.
        if met.statements:
            self.save_soon()

    # --- Called by the link (PeerLives) ---

    def tell(self, node: NodeId) -> bytes:
        """Return the lives for a handshake: this node's own, and its memory of `node`."""
        self._look()
        view = self._lives.known.get(node)
        return encode_lives(self.own(), {} if view is None else {node: view}, self.build)

    def remembered(self) -> Mapping[NodeId, Known]:
        """Return what is remembered of all nodes now."""
        self._look()
        return dict(self._lives.known)

    def judge(self, node: NodeId, lives: bytes, asked: Mapping[NodeId, Known]) -> str:
        """Return why a node is not to be believed; empty if it is. Raises LivesFormatError."""
        statement, views, self.builds[node] = self._decode(lives)
        self._look()
        self._hear_of_self(node, views)
        lost = self._lives.judge(node, statement, asked=asked.get(node, Known()))
        self._note(node, lost)
        self.save_soon()  # If this node is killed in a moment, it knows the peer's life afterwards.
        return f"node {node} began with an old copy of its disk: {lost}" if lost else ""

    # --- Frames and changes ---

    def on_frame(self, node: NodeId, _kind: FrameKind, header: bytes, _: memoryview) -> None:
        """Take a connected node's current life and its memory of all nodes. Raises
        PeerProtocolError."""
        try:
            statement, views, _build = self._decode(header)
        except LivesFormatError as error:
            raise PeerProtocolError(node, str(error)) from error
        self._hear_of_self(node, views)
        self._take(node, statement)
        for other, found in views.items():
            if other in self._members and other not in (self._node_id, node):
                self._ask_again(other, self._lives.hear(other, found))

    def on_connected(self, node: NodeId, _last_index: Index) -> None:
        """Send the memory of all nodes; the peer knows its own part from the handshake."""
        self._send(node)

    def on_disconnected(self, _node: NodeId) -> None:
        """Save how far the peer had acknowledged."""
        self.save_soon()

    def changed(self) -> None:
        """Send the lives to all connected peers, since this node's own standing has changed."""
        if self.link is not None:
            for row in self.link.stats().peers:
                self._send(row.node)

    def start(self) -> None:
        """Send and save from now on."""
        self._run(self._go_on())

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(TELL_MS / 1000)
            self._look()
            memory, views = self._memory, dict(self._lives.known)
            if memory is not None and memory.is_leading and views != self._last_broadcast:
                self._last_broadcast = views
                self.changed()
            await self.save()

    def forget(self, members: frozenset[NodeId]) -> None:
        """Forget all nodes except these; another disk may get the number of a removed node.

        Reports about other nodes are ignored from now on."""
        self._members = members
        for node in self._lives.known.keys() - members:
            self._lives.forget(node)
            self.refused.pop(node, None)

    # --- Facts ---

    def own(self) -> ToldLife:
        """Return this node's own life; all of it is durable."""
        facts = self._memory.facts() if self._memory is not None else None
        if facts is None:
            return NOTHING
        if facts.standing is Standing.JOINING and facts.incarnation > self._record.joined:
            self._record = replace(self._record, joined=facts.incarnation)
        record = self._record
        # A disk that was new is not compared with its own later promises.
        first_term, first_last_index = self._start or (facts.term, facts.last_index)
        return ToldLife(
            record.life,
            self._nonce,
            first_term,
            first_last_index,
            facts.term,
            facts.last_index,
            facts.standing,
            facts.incarnation,
            record.joined,
            record.nonces[1:],
        )

    @property
    def committed_index(self) -> Index:
        """Up to here the log was known to be committed at the last save."""
        is_same = self._record.incarnation == self.own().incarnation
        return self._record.committed if is_same else NO_INDEX

    @property
    def lost(self) -> str:
        """In what respect this disk was found to be an old copy, and by which node; empty if it was
        not."""
        return self._record.lost if self._memory is not None else ""

    def warnings(self) -> tuple[str, ...]:
        """Return warnings for the operator, in sentences."""
        return tuple(
            f"node {node} began with an old copy of its disk ({lost}): it gets no connection until "
            "it knows so itself"
            for node, lost in self.refused.items()
        )

    @property
    def dropped_memory_count(self) -> int:
        """Memories that peers told of and that were dropped for want of room, since the start."""
        return self._lives.dropped_count

    # --- Saving ---

    def save_soon(self) -> None:
        """Save beside the loop, if something is new."""
        if self._memory is not None:
            self._run(self.save())

    async def stop(self) -> None:
        """Save what is new, after a running save, and stop. No save runs on return."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.save()
        self._memory = None
        await asyncio.to_thread(self._thread.shutdown)

    async def save(self) -> None:
        """Save what is new. A full disk does no harm: the next save tries again."""
        async with self._saving:
            if self._memory is None:
                return
            record = self._record_now()
            if record == self._saved:
                return
            try:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._file.save, record)
                self._saved, self._trouble = record, ""
            except (StoreFullError, FileSystemError) as error:
                if str(error) != self._trouble:  # Log once, and not in every second of a full disk.
                    self._trouble = str(error)
                    _log.warning("what is remembered of others was not saved", error=str(error))
            except StoreError as error:
                self._on_fatal(error)

    # --- Internals ---

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fatal(error)

    def _decode(self, data: bytes) -> tuple[ToldLife, dict[NodeId, Known], ToldBuild]:
        """Decode lives. Raises LivesFormatError, also if no higher incarnation would be left for
        this node."""
        statement, views, build = decode_lives(data)
        limit = NUMBER_MAX if self._memory is None else self._memory.incarnation_max
        incarnations = (
            statement.incarnation,
            statement.joined,
            *(one.incarnation + 1 for one in views.values()),
        )
        if max(incarnations) > limit:
            raise LivesFormatError(f"incarnation {max(incarnations)}, above {limit}")
        return statement, views, build

    def _record_now(self) -> LivesRecord:
        self._look()
        own = self.own()
        lives = self._lives
        record = replace(self._record, known=dict(lives.known), apart=dict(lives.apart))
        committed = self._memory.committed_index if self._memory is not None else None
        if committed is not None:
            record = replace(record, committed=committed, incarnation=own.incarnation)
        self._record = record
        return record

    def _look(self) -> None:
        if self._memory is not None:
            self._memory.look(self._lives)

    def _send(self, node: NodeId) -> None:
        if self.link is not None and self.link.is_connected(node):
            self.link.send(node, FrameKind.LIVES, encode_lives(self.own(), self._lives.known))

    def _take(self, node: NodeId, life: ToldLife) -> None:
        """Take the current life of a connected node.

        Its report crossed acks that arrived meanwhile, so within one life they are not compared."""
        lost = self._lives.judge(node, life, asked=Known())
        self._note(node, lost)
        self._ask_again(node, lost)

    def _note(self, node: NodeId, lost: str) -> None:
        if not lost:
            self.refused.pop(node, None)
            return
        self.refused_count += 1
        if self.refused.get(node) != lost:
            self.refused[node] = lost
            _log.error("a node began with an old copy of its disk", peer=node, why=lost)

    def _ask_again(self, node: NodeId, lost: str) -> None:
        """Reconnect a node that may be an old copy, so that its handshake decides."""
        if lost and self.link is not None:
            detail = f"node {node} may have begun with an old copy of its disk: {lost}"
            self.link.cut_off(node, CloseCode.OLD_COPY, detail)

    def _hear_of_self(self, node: NodeId, known: Mapping[NodeId, Known]) -> None:
        view, memory = known.get(self._node_id), self._memory
        if view is None or memory is None:
            return
        own = self.own()
        lost = memory_lost(view, own)
        if not lost or own.standing is Standing.DIVERGED:
            return
        self._record = replace(self._record, lost=f"{lost} (by node {node})")
        incarnation = max(int(time.time()), view.incarnation + 1, own.incarnation + 1)
        _log.error("this disk is an old copy, the node no longer votes", why=lost, told_by=node)
        memory.become_joining(incarnation)
        self.changed()
        self.save_soon()
