"""Three nodes that compare their states, one of which is made to differ."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.errors.common import ReservedTopicError, StateDivergedError
from node.peers.frames import FrameKind
from node.replication.raft.digests import checks
from node.state.command_records import CommandEncoder
from node.state.digest import FORM, Digest, to_pb
from node.state.state import Member
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest
from quorumlog.pb.state_pb2 import Command, StateDigest, TableDigest
from raft.errors import PeerProtocolError
from raft.messages import NO_INDEX, NO_NODE, InstallSnapshot
from raft.rules import snapshot
from raft.transitions import Role
from tests.node.whole_nodes import WholeNode, WholeNodes
from tests.patience import eventually
from tests.store.records import PAGE, batch, small_config

pytestmark = pytest.mark.long
CONFIG = small_config(container="ledger", file_size_bytes=4 * PAGE, disk_reserve_bytes=0)


@pytest.fixture(autouse=True)
def _compared_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point behind each command, as soon as the one before is decided."""
    monkeypatch.setattr(checks, "POINT_PAUSE_MS", 1)
    monkeypatch.setattr(checks, "POINT_COMMAND_COUNT", 1)
    monkeypatch.setattr(checks, "DIGEST_SHARE", 0)


@asynccontextmanager
async def compared_often(root: Path, **options: Any) -> AsyncIterator[tuple[WholeNodes, WholeNode]]:
    """Three nodes with a topic, and their leader; none may have died at the end."""
    world = WholeNodes(root, 1, CONFIG, **options)
    await world.start()
    try:
        leader = await world.leader()
        await leader.broker.topics.create_topic(CreateTopicRequest(topic="orders", queue_count=1))
        await world.settled()
        yield world, leader
    finally:
        await world.stop()
    world.check_alive()


def differ(node: WholeNode) -> None:
    """Plant a row that no command brought."""
    node.machine.state.members[77] = Member(f"planted:{node.node_id}", "")


async def change(world: WholeNodes, number: int) -> None:
    """Have whoever leads append a command."""
    leader = await world.leader()
    await leader.broker.put_member(number, f"n{number}:1", "")


async def compared(world: WholeNodes, *nodes: WholeNode) -> None:
    """Wait until these nodes, by default all, have compared a state of after this call."""
    seen = nodes or world.up

    def counts() -> list[int]:
        return [node.checks.equal_count + node.checks.differing_count for node in seen]

    before = counts()

    def has_all() -> bool:
        world.check_alive()
        return all(now > then for now, then in zip(counts(), before, strict=True))

    await change(world, 50)
    await eventually(has_all, "a digest of a majority")


async def quiet(world: WholeNodes) -> WholeNode:
    """Wait until nothing is left to compare; return the leader."""
    leader = await world.leader()
    checked = leader.checks

    def is_quiet() -> bool:
        return checked._is_decided and not checked._is_writing and not checked._is_due()

    await eventually(is_quiet, "nothing to compare")
    await world.settled()
    return leader


def fenced(world: WholeNodes) -> list[int]:
    return [node.node_id for node in world.up if node.fence.reason]


async def with_one_fenced(world: WholeNodes) -> tuple[WholeNode, WholeNode]:
    """Have a follower differ and put its fence up; return the leader and it."""
    leader = await world.leader()
    node = next(one for one in world.up if one is not leader)
    differ(node)
    await compared(world)
    await eventually(lambda: fenced(world) == [node.node_id], "a fence")
    return leader, node


async def test_follower_that_differs_fences_itself_and_the_others_go_on(tmp_path: Path) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        leader, node = await with_one_fenced(world)
        assert node.fence.reason.startswith("members behind log position ")
        assert "A state that differs" in node.fence.problem
        assert node.log.node_file.record.state_fence == node.fence.reason
        local = PullRequest(topic="orders", consistency=common_pb2.CONSISTENCY_LOCAL)
        with pytest.raises(StateDivergedError) as refused:
            await node.broker.pull(local)
        assert refused.value.retryable
        await leader.broker.pull(local)
        # It is no witness any more.
        await compared(world, leader, node)
        await compared(world, leader, node)  # What was sent before has arrived by now.
        last = leader.checks._reports._newest[node.node_id]
        assert last.position == node.log.node_file.record.state_fence_position
        # Its log goes on: it acks, and so appends survive the loss of the third node.
        third = next(one for one in world.up if one not in (leader, node))
        await third.crash()
        await leader.broker.append(AppendRequest(records=batch(0, 3), record_count=3))
        await eventually(
            lambda: node.driver.applied_index == leader.driver.applied_index, "entries"
        )


