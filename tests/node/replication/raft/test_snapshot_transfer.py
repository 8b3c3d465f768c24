"""Snapshots between nodes: whole and verified or not at all, at a pace, in bounded memory."""

import random
import socket
from typing import Any

import pytest

from node.peers.connection import PeerConnection
from node.peers.frames import FrameKind
from node.peers.types import LinkLimits
from node.replication.raft.codec import encode_install
from node.replication.raft.snapshot_transfer import SnapshotLimits, SnapshotReceiver, SnapshotSender
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.messages import Configuration, ConfigurationAt, InstallSnapshot, NodeId, SnapshotMeta
from store.files.checksum import crc32c
from tests.node.links import Frame, Node, nodes, transport_of
from tests.patience import eventually
from tests.raft.cluster import GROUP
from tests.raft.rules.test_snapshot import lagging_cluster
from tests.seeds import noise

_LIMITS = SnapshotLimits(
    state_size_bytes_max=10_000, chunk_size_bytes=100, queued_size_bytes_max=300
)


def message(
    *, to: NodeId = 2, index: int = 9, term: int = 5, sender: NodeId = 1
) -> InstallSnapshot:
    at = ConfigurationAt(3, Configuration((1, 2, 3)))
    return InstallSnapshot("group", sender, to, term, SnapshotMeta(index, term, at), 7)


class FakeLink:
    """A link whose queue a test empties by hand."""

    def __init__(self) -> None:
        self.connected = True
        self.full = False
        self.queued: list[Frame] = []

    def send(self, node: NodeId, kind: FrameKind, header: bytes, payload: bytes = b"") -> bool:
        if self.full or not self.connected:
            return False
        self.queued.append((kind, header, payload))
        return True

    def is_connected(self, node: NodeId) -> bool:
        return self.connected

    def queued_size_bytes(self, node: NodeId) -> int:
        return sum(len(frame[2]) for frame in self.queued)

    def take(self) -> list[Frame]:
        taken, self.queued = self.queued, []
        return taken


