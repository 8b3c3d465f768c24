"""Lives between nodes: what is told in a handshake, who is refused, what is kept on disk."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from node.metrics import LIVES
from node.peers import handshake
from node.peers.frames import FrameKind
from node.peers.handshake import CloseCode, HandshakeRefusedError
from node.peers.lives_codec import (
    KNOWN_LIVES_MAX,
    LivesFormatError,
    ToldBuild,
    decode_lives,
    encode_lives,
)
from node.peers.lives_file import FILE_NAMES, LivesFile, LivesRecord
from node.replication.lives import Facts, NodeLives
from node.replication.raft.codec import INCARNATION_MAX
from node.state.tables.level import LEVEL
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.lives import APART_MAX, PAST_MAX, Known, Lives, ToldLife
from raft.messages import NO_INDEX, Index, Standing
from store.errors import StoreFullError
from store.files.file_system import FileSystem
from tests.node.links import Node, connected, identity, nodes
from tests.patience import PATIENCE_S, eventually


class Disk:
    """A node's memory, for tests; implements `node.replication.lives.Memory`."""

    def __init__(self, term: int = 3, last_index: Index = 10) -> None:
        self.life = 0
        self.found: Facts | None = Facts(term, last_index, Standing.FULL, 0)
        self.seen: dict[int, Known] = {}
        self.is_leading = False
        self.incarnation_max = INCARNATION_MAX
        self.committed_index: Index | None = None

    def begin(self, life: int) -> None:
        self.life = life

    def facts(self) -> Facts | None:
        return self.found

    def become_joining(self, incarnation: int) -> None:
        assert self.found is not None
        self.found = self.found._replace(standing=Standing.JOINING, incarnation=incarnation)

    def look(self, lives: Lives) -> None:
        for node, known in self.seen.items():
            lives.note(node, known)


def _fail(error: BaseException) -> None:
    raise AssertionError from error


def opened(directory: Path, node: int, disk: Disk | None = None) -> tuple[NodeLives, Disk]:
    disk = disk or Disk()
    directory.mkdir(exist_ok=True)
    lives = NodeLives(node, _fail)
    lives.open(FileSystem(), str(directory), "cluster", disk)
    return lives, disk


async def stopped(*lives: NodeLives) -> None:
    for one in lives:
        await one.stop()