async def test_leader_that_differs_writes_what_the_majority_has_and_another_one_leads(
    tmp_path: Path,
) -> None:
    async with compared_often(tmp_path) as (world, old):
        differ(old)
        await change(world, 2)
        await eventually(lambda: fenced(world) == [old.node_id], "a fence")
        assert not old.driver.is_ready, "it serves nothing from then on"
        await eventually(lambda: old.driver.role is not Role.LEADER, "another leader")
        new = await world.leader()
        assert new is not old
        await new.broker.append(AppendRequest(records=batch(0, 3), record_count=3))
        await compared(world, *(node for node in world.up if node is not old))
        assert fenced(world) == [old.node_id]


async def test_fenced_node_votes_and_is_never_elected(tmp_path: Path) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        leader, node = await with_one_fenced(world)
        await world.settled()
        roles: list[Role] = []
        node.driver.add_role_listener(lambda change: roles.append(change.role))
        leader = await world.leader()
        leader.driver.transfer_leadership(node.node_id)
        state = leader.driver.replica.core.state
        assert state.transferee == node.node_id
        await eventually(lambda: state.transferee == NO_NODE, "a hand-over that is given up")
        leader = await world.leader()
        third = next(one for one in world.up if one not in (leader, node))
        await leader.crash()
        await eventually(lambda: third.driver.is_ready, "the third node, by the vote of the fenced")
        await third.crash()
        for _ in range(10 * node.driver.replica.config.election_ticks_max):
            timer = node.driver._tick_timer
            assert timer is not None
            timer.cancel()
            node.driver._on_tick()
        assert set(roles) <= {Role.FOLLOWER}


async def test_fence_survives_a_restart_and_goes_when_the_state_built_anew_is_equal(
    tmp_path: Path,
) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        _, node = await with_one_fenced(world)
        await node.maintain()
        assert node.files.applied_index > NO_INDEX, "the checkpoint holds the state that differs"
        await node.crash()
        await world.restart(node)
        assert node.fence.reason
        assert node.driver.is_fenced
        assert 77 not in node.machine.state.members, "the log has all of it"
        assert list((node.root / "damaged").glob("config-*")), "the evidence"
        await compared(world, node)
        await eventually(lambda: fenced(world) == [], "no fence")
        assert node.log.node_file.record.state_fence == ""
        await node.broker.pull(
            PullRequest(topic="orders", consistency=common_pb2.CONSISTENCY_LOCAL)
        )


async def test_checkpoint_that_was_changed_behind_its_checksums_is_found(tmp_path: Path) -> None:
    """What a defect of a checkpoint would do: the node begins with another state than it had."""

    async with compared_often(tmp_path) as (world, leader):
        node = next(one for one in world.up if one is not leader)
        await compared(world)
        image = node.machine.image()
        await node.crash()
        wrong = image._replace(
            topics={}, versions=image.versions._replace(topics=image.versions.topics + 1)
        )
        node.files.save(wrong, 1)
        await world.restart(node)
        assert not node.fence.reason
        await compared(world, node)
        await eventually(lambda: fenced(world) == [node.node_id], "a fence")
        assert node.fence.reason.startswith("topics ")


async def test_state_of_a_snapshot_lifts_the_fence(tmp_path: Path) -> None:
    async with compared_often(tmp_path, retained_lag_entry_count_max=1) as (world, _leader):
        leader, node = await with_one_fenced(world)
        await node.crash()
        for lo in range(0, 400, 20):
            records = batch(lo, lo + 20)
            await leader.broker.append(AppendRequest(records=records, record_count=20))
        await world.settled()
        for one in world.up:
            await one.maintain(expired_count=4)
            assert one.log.base_index > node.log.last_index
        await world.restart(node)
        await eventually(lambda: node.log.base_index > 0, "a snapshot")
        await compared(world, node)
        await eventually(lambda: fenced(world) == [], "no fence")


# --- Hostile and strange ---


async def test_client_can_write_no_digest(tmp_path: Path) -> None:
    async with compared_often(tmp_path) as (world, leader):
        forged = Command(state_digest=to_pb(Digest(1, FORM, (("topics", bytes(16)),))))
        forged.put_member.SetInParent()
        record = CommandEncoder(("127.0.0.1", 0)).encode(forged)
        for asked in (
            AppendRequest(records=record, record_count=1),
            AppendRequest(records=record, record_count=1, producer_id=4),
            AppendRequest(records=record + batch(0, 1), record_count=2),
            AppendRequest(records=record, record_count=1, has_delayed=True),
        ):
            with pytest.raises(ReservedTopicError):
                await leader.broker.append(asked)
        await compared(world)
        assert fenced(world) == []


async def test_frames_that_are_no_digest_end_the_connection_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with compared_often(tmp_path) as (world, leader):
        nothing = memoryview(b"")
        long = to_pb(Digest(1, FORM, (("topics", bytes(16)),)))
        long.tables[0].digest = bytes(17)
        for header in (b"\xff\xff", long.SerializeToString()):
            with pytest.raises(PeerProtocolError):
                leader.checks.on_frame(2, FrameKind.STATE_DIGEST, header, nothing)
        await compared(world)