class SlowLink(FakeLink):
    """A link that takes so many bytes, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self._taken_size_bytes = 0
        """Of the frame that is on its way."""

    def queued_size_bytes(self, node: NodeId) -> int:
        return super().queued_size_bytes(node) - self._taken_size_bytes

    def drain(self, size_bytes: int) -> list[Frame]:
        """Let time pass; return the frames that have arrived whole."""
        arrived: list[Frame] = []
        left = self._taken_size_bytes + size_bytes
        while self.queued and len(self.queued[0][2]) <= left:
            arrived.append(self.queued.pop(0))
            left -= len(arrived[-1][2])
        self._taken_size_bytes = left if self.queued else 0
        return arrived


class Pair:
    """A sender on node 1 and a receiver on node 2, and a link in between."""

    def __init__(self, state: bytes = b"", limits: SnapshotLimits = _LIMITS) -> None:
        self.state = state
        self.failed: list[tuple[NodeId, str]] = []
        self.received: list[tuple[InstallSnapshot, bytes]] = []
        self.link = FakeLink()
        link: Any = self.link
        self.sender = SnapshotSender(
            link, lambda node, reason: self.failed.append((node, reason)), limits
        )
        self.receiver = SnapshotReceiver(
            "group", 2, lambda what, state: self.received.append((what, state)), limits
        )

    def begin(self, message: InstallSnapshot) -> None:
        self.sender.begin(message, self.state)

    def put(self, *frames: Frame, node: NodeId = 1) -> None:
        for kind, header, payload in frames:
            self.receiver.on_frame(node, kind, header, memoryview(payload))

    def run(self, ticks: int = 1000) -> list[int]:
        """Pump and deliver until nothing moves; return how much was queued at each tick."""
        queued = []
        for now_ms in range(ticks):
            self.sender.pump(now_ms)
            frames = self.link.take()
            queued.append(sum(len(frame[2]) for frame in frames))
            self.put(*frames)
            if not frames:
                break
        return queued


def test_a_receiver_has_limits_also_where_nobody_gave_it_any() -> None:
    received: list[bytes] = []
    receiver = SnapshotReceiver("group", 2, lambda _, state: received.append(state))
    too_large = encode_install(message(), size_bytes=(64 << 20) + 1, crc=0)
    with pytest.raises(PeerProtocolError, match="at most 67108864 are taken"):
        receiver.on_frame(1, FrameKind.INSTALL_SNAPSHOT, too_large, memoryview(b""))
    empty = encode_install(message(), size_bytes=0, crc=crc32c(b""))
    receiver.on_frame(1, FrameKind.INSTALL_SNAPSHOT, empty, memoryview(b""))
    assert received == [b""]


@pytest.mark.parametrize("size_bytes", [0, 1, 99, 100, 101, 200, 5000, 10_000])
def test_a_state_arrives_whole(size_bytes: int) -> None:
    pair = Pair(random.Random(size_bytes).randbytes(size_bytes))
    pair.begin(message())
    assert max(pair.run()) == min(size_bytes, _LIMITS.queued_size_bytes_max), "in the queue"
    assert pair.received == [(message(), pair.state)]
    assert pair.failed == []
    assert (pair.sender.sent_count, pair.receiver.held_size_bytes) == (1, 0)


@pytest.mark.parametrize(
    ("size_bytes", "link", "patient_ms", "text"),
    [
        (1000, {"full": True}, (0, 29_999), "not sent within 30000 ms"),
        (100, {}, (5, 30_004), "not installed within 30000 ms"),
        (1000, {"connected": False}, (), "there is no connection"),
        (10_001, {}, (), "the snapshot has 10001 bytes, the limit is 10000"),
    ],
)
def test_a_transfer_that_fails_is_reported_once(
    size_bytes: int, link: dict[str, bool], patient_ms: tuple[int, ...], text: str
) -> None:
    pair = Pair(bytes(size_bytes))
    vars(pair.link).update(link)
    pair.begin(message())
    for now_ms in patient_ms:
        pair.sender.pump(now_ms)
    assert pair.failed == [], "the core is in the middle of its turn, or patient"
    for now_ms in (30_005, 60_010):
        pair.sender.pump(now_ms)
        assert (pair.failed, len(pair.sender.transfers)) == ([(2, text)], 0)


def test_a_transfer_that_takes_longer_than_the_core_waits_arrives_at_its_first_attempt() -> None:
    """A tick of the core is a second here: it gives up what has not moved for 60 of them."""
    cluster = lagging_cluster(snapshot_ticks_max=60)
    leader, state = cluster.nodes[1].replica, noise(70 * 1000)
    link: Any = SlowLink()
    failed, received = list[NodeId](), list[bytes]()
    limits = SnapshotLimits(chunk_size_bytes=8_000, queued_size_bytes_max=24_000)
    sender = SnapshotSender(link, lambda node, _: failed.append(node), limits)
    begun_count = 0

    def take(what: InstallSnapshot, content: bytes) -> None:
        received.append(content)
        cluster.receive(3, what, content)

    receiver = SnapshotReceiver(GROUP, 3, take, limits)
    seconds = 0
    while not received:
        cluster.tick(1)
        while cluster.net:
            for outgoing in cluster.take(InstallSnapshot):
                assert isinstance(outgoing.message, InstallSnapshot)
                sender.begin(outgoing.message, state)
                begun_count += 1
            cluster.deliver(count=1)
        for node in sender.pump(seconds * 1000):
            leader.core.report_snapshot_moved(node)
        for kind, header, payload in link.drain(1000):
            receiver.on_frame(1, kind, header, memoryview(payload))
        seconds += 1
        assert seconds < 200
    cluster.deliver()
    assert (begun_count, failed, received) == (1, [], [state])
    assert seconds >= 70
    assert cluster.state(3).commit == cluster.state(1).commit


def test_a_snapshot_queued_in_the_link_is_not_stuck() -> None:
    """The last byte was handed over long before it left; the follower has not got it yet."""
    link: Any = SlowLink()
    failed = list[NodeId]()
    limits = SnapshotLimits(chunk_size_bytes=1000, queued_size_bytes_max=60_000)
    sender = SnapshotSender(link, lambda node, _: failed.append(node), limits)
    sender.begin(message(), bytes(60_000))
    for second in range(60):
        assert sender.pump(second * 1000) == [2]
        assert link.drain(1000) != []
    assert sender.delivered() == [2]
    sender.pump(59_000 + limits.stalled_ms_max - 1)
    assert failed == []


def test_a_lost_connection_is_a_failure_also_after_the_last_byte() -> None:
    pair = Pair(bytes(1000))
    pair.sender.on_disconnected(2)
    assert pair.failed == []
    for ticks in (1, 1000):
        pair.begin(message())
        pair.run(ticks)
        pair.sender.on_disconnected(2)
        assert pair.failed.pop() == (2, "the connection was lost")


def test_a_new_snapshot_replaces_the_one_under_way() -> None:
    pair = Pair(bytes(1000))
    pair.begin(message(index=9))
    pair.run(1)
    pair.state = b"newer"
    pair.begin(message(index=12))
    pair.run()
    assert pair.received == [(message(index=12), b"newer")]


def test_a_deposed_leader_sends_and_reports_no_snapshot() -> None:
    pair = Pair(bytes(1000))
    pair.begin(message())
    pair.run(1)
    pair.sender.cancel()
    pair.sender.pump(100_000)
    assert (pair.link.queued, pair.failed) == ([], [])


# --- The receiver ---


def _header(state: bytes, what: InstallSnapshot | None = None, **changes: int) -> Frame:
    announced = {"size_bytes": len(state), "crc": crc32c(state)} | changes
    return FrameKind.INSTALL_SNAPSHOT, encode_install(what or message(), **announced), b""


def _chunk(at: int, data: bytes, index: int = 9) -> Frame:
    return (
        FrameKind.SNAPSHOT_CHUNK,
        pb.SnapshotChunk(index=index, at=at).SerializeToString(),
        data,
    )


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([_header(b"abcd"), _chunk(0, b"abcx")], "a snapshot with CRC"),
        ([_header(b"abcd"), _chunk(0, b"abcde")], "a chunk up to byte 5 of 4"),
        ([_header(b"abcd"), _chunk(0, b"ab"), _chunk(1, b"bc")], r"a chunk of \(9, 1\)"),
        ([_header(b"abcd"), _chunk(0, b"ab"), _chunk(3, b"d")], r"expected \(9, 2\)"),
        ([_header(b"abcd"), _chunk(0, b"abcd", index=8)], r"a chunk of \(8, 0\)"),
        ([_header(b"abcd"), _chunk(0, b"")], "a chunk up to byte 0 of 4"),
        ([_header(b"abcd", size_bytes=10_001)], "a snapshot of 10001 bytes, at most 10000"),
        ([_header(b"", crc=1)], "announced was 00000001"),
        ([(FrameKind.INSTALL_SNAPSHOT, b"\xff", b"")], "header of a INSTALL_SNAPSHOT"),
        ([_header(b"abcd"), (FrameKind.SNAPSHOT_CHUNK, b"\xff", b"a")], "a chunk's header"),
    ],
)
def test_a_malformed_snapshot_drops_the_connection(frames: list[Frame], text: str) -> None:
    pair = Pair()
    with pytest.raises(PeerProtocolError, match=text):
        pair.put(*frames)
    assert pair.received == []
    assert pair.receiver.held_size_bytes == 0
    pair.put(_header(b"good"), _chunk(0, b"good"))
    assert [state for _, state in pair.received] == [b"good"]


def test_chunks_of_nothing_known_are_ignored_and_a_lost_connection_frees_what_came() -> None:
    pair = Pair()
    pair.put(_chunk(100, b"late"))
    pair.put(_header(b"abcd"))
    pair.put(_chunk(0, b"abcd"), node=3)
    assert (pair.received, pair.receiver.held_size_bytes) == ([], 0)
    pair.receiver.on_disconnected(3)
    pair.put(_chunk(0, b"abcd"))
    assert len(pair.received) == 1
    pair.put(_header(b"abcd"), _chunk(0, b"ab"))
    assert pair.receiver.held_size_bytes == 2
    pair.receiver.on_disconnected(1)
    assert pair.receiver.held_size_bytes == 0
    pair.put(_chunk(2, b"cd"))
    assert len(pair.received) == 1


def test_the_snapshot_of_the_newest_leader_is_received() -> None:
    pair = Pair()
    older, newer = message(term=5), message(term=6, sender=3)
    pair.put(_header(b"old", older), _chunk(0, b"o"))
    pair.put(_header(b"new", newer), node=3)
    pair.put(_chunk(1, b"ld"))
    pair.put(_header(b"old", older), _chunk(0, b"old"))
    assert pair.received == []
    pair.put(_chunk(0, b"new"), node=3)
    assert pair.received == [(newer, b"new")]


async def test_over_real_links_with_a_connection_that_breaks_on_the_way() -> None:
    state = noise(8 << 20)
    limits = LinkLimits(reconnect_ms_min=5, reconnect_ms_max=40)
    async with nodes(Node(1, limits), Node(2, limits)) as (one, two):
        failed: list[NodeId] = []
        received: list[tuple[InstallSnapshot, bytes]] = []
        sender = SnapshotSender(one.link, lambda node, _: failed.append(node))
        receiver = SnapshotReceiver("group", 2, lambda *what: received.append(what))
        two.take_frame = receiver.on_frame
        one.on_disconnected = sender.on_disconnected  # type: ignore[method-assign]
        two.on_disconnected = receiver.on_disconnected  # type: ignore[method-assign]
        for connection in (*one.peer(2).connections, *two.peer(1).connections):
            _narrow(connection)
        sender.begin(message(), state)
        queued = 0

        def pumped(done: object) -> bool:
            nonlocal queued
            sender.pump(0)
            queued = max(queued, one.link.queued_size_bytes(2))
            return bool(done)

        await eventually(lambda: pumped(receiver.held_size_bytes > 1 << 20))
        assert not sender.sent_count, "the sockets hold all of it"
        dialled = one.peer(2).dialled
        assert dialled is not None
        transport_of(dialled).abort()
        await eventually(lambda: pumped(failed == [2]))
        # At once: a new connection opens amid it, beside one with many bytes on their way.
        sender.begin(message(), state)
        await eventually(lambda: pumped(received))
        assert (failed, received) == ([2], [(message(), state)])
        assert queued < (1 << 20) + (300 << 10)
        assert one.link.stats().peers[0].dropped_full_count == 0


def _narrow(connection: PeerConnection) -> None:
    """Give a socket small buffers, so that most of a state has not left when its rest is lost."""
    narrow = transport_of(connection).get_extra_info("socket")
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        narrow.setsockopt(socket.SOL_SOCKET, option, 64 << 10)
