"""Nodes whose disks are full still do what needs no room: time passes for them, and they vote."""

import traceback
from pathlib import Path

import pytest

from raft.errors import ChangeRefusedError
from raft.rules.membership import Change, ChangeKind
from raft.transitions import Role
from store.errors import StoreFullError
from tests.node.drivers import accept, drivers, led
from tests.patience import eventually
from tests.store.records import batch


async def test_a_full_follower_helps_to_elect_when_its_leader_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        full, other = (n for n in cluster.nodes if n != leader.node_id)
        monkeypatch.setattr(cluster.nodes[full].log, "has_room", lambda size_bytes: False)
        await cluster.nodes[leader.node_id].crash()
        successor = cluster.nodes[other].driver
        assert successor is not None
        await eventually(lambda: successor.role.name == "LEADER", "a vote of the full node")


async def test_a_full_follower_does_not_take_leadership_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (_cluster, leader, full):
        term = leader.term
        monkeypatch.setattr(full.log, "has_room", lambda size_bytes: False)
        leader.transfer_leadership(full.node_id)
        state = leader.replica.core.state
        await eventually(lambda: not state.transferee, "the end of the hand-over")
        assert (leader.role, leader.term) == (Role.LEADER, term)
        await leader.append(batch(3, 4), accept)


def no_byte(record: object) -> int:
    """What a meta file says on a disk without a free byte; the log has its files already."""
    raise StoreFullError("/disk/raft.0", 400, 0)


async def test_a_follower_that_cannot_note_new_members_stays_and_learns_of_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (cluster, leader, full):
        before = full.last_index
        with monkeypatch.context() as disk:
            disk.setattr(full.log.node_file._meta, "save", no_byte)
            await leader.change_member(Change(ChangeKind.ADD_LEARNER, 9))
            await eventually(lambda: full.dropped_for_room_count > 0, "a dropped append")
            assert (full.last_index, full.leader_id) == (before, leader.node_id)
        await cluster.settled()
        assert full.replica.core.state.learners == (9,)
        assert full.log.load().configurations == leader.log.load().configurations


async def test_a_full_leader_refuses_a_change_of_members_and_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is written by consensus, where an error means the end of the process."""
    async with led(tmp_path) as (_cluster, leader, _follower):
        last = leader.last_index
        for owner, call, full in (
            (leader.log.node_file._meta, "save", no_byte),
            (leader.log, "has_room_for", lambda *_: False),
        ):
            with monkeypatch.context() as disk:
                disk.setattr(owner, call, full)
                with pytest.raises(ChangeRefusedError, match="no room"):
                    leader.change_member(Change(ChangeKind.ADD_LEARNER, 9))
            assert (leader.role, leader.last_index) == (Role.LEADER, last)
        assert await leader.change_member(Change(ChangeKind.ADD_LEARNER, 9)) > last


async def test_refusing_again_and_again_keeps_no_trace_of_the_batches(tmp_path: Path) -> None:
    """An error object that is raised again grows by the frames of each time, batch included."""

    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        leader._apply_error = error = StoreFullError("/disk", 1, 0)
        for _ in range(20):
            with pytest.raises(StoreFullError):
                leader.append(batch(0, 1), accept)
        assert len(traceback.extract_tb(error.__traceback__)) < 5
        assert leader.log.store.counters.store_full_count == 20


async def test_a_node_without_room_says_why_it_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        full = next(one for node, one in cluster.nodes.items() if node != leader.node_id)
        store = full.log.store
        monkeypatch.setattr(full.log._ledger, "has_room_at_hand", lambda _: False)
        error = StoreFullError("/disk", 1, 0)

        def poll(_count: int) -> None:
            raise error

        monkeypatch.setattr(store, "_poll_files", poll)
        await eventually(lambda: "cannot lead: its log has no room" in caplog.text, "the reason")
        assert store.room_error is error
        monkeypatch.undo()
        await eventually(lambda: store.room_error is None, "room again")