async def test_reports_of_nodes_that_are_no_voters_decide_nothing(tmp_path: Path) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        await compared(world)
        leader = await quiet(world)
        nothing = memoryview(b"")
        point = leader.checks._point
        forged = to_pb(Digest(point, FORM, (("topics", bytes(16)),))).SerializeToString()
        leader.checks._is_decided = False
        for node in (8, 9):
            leader.checks.on_frame(node, FrameKind.STATE_DIGEST, forged, nothing)
        assert not leader.checks._is_writing
        assert {8, 9}.isdisjoint(leader.checks._reports.at(point))
        # Nor do voters that may have nothing but what this leader gave them.
        for node, progress in leader.driver.replica.core.state.progress.items():
            progress.is_counted = False
            leader.checks.on_frame(node, FrameKind.STATE_DIGEST, forged, nothing)
            progress.is_counted = True
        assert not leader.checks._is_writing
        await world.settled()
        assert fenced(world) == []


async def test_points_that_come_while_a_digest_is_made_are_passed_over_but_the_newest(
    tmp_path: Path,
) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        node = world.up[0]
        await eventually(lambda: not node.checks._is_digesting)

        def has_passed_over(count: int) -> Callable[[], bool]:
            return lambda: node.checks.passed_over_count >= count

        made: list[Any] = []
        spawn, node.checks._spawn = node.checks._spawn, made.append
        node.checks.on_point(node.checks._point)
        assert len(made) == 1
        before = node.checks.passed_over_count
        for number in (10, 11, 12):
            await change(world, number)
            await eventually(has_passed_over(before + number - 9), "another point")
        assert len(made) == 1
        await world.settled()
        node.checks._spawn = spawn
        await made[0]
        assert node.checks._point in node.checks._own
        await compared(world, *(one for one in world.up if one is not node))


async def test_digest_made_of_a_state_that_was_replaced_counts_no_more(tmp_path: Path) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        await compared(world)
        node = world.up[0]
        await eventually(lambda: not node.checks._is_digesting)
        image = node.machine.image()
        work = node.checks._digest(10_000_000, image)
        node.checks.on_replaced()
        await work
        assert 10_000_000 in node.checks._own, "begun after the state was replaced"
        on_thread = node.checks._thread.on_thread

        async def replaced_meanwhile(work: Callable[[], Any]) -> Any:
            piece = await on_thread(work)
            node.checks.on_replaced()
            return piece

        thread: Any = SimpleNamespace(on_thread=replaced_meanwhile)
        node.checks._thread = thread
        await node.checks._digest(20_000_000, image)
        assert node.checks._own == {}


async def test_leader_behind_its_fence_sends_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with compared_often(tmp_path) as (world, _leader):
        leader = await quiet(world)
        driver, snapshots = leader.driver, leader.snapshots
        node = next(one for one in world.up if one is not leader)
        begun: list[InstallSnapshot] = []
        monkeypatch.setattr(snapshots._sender, "begin", lambda what, _state: begun.append(what))
        meta = snapshot.meta_at(driver.replica.core.state, driver.applied_index)
        message = InstallSnapshot("g", leader.node_id, node.node_id, driver.term, meta, 1)
        await snapshots._send(message)
        assert begun == [message]

        build = snapshots._thread.on_thread

        async def fenced_meanwhile(job: Callable[[], bytes]) -> bytes:
            built = await build(job)
            driver.set_fenced(True)
            return built

        monkeypatch.setattr(snapshots._thread, "on_thread", fenced_meanwhile)
        for _ in range(2):  # The fence came while it was built, and before.
            await snapshots._send(message)
            assert driver.role is Role.LEADER
            assert begun == [message]


async def test_state_and_entry_without_a_digest_end_no_replica(tmp_path: Path) -> None:
    """It is in every log or state, so all replicas would end, each time anew."""

    async with compared_often(tmp_path) as (world, _leader):
        leader = await quiet(world)
        for node in world.up:
            node.machine.state.members[88] = Member(float("nan"), "")  # type: ignore[arg-type]
        passed_over = [node.checks.passed_over_count for node in world.up]
        wrong = StateDigest(position=leader.checks._point, form=FORM, tables=[TableDigest()])
        leader.checks._write(Command(state_digest=wrong))
        await change(world, 2)

        def are_passed_over() -> bool:
            return all(
                node.checks.passed_over_count >= then + 2
                for node, then in zip(world.up, passed_over, strict=True)
            )

        await eventually(are_passed_over, "a digest and a state, passed over by all")
        for node in world.up:
            del node.machine.state.members[88]
        await compared(world)
        assert fenced(world) == []
