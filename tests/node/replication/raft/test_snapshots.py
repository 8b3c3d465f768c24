"""Snapshots on nodes in trouble: full disks, checkpoints beside them, ends of processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.errors.common import ShuttingDownError
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.log_pb2 import AppendRequest
from raft.core import RaftCore
from raft.messages import InstallSnapshot
from store.errors import StoreFullError
from tests.node.whole_nodes import WholeNode, WholeNodes
from tests.patience import eventually
from tests.store.records import PAGE, batch, small_config

CONFIG = small_config(container="ledger", file_size_bytes=4 * PAGE, disk_reserve_bytes=0)


@asynccontextmanager
async def with_one_outrun(root: Path) -> AsyncIterator[tuple[WholeNodes, WholeNode]]:
    """Nodes that run, and one that is down and lacks what all others have deleted."""
    world = WholeNodes(root, 1, CONFIG, retained_lag_entry_count_max=1)
    try:
        await world.start()
        leader = await world.leader()
        await leader.broker.topics.create_topic(CreateTopicRequest(topic="orders", queue_count=1))
        await world.settled()
        behind = next(node for node in world.up if node is not leader)
        await behind.crash()
        for lo in range(0, 400, 20):
            records = batch(lo, lo + 20)
            await leader.broker.append(AppendRequest(records=records, record_count=20))
        await world.settled()
        for node in world.up:
            await node.maintain(expired_count=4)
            assert node.log.base_index > behind.log.last_index
        yield world, behind
    finally:
        await world.stop()
    world.check_alive()


async def test_a_full_disk_refuses_a_snapshot_and_takes_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_one_outrun(tmp_path) as (world, behind):
        await behind.listen()
        refused: list[str] = []

        def full(fd: int, path: str, at: int, data: bytes) -> None:
            refused.append(path)
            raise StoreFullError(path, len(data), 0)

        with monkeypatch.context() as disk:
            disk.setattr(behind.log.received._fs, "write_at", full)
            behind.join(world.ports)
            await eventually(lambda: refused, "a snapshot")
            world.check_alive()
            assert behind.log.base_index == -1
        leader = await world.leader()
        leader.snapshots._sender.on_disconnected(behind.node_id)
        await world.settled()
        assert behind.log.base_index > 0


async def test_state_and_log_are_replaced_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint in between would take the old state for that of the snapshot."""

    async with with_one_outrun(tmp_path) as (world, behind):
        await world.restart(behind)
        indexes: list[tuple[int, int]] = []
        install = behind.driver.install_snapshot

        def look(message: InstallSnapshot, state: object) -> None:
            install(message, state)
            indexes.append((behind.log.base_index, behind.machine.applied_index))

        monkeypatch.setattr(behind.driver, "install_snapshot", look)
        await world.settled()
        ((base_index, applied_index), *_) = indexes
        assert applied_index >= base_index > 0
        steps = behind.maintenance.steps
        with monkeypatch.context() as older:
            machine: Any = SimpleNamespace(applied_index=behind.files.applied_index)
            older.setattr(steps, "_machine", machine)
            await steps.checkpoint()
        kept = behind.log.received.installed
        assert kept is not None, "that was the state of before"
        await steps.checkpoint()
        assert behind.log.received.installed is None
        assert behind.files.applied_index >= base_index


async def test_a_leader_that_stops_builds_no_snapshot_and_that_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_one_outrun(tmp_path) as (world, behind):
        leader = await world.leader()
        await leader.maintenance.stop()
        with pytest.raises(ShuttingDownError):
            await leader.maintenance.on_thread(lambda: None)
        failed: list[int] = []
        monkeypatch.setattr(leader.driver, "on_snapshot_failed", failed.append)
        await world.restart(behind)
        await eventually(lambda: failed == [behind.node_id], "a snapshot that is not built")


async def test_a_snapshot_that_arrived_is_not_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_one_outrun(tmp_path) as (world, behind):
        leader = await world.leader()
        moved: list[int] = []
        monkeypatch.setattr(RaftCore, "report_snapshot_moved", lambda _, node: moved.append(node))
        await world.restart(behind)
        await world.settled()
        assert set(moved) == {behind.node_id}
        sender = leader.snapshots._sender
        assert sender.sent_count == 1
        failed: list[int] = []  # Without connections that were replaced on the way.
        monkeypatch.setattr(leader.driver, "on_snapshot_failed", failed.append)
        await eventually(lambda: not sender.transfers, "the end of the transfer")
        assert failed == []
