"""Compares the replicated states of a group: at points of the log, in production.

Owns when a digest point is written, what is reported to the leader, and what follows from the
digest of a majority. Must not know what the state holds, nor what a fence means for callers.

The leader writes a point. Each replica takes the image of its state right behind it, digests that
on the maintenance thread, and reports the digest to the leader, which writes into the log what a
majority of the voters reported, itself included or not. Each replica that applies this compares it
with its own: one that differs puts its fence up, the leader as any other. Without a majority no
node is fenced, since none is known to be right. A digest that comes too late, or that this node had
no time for, is not compared; the next one is.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from node.errors.common import NodeError, ShuttingDownError
from node.peers.frames import FrameKind
from node.peers.link import PeerLink
from node.replication.maintenance import MaintenanceThread
from node.replication.raft.digests.fence import StateFence
from node.replication.raft.driver import RaftDriver
from node.state.appends import Committed, Prepared
from node.state.command_records import CommandEncoder
from node.state.digest import FORM, Digest, DigestFormatError, digest_of, from_pb, to_pb
from node.state.machine import StateMachine
from node.state.state import StateImage
from quorumlog.pb.state_pb2 import Command, DigestPoint, StateDigest
from raft.errors import PeerProtocolError, RaftError
from raft.messages import NO_NODE, NodeId
from raft.quorum import quorum_size
from raft.transitions import Role
from store.errors import StoreError

POINT_COMMAND_COUNT: Final = 10_000
"""Commands after which a point is due: a hundredth of a percent of the entries then."""
POINT_AGE_MS: Final = 60_000
"""Time after which it is due with fewer commands. Without any there is none: an idle log does not
grow."""
POINT_PAUSE_MS: Final = 1_000
"""Least time between two points; also the interval at which the leader looks."""
DIGEST_SHARE: Final = 50
"""A leader lets as many times pass as its last digest took, so they cost a fiftieth of the time."""
UNDECIDED_MS: Final = 10_000
"""Age of a point at which digests that differ, and no majority, are told: others are silent."""
KEPT_COUNT: Final = 4
"""Points of which the own digest, and that of a majority, is kept. The second follows the first
before the next point as a rule."""
_log: Final = structlog.get_logger(component="digests")


class Reports:
    """The newest digest that each replica reported to this leader."""

    def __init__(self) -> None:
        self._newest: dict[NodeId, Digest] = {}

    def add(self, node: NodeId, digest: Digest) -> None:
        """Note the digest of a member; one of an earlier point is dropped."""
        newest = self._newest.get(node)
        if newest is None or newest.position <= digest.position:
            self._newest[node] = digest

    def keep(self, members: Iterable[NodeId]) -> None:
        """Forget all nodes but these."""
        for node in self._newest.keys() - set(members):
            del self._newest[node]

    def at(self, position: int) -> dict[NodeId, Digest]:
        """Return the digests of the nodes that reported one at a point."""
        return {node: one for node, one in self._newest.items() if one.position == position}

    def majority(self, position: int, voters: Sequence[NodeId]) -> Digest | None:
        """Return the digest that a majority of all voters has at a point; None if none has it."""
        counts = Counter(one for node, one in self.at(position).items() if node in voters)
        for digest, count in counts.most_common(1):
            if count >= quorum_size(len(voters)):
                return digest
        return None


class StateChecks:
    """The checks of one node. Belongs to the loop's thread."""

    def __init__(
        self,
        machine: StateMachine,
        driver: RaftDriver,
        link: PeerLink,
        thread: MaintenanceThread,
        fence: StateFence,
        spawn: Callable[[object], None],
    ) -> None:
        """`spawn` runs a coroutine as a task whose error ends the process."""
        self._machine, self._driver, self._link = machine, driver, link
        self._thread, self._spawn = thread, spawn
        self.fence: Final = fence
        self._loop = asyncio.get_running_loop()
        self._encoder = CommandEncoder(driver.log.store.config.store_host)
        self._reports = Reports()
        self._own: dict[int, Digest] = {}
        self._decided: dict[int, Digest] = {}
        """Digests of majorities, as the log has them."""
        self._point = -1
        """Position of the last point that was applied here."""
        self._point_s = self._loop.time()
        self._is_decided = False
        """Whether the log has a majority's digest of it."""
        self._is_told = False
        """Whether it was told that it has none."""
        self._offset = -1
        """The next command's offset if none but those of checks came since that point."""
        self._replaced_count = 0
        """Snapshots that replaced the state: digests from before no longer count."""
        self._next: tuple[int, StateImage] | None = None
        """The newest point that waits for its digest, and its image."""
        self._is_digesting = self._is_writing = False
        self.duration_s = 0.0
        """Time that the last digest took."""
        self._timer: asyncio.TimerHandle | None = None
        self.equal_count = self.differing_count = 0
        """Own digests that were equal to that of a majority, and that differed, since the start."""
        self.undecided_count = 0
        """Leader only: points at which replicas differed and no majority agreed."""
        self.passed_over_count = 0
        """Points and digests of a majority that were not compared: no time, another form, or none
        at all, which the log names."""
        machine.on_digest_command = self.on_command

    # --- Life ---

    def start(self) -> None:
        """Look from now on, as long as this node leads, whether a point is due."""
        self._timer = self._loop.call_later(POINT_PAUSE_MS / 1000, self._on_timer)

    def stop(self) -> None:
        """Write no point any more."""
        if self._timer is not None:
            self._timer.cancel()

    # --- Commands that this node applies ---

    def on_command(self, command: Command | None, position: int) -> None:
        """Take a command as the machine passes it; None: a snapshot replaced the state."""
        if command is None:
            self.on_replaced()
            return
        if command.HasField("state_digest"):
            self.on_digest(command.state_digest)
        if command.HasField("digest_point"):
            self.on_point(position)

    def on_point(self, position: int) -> None:
        """Take the image of the state as it is now, and have it digested."""
        self._point, self._point_s = position, self._loop.time()
        self._is_decided = self._is_told = False
        self._offset = self._machine.state.next_command_offset
        self.passed_over_count += self._next is not None
        self._next = position, self._machine.image()
        if not self._is_digesting:
            self._is_digesting = True
            self._spawn(self._digest_all())

    def on_digest(self, digest: StateDigest) -> None:
        """Compare the own digest with that of a majority, now or once it is there."""
        self._offset += 1
        is_of_point = digest.position == self._point
        if digest.form != FORM:
            self._is_decided |= is_of_point
            self.passed_over_count += 1
            return
        try:
            decided = from_pb(digest)
        except DigestFormatError as error:
            # It is in every log: a replica that ended here would end again after each start.
            self.passed_over_count += 1
            _log.error("the log has a digest that is none", why=str(error))
            return
        self._is_decided |= is_of_point
        _keep(self._decided, decided)
        self._compare(decided.position)

    def on_replaced(self) -> None:
        """Forget what was digested of the state before."""
        self._replaced_count += 1
        self._next = None
        self._own.clear()
        self._point = self._offset = -1

    # --- The own digest ---

    async def _digest_all(self) -> None:
        """Digest the newest image, until there is no newer one."""
        try:
            while self._next is not None:
                (position, image), self._next = self._next, None
                await self._digest(position, image)
        except ShuttingDownError:
            return  # The thread has ended, and the node with it.
        finally:
            self._is_digesting = False

    async def _digest(self, position: int, image: StateImage) -> None:
        replaced_count = self._replaced_count
        digest, self.duration_s = await self._thread.on_thread(lambda: _timed(image, position))
        if digest is None:
            self.passed_over_count += 1
            return
        if replaced_count != self._replaced_count:
            return
        _keep(self._own, digest)
        self._compare(position)
        self._report(digest)

    def _compare(self, position: int) -> None:
        own, decided = self._own.get(position), self._decided.get(position)
        if own is None or decided is None:
            return
        differing = own.differing(decided)
        if not differing:
            self.equal_count += 1
            self.fence.lift(position)
            return
        self.differing_count += 1
        self.fence.close(", ".join(differing), position)

    def _report(self, digest: Digest) -> None:
        """Tell the leader the own digest. A node behind its fence is no witness."""
        driver = self._driver
        if self.fence.reason:
            return
        if driver.role is Role.LEADER:
            self._reports.add(driver.node_id, digest)
            self._decide()
        elif driver.leader_id != NO_NODE:
            header = to_pb(digest).SerializeToString()
            self._link.send(driver.leader_id, FrameKind.STATE_DIGEST, header)

    # --- The leader ---

    def on_frame(self, node: NodeId, _kind: FrameKind, header: bytes, _payload: memoryview) -> None:
        """Take the digest of a replica. Raises PeerProtocolError: drop the connection.

        One whose memory is in doubt is no witness: it may have nothing but this node's state."""
        try:
            digest = from_pb(StateDigest.FromString(header))
        except (DecodeError, DigestFormatError) as error:
            raise PeerProtocolError(node, f"a digest of the state: {error}") from error
        driver = self._driver
        progress = driver.replica.core.state.progress.get(node)
        if driver.role is Role.LEADER and progress is not None and progress.is_counted:
            self._reports.add(node, digest)
            self._decide()

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(POINT_PAUSE_MS / 1000, self._on_timer)
        self.look()

    def look(self) -> None:
        """Write what is due, if this node leads."""
        if not self._driver.is_ready:
            return
        state = self._driver.replica.core.state
        self._reports.keep((self._driver.node_id, *state.progress))
        self._decide()
        self._tell_undecided()
        if self._is_due():
            self._write(Command(digest_point=DigestPoint()))

    def _is_due(self) -> bool:
        count = self._machine.state.next_command_offset - self._offset
        age_s = self._loop.time() - self._point_s
        if count <= 0 or age_s < max(POINT_PAUSE_MS / 1000, DIGEST_SHARE * self.duration_s):
            return False
        return count >= POINT_COMMAND_COUNT or age_s >= POINT_AGE_MS / 1000

    def _decide(self) -> None:
        """Write the digest that a majority has at the last point, if there is one."""
        if self._is_decided or self._is_writing or not self._driver.is_ready:
            return
        voters = self._driver.replica.core.state.voters
        digest = self._reports.majority(self._point, voters)
        if digest is None:
            return
        for node, found in self._reports.at(self._point).items():
            if found.form == digest.form and found != digest:
                tables = ", ".join(found.differing(digest))
                _log.error("the state of a replica differs", differing=node, tables=tables)
        self._write(Command(state_digest=to_pb(digest)))

    def _tell_undecided(self) -> None:
        """Tell of replicas that differ, with no majority that says which is right."""
        if self._is_decided or self._is_told:
            return
        if self._loop.time() - self._point_s < UNDECIDED_MS / 1000:
            return
        reports = {n: one for n, one in self._reports.at(self._point).items() if one.form == FORM}
        if len(set(reports.values())) > 1:
            self._is_told = True
            self.undecided_count += 1
            what = "replicas differ in their state, and no majority agrees"
            _log.error(what, reported=sorted(reports))

    def _write(self, command: Command) -> None:
        """Write a command that changes nothing but what the replicas know of each other.

        What prevents it passes, and the next look tries again."""
        if self._is_writing:
            return
        command.put_member.SetInParent()
        try:
            written = self._driver.append(self._encoder.encode(command), _accept)
        except (NodeError, StoreError, RaftError) as error:
            _log.debug("no digest is written", error=str(error))
            return
        self._is_writing = True
        written.add_done_callback(self._on_written)

    def _on_written(self, written: "asyncio.Future[Committed]") -> None:
        self._is_writing = False
        if not written.cancelled() and written.exception() is not None:
            _log.debug("a digest was not written", error=str(written.exception()))


def _timed(image: StateImage, position: int) -> tuple[Digest | None, float]:
    """Return the digest of an image, and how long that took in seconds, without any wait for the
    thread. None: a value has no digest."""
    began_s = time.monotonic()
    try:
        digest = digest_of(image, position)
    except (TypeError, ValueError, RecursionError) as error:
        # The value is in every replica: each of them would end, after every restart again.
        _log.error("the state has a value without a digest", why=f"{type(error).__name__}: {error}")
        digest = None
    return digest, time.monotonic() - began_s


def _keep(digests: dict[int, Digest], digest: Digest) -> None:
    digests[digest.position] = digest
    if len(digests) > KEPT_COUNT:
        del digests[min(digests)]


def _accept(prepared: Prepared) -> None:
    """Accept: there is nothing to check of a command of the node itself."""