@asynccontextmanager
async def meeting(lives1: NodeLives, lives2: NodeLives) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that dial each other."""
    first, second = Node(1, lives=lives1), Node(2, lives=lives2)
    async with nodes(first, second, acquainted=False):
        first.link.set_peers({2: ("127.0.0.1", second.port)})
        second.link.set_peers({1: ("127.0.0.1", first.port)})
        yield first, second


# --- Bytes ---


@pytest.mark.parametrize(
    "made",
    [
        pb.Lives(own=pb.Life(standing=9)),
        pb.Lives(own=pb.Life(last_index=-2)),
        pb.Lives(own=pb.Life(term=1 << 63)),
        pb.Lives(known=[pb.KnownLife(node_id=0)]),
        pb.Lives(known=[pb.KnownLife(node_id=1, acked=-2)]),
        pb.Lives(known=[pb.KnownLife(node_id=n + 1) for n in range(KNOWN_LIVES_MAX + 1)]),
    ],
)
def test_lives_out_of_range_are_refused(made: pb.Lives) -> None:
    with pytest.raises(LivesFormatError):
        decode_lives(made.SerializeToString())


def test_the_longest_handshake_fits() -> None:
    life = ToldLife(
        1, 2, 3, 4, 5, 6, Standing.FULL, 7, 8, tuple(range(1 << 62, (1 << 62) + PAST_MAX))
    )
    lives = encode_lives(life, {1: Known(*[1 << 62] * 7)})
    _, challenge = handshake.challenge()
    _, header = handshake.hello(identity(1), challenge, to=2, last_index=3, lives=lives)
    assert len(header) < 2048


# --- Proofs ---


def test_lives_have_a_proof_of_their_own() -> None:
    nonce, challenge = handshake.challenge()
    _, header = handshake.hello(identity(2), challenge, to=1, last_index=3, lives=b"\x0a\x00")
    _, info = handshake.check_hello(identity(1), header, challenge_nonce=nonce, peers={2})
    assert info.lives == b"\x0a\x00"
    forged = pb.Hello.FromString(header)
    for lives in (b"\x0a\x02\x08\x07", b""):
        forged.lives = lives
        with pytest.raises(HandshakeRefusedError, match="secrets"):
            handshake.check_hello(
                identity(1), forged.SerializeToString(), challenge_nonce=nonce, peers={2}
            )
    header = handshake.welcome(identity(2), to=1, nonce=5, last_index=3, lives=b"\x0a\x00")
    assert handshake.check_welcome(identity(1), header, to=2, nonce=5).lives == b"\x0a\x00"
    answer = pb.Welcome.FromString(header)
    answer.lives = b"\x0a\x02\x08\x07"
    with pytest.raises(HandshakeRefusedError, match="secrets"):
        handshake.check_welcome(identity(1), answer.SerializeToString(), to=2, nonce=5)


async def test_peers_learn_in_the_handshake_what_a_node_tells_of_itself(tmp_path: Path) -> None:
    lives1, _ = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    lives1.build = ToldBuild(LEVEL, b"a user", "prepare")
    async with meeting(lives1, lives2) as (first, second):
        await connected(first, second)
        lives1.changed()  # A frame of lives says nothing of it.
        assert (lives1.builds[2], lives2.builds[1]) == (ToldBuild(LEVEL), lives1.build)
    await stopped(lives1, lives2)


# --- The file ---


def test_the_file_says_what_was_saved(tmp_path: Path) -> None:
    file = LivesFile(FileSystem(), str(tmp_path))
    assert file.load("cluster", 1) == LivesRecord("cluster", 1)
    memory = Known(1, 2, 3, 4, 5, 6, 5)
    apart = {2: (Known(2, 3, 3, 4, 5, 7, 6), Known(1, 9))}
    record = LivesRecord("cluster", 1, 3, (9, 8), 7, "why", 5, 7, {2: memory}, apart)
    file.save(record)
    assert LivesFile(FileSystem(), str(tmp_path)).load("cluster", 1) == record
    # A restore makes another cluster's node of a directory.
    for cluster, node in (("another", 1), ("cluster", 2)):
        other = LivesFile(FileSystem(), str(tmp_path)).load(cluster, node)
        assert other == LivesRecord(cluster, node)
    # More memories of a node than are kept apart are damage.
    file.save(replace(record, apart={2: (Known(),) * (APART_MAX + 1)}))
    damaged = LivesFile(FileSystem(), str(tmp_path)).load("cluster", 1)
    assert damaged == LivesRecord("cluster", 1)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path, name: str) -> None:
    """The own life is in another file, too; the rest is learned again."""
    _, disk = opened(tmp_path, 1)
    (tmp_path / name).write_bytes(b"garbage")
    assert opened(tmp_path, 1, disk)[0].own().life == 2
    (tmp_path / name).unlink()
    assert opened(tmp_path, 1, disk)[0].own().life == 3


def test_a_life_is_raised_with_each_start_and_durable_at_once(tmp_path: Path) -> None:
    nonces: list[int] = []
    for life in (1, 2, 3):
        lives, disk = opened(tmp_path, 1)
        assert (lives.own().life, disk.life) == (life, life)
        assert lives.own().past == tuple(reversed(nonces))
        nonces.append(lives.own().nonce)
    assert len(set(nonces)) == 3


def test_a_node_that_is_part_of_nothing_tells_no_life(tmp_path: Path) -> None:
    disk = Disk()
    disk.found = None
    lives, _ = opened(tmp_path, 1, disk)
    assert lives.own().life == 0
    disk.found = Facts(1, 5, Standing.FULL, 0)
    assert (lives.own().life, lives.own().start_last_index) == (1, 5), "nothing to compare"


class HangingDisk(FileSystem):
    """Its syncs wait until they are let go; notes how many were there at a time."""

    def __init__(self) -> None:
        self.may_go, self.has_come = threading.Event(), threading.Event()
        self.may_go.set()
        self.count = self.count_max = 0

    def sync(self, fd: int, path: str) -> None:
        self.count += 1
        self.count_max = max(self.count_max, self.count)
        self.has_come.set()
        assert self.may_go.wait(PATIENCE_S)
        super().sync(fd, path)
        self.count -= 1


async def test_a_stop_saves_after_the_save_that_runs(tmp_path: Path) -> None:
    """Two at a time would write one temporary file, and a torn file is a lost life."""
    fs, disk = HangingDisk(), Disk()
    lives = NodeLives(1, _fail)
    lives.open(fs, str(tmp_path), "cluster", disk)
    fs.may_go.clear()
    fs.has_come.clear()
    disk.seen[2] = Known(term=3)
    lives.save_soon()
    await eventually(fs.has_come.is_set, "a save")
    disk.seen[2] = Known(term=4)
    stop = asyncio.ensure_future(lives.stop())
    for _ in range(100):  # Long enough to begin a second one.
        await asyncio.sleep(0)
    fs.may_go.set()
    await stop
    assert fs.count_max == 1
    assert LivesFile(FileSystem(), str(tmp_path)).load("cluster", 1).known[2].term == 4


class FullDisk(FileSystem):
    is_full = False

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if self.is_full and create:
            raise StoreFullError(path, 1, 0)
        return super().open(path, create=create, read_only=read_only)


async def test_a_full_disk_begins_no_life_and_keeps_one_that_began(tmp_path: Path) -> None:
    """The error of the start is what the operator hears of, and no other one at the stop. Later
    saves are tried again each second; lines of the log take room as well, so one tells of all."""
    fs, disk = FullDisk(), Disk()
    fs.is_full = True
    lives = NodeLives(1, _fail)
    with pytest.raises(StoreFullError):
        lives.open(fs, str(tmp_path), "cluster", disk)
    await lives.stop()
    fs.is_full = False
    lives = NodeLives(1, _fail)
    lives.open(fs, str(tmp_path), "cluster", disk)
    with capture_logs() as lines:
        for term in range(4, 9):
            fs.is_full = term != 6
            disk.seen[2] = Known(term=term)
            await lives.save()
    assert len([line for line in lines if "was not saved" in line["event"]]) == 2
    fs.is_full = False
    await lives.stop()
    assert LivesFile(FileSystem(), str(tmp_path)).load("cluster", 1).known[2].term == 8


# --- What cannot be ---


async def test_of_nodes_that_are_no_peers_nothing_is_remembered(tmp_path: Path) -> None:
    """Else a peer could fill the memory, and what is told then would be too much for the others."""
    lives1, _ = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    lives1.forget(frozenset({1, 2, 3}))
    for first in (3, 1000, 2000):
        strange = {first + n: Known(life=7) for n in range(KNOWN_LIVES_MAX)}
        said = encode_lives(lives2.own(), strange)
        lives1.on_frame(2, FrameKind.LIVES, said, memoryview(b""))
    assert set(lives1.remembered()) == {2, 3}
    await stopped(lives1, lives2)


async def test_a_peer_that_tells_of_many_lives_is_counted_and_fills_no_file(tmp_path: Path) -> None:
    lives1, _ = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    lives1.forget(frozenset({1, 2, 3}))
    for life in range(1, 200):
        said = encode_lives(lives2.own(), {3: Known(life, 1_000 + life)})
        lives1.on_frame(2, FrameKind.LIVES, said, memoryview(b""))
    assert LIVES["old_copy_memories_dropped"].read(lives1) == 199 - 1 - APART_MAX
    await stopped(lives1, lives2)
    saved = LivesFile(FileSystem(), str(tmp_path / "1")).load("cluster", 1)
    assert len(saved.apart[3]) == APART_MAX


@pytest.mark.parametrize(
    ("own", "known"),
    [
        ({}, {1: Known(incarnation=1 << 40)}),
        ({}, {3: Known(incarnation=1 << 40)}),
        ({"incarnation": (1 << 40) + 1}, {}),
        ({"joined": (1 << 40) + 1}, {}),
    ],
)
async def test_an_incarnation_that_no_peer_would_take_is_not_believed(
    tmp_path: Path, own: dict[str, Any], known: dict[int, Known]
) -> None:
    """A node that took one above it would never be heard again, whatever became of it."""
    lives1, disk = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    lives1.forget(frozenset({1, 2, 3}))
    said = encode_lives(lives2.own()._replace(**own), known)
    with pytest.raises(LivesFormatError, match="incarnation"):
        lives1.judge(2, said, {})
    with pytest.raises(PeerProtocolError, match="incarnation"):
        lives1.on_frame(2, FrameKind.LIVES, said, memoryview(b""))
    assert (disk.facts(), lives1.lost, lives1.remembered()) == (Disk().facts(), "", {})
    believed = encode_lives(lives2.own(), {1: Known(incarnation=(1 << 40) - 1)})
    assert lives1.judge(2, believed, {}) == ""
    assert disk.found is not None
    assert disk.found.incarnation == 1 << 40, "the highest that is taken"
    await stopped(lives1, lives2)


# --- Two nodes ---


async def test_an_old_copy_is_refused_hears_why_and_comes_in_without_a_vote(tmp_path: Path) -> None:
    lives1, _ = opened(tmp_path / "1", 1)
    lives2, disk = opened(tmp_path / "2", 2)
    lives1.judge(2, encode_lives(lives2.own()._replace(life=5, nonce=55), {}), {})
    async with meeting(lives1, lives2) as (_, second):
        await eventually(lambda: second.link.is_connected(1), "the node to be let in")
        assert disk.found is not None
        assert disk.found.standing is Standing.JOINING
        assert "seen in life 5" in lives2.lost
        assert "by node 1" in lives2.lost
        await eventually(lambda: not lives1.refused)
    await stopped(lives1, lives2)
    again = LivesFile(FileSystem(), str(tmp_path / "1")).load("cluster", 1)
    assert again.known[2].incarnation == disk.found.incarnation


async def test_a_life_is_saved_at_the_handshake_that_told_it(tmp_path: Path) -> None:
    """A replica of a master-slave group hears of peers in handshakes only. One that was killed
    within a second of a peer's start took the peer's former disk back for the newest."""
    lives1, _ = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    assert lives1.judge(2, lives2.tell(1), {}) == ""
    kept = LivesFile(FileSystem(), str(tmp_path / "1"))
    await eventually(lambda: 2 in kept.load("cluster", 1).known, "the life to be saved")
    assert kept.load("cluster", 1).known[2].nonce == lives2.own().nonce
    await stopped(lives1, lives2)


async def test_a_node_that_cannot_join_gets_no_connection(tmp_path: Path) -> None:
    """A node whose disk is full cannot give its vote up; it is refused as long as that is so."""

    class Full(Disk):
        def become_joining(self, incarnation: int) -> None:
            pass

    lives1, _ = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2, Full())
    lives1.judge(2, encode_lives(lives2.own()._replace(life=5, nonce=55), {}), {})
    async with meeting(lives1, lives2) as (first, _):
        await eventually(lambda: lives1.refused_count > 3, "refusals")
        assert not first.link.is_connected(2)
        assert first.events == []
        assert first.closed_counts[CloseCode.OLD_COPY] > 0
        assert "old copy" in lives1.warnings()[0]
        await eventually(lambda: first.link.stats().peers[0].last_trouble != "")
    await stopped(lives1, lives2)


async def test_peers_that_tell_no_lives_are_connected(tmp_path: Path) -> None:
    lives1, _ = opened(tmp_path / "1", 1)
    async with nodes(Node(1, lives=lives1), Node(2)) as made:
        assert made[0].link.is_connected(2)
    await lives1.stop()
    assert lives1.refused_count == 0


async def test_a_start_waits_for_peers_that_can_be_reached(tmp_path: Path) -> None:
    """One is there, one refuses the connection; nobody is waited for after that."""
    async with nodes(Node(1), Node(2), acquainted=False) as made:
        made[0].link.set_peers({2: ("127.0.0.1", made[1].port), 3: ("127.0.0.1", 1)})
        made[1].link.set_peers({1: ("127.0.0.1", made[0].port)})
        await made[0].link.wait_tried()
        assert made[0].link.is_connected(2)


async def test_acks_within_a_life_are_not_held_against_it(tmp_path: Path) -> None:
    """They may come while a handshake is under way, and are beyond what it says then."""
    lives1, disk = opened(tmp_path / "1", 1)
    lives2, theirs = opened(tmp_path / "2", 2)
    assert lives1.judge(2, lives2.tell(1), {}) == ""
    memories = lives1.remembered()
    said = lives2.tell(1)
    disk.seen[2] = Known(0, 0, 0, 3, 3, 500, 500)
    assert lives1.judge(2, said, memories) == ""
    assert theirs.found is not None
    assert "had acked 500" in lives1.judge(2, said, lives1.remembered())
    await stopped(lives1, lives2)


async def test_a_peer_met_in_a_repair_is_known_by_its_life_then(tmp_path: Path) -> None:
    """What it promises from then on is of that life, and not of the one that is in the file."""
    lives1, disk = opened(tmp_path / "1", 1)
    lives2, theirs = opened(tmp_path / "2", 2)
    assert lives1.judge(2, lives2.tell(1), {}) == ""
    await stopped(lives1, lives2)
    lives2, _ = opened(tmp_path / "2", 2, theirs)
    lives1 = NodeLives(1, _fail)
    assert lives1.judge(2, lives2.tell(1), {}) == "", "the own log is not open yet"
    lives1.open(FileSystem(), str(tmp_path / "1"), "cluster", disk)
    assert lives1.remembered()[2].life == 2
    theirs.found = Facts(4, 20, Standing.FULL, 0)
    disk.seen[2] = Known(0, 0, 0, 4, 4, 20, 20)
    assert lives1.judge(2, lives2.tell(1), lives1.remembered()) == ""
    await stopped(lives1, lives2)


async def test_an_old_copy_that_was_met_for_a_repair_is_found_out(tmp_path: Path) -> None:
    lives1, disk = opened(tmp_path / "1", 1)
    lives2, _ = opened(tmp_path / "2", 2)
    newer = lives2.own()._replace(life=5, nonce=55)
    assert lives1.judge(2, encode_lives(newer, {}), {}) == ""
    await lives1.stop()
    lives1 = NodeLives(1, _fail)
    first, second = Node(1, lives=lives1), Node(2, lives=lives2)
    lives1.link = first.link
    async with nodes(first, second):
        lives1.open(FileSystem(), str(tmp_path / "1"), "cluster", disk)
        assert "seen in life 5" in lives1.refused[2]
        await eventually(lambda: "seen in life 5" in lives2.lost, "the node to hear it")
        await eventually(lambda: not lives1.refused, "the node to be let in")
    await stopped(lives1, lives2)


async def test_a_commit_index_of_an_earlier_incarnation_is_not_believed(tmp_path: Path) -> None:
    """After a loss of power other entries may lie there."""

    lives, disk = opened(tmp_path, 1)
    disk.committed_index = 7
    await lives.save()
    assert opened(tmp_path, 1)[0].committed_index == 7
    assert disk.found is not None
    disk.found = disk.found._replace(incarnation=1)
    assert opened(tmp_path, 1, disk)[0].committed_index == NO_INDEX
    await lives.stop()
