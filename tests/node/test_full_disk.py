"""A volume that others fill: nothing of ours goes before its time, unless the operator said so."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from node.metrics import STORE
from node.monitoring.health import Health, Phase
from store.errors import StoreFullError
from store.replicated.store import ReplicatedStore
from tests.node.broker.delay.test_retention import delete_expired, fill, maintenance_of
from tests.node.broker_fakes import node_at
from tests.node.replication.ha.ha_nodes import WholeHaNode, group

TOTAL_BYTES = 1 << 40
FORCE_BYTES = TOTAL_BYTES * 85 // 100


class Volume:
    """What a store is told of its file system, most of which is other people's."""

    def __init__(self, store: ReplicatedStore[Any]) -> None:
        self._store = store
        self.others_bytes = TOTAL_BYTES // 2
        fs: Any = store.engine.fs
        fs.free_bytes = self.free_bytes

    def free_bytes(self, _path: str) -> tuple[int, int]:
        own_bytes = sum(file.size_bytes for file in self._store.log.files.files)
        return max(0, TOTAL_BYTES - self.others_bytes - own_bytes), TOTAL_BYTES

    def leave_room_for(self, file_count: int) -> None:
        """Let others fill it so far that only so many files lie below the mark."""
        size_bytes = self._store.log.files.files[0].size_bytes
        self.others_bytes = FORCE_BYTES - file_count * size_bytes - size_bytes // 2


def counted(store: ReplicatedStore[Any]) -> tuple[object, object]:
    """Deleted files, and those of them that had not expired, as Prometheus sees them."""
    stats = store.stats()
    return STORE["log_files_deleted"].read(stats), STORE["log_files_deleted_for_room"].read(stats)


# --- A node of Raft ---


async def test_a_full_volume_costs_no_message_that_has_not_expired(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path, flush="sync", retention_interval_ms=0) as node:
        store, volume = node.log.store, Volume(node.log.store)
        maintenance = maintenance_of(node, tmp_path, fatal)
        await fill(node, 5)
        before = store.reads.queue_range("orders", 0)
        volume.others_bytes = TOTAL_BYTES
        assert await delete_expired(node, maintenance) == 0
        with pytest.raises(StoreFullError):
            await node.append(0, 1)
        assert store.reads.queue_range("orders", 0) == before
        assert store.reads.pull("orders", 0, 0).record_count > 0
        assert "appends are refused" in store.stats().warnings()[-1]
        volume.others_bytes = 0
        assert await delete_expired(node, maintenance) == 0
        await node.append(0, 1)
        assert counted(store) == (0, 0)
        await maintenance.stop()
    assert not fatal


async def test_a_disk_without_room_for_what_is_to_be_written_is_full_wherever_one_looks(
    tmp_path: Path,
) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path, flush="sync", disk_reserve_bytes=1 << 20) as node:
        store, volume = node.log.store, Volume(node.log.store)
        thread = maintenance_of(node, tmp_path, fatal).steps.thread
        await thread.maintain(store)
        own_bytes = sum(file.size_bytes for file in store.log.files.files)
        volume.others_bytes = TOTAL_BYTES - own_bytes - (1 << 20) - 4096
        with capture_logs() as lines:
            with pytest.raises(StoreFullError, match="disk_reserve_bytes"):  # noqa: PT012
                for number in range(1000):
                    await node.append(number, number + 1)
            assert store.stats().gauges.disk_state == "full"
            health = Health()
            health.enter(Phase.SERVING)
            health.watch(node.driver, refusal=store.engine.retention.refusal)
            assert health.ready().reason.startswith("this node leads, and refuses appends: ")
            await thread.maintain(store)
            volume.others_bytes = 0
            await thread.maintain(store)
        await node.append(1000, 1001)
        assert [line["event"] for line in lines] == [
            "appends are refused: the disk is full",
            "appends go on: the disk has room again",
        ]
        thread.stop()


async def test_deletion_by_size_is_not_called_deletion_for_room(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    async with node_at(
        tmp_path,
        flush="sync",
        retention_interval_ms=0,
        delete_when_full=True,
        disk_reserve_bytes=0,
        retention_size_bytes=4 * 4 * 4096,
    ) as node:
        store, volume = node.log.store, Volume(node.log.store)
        maintenance = maintenance_of(node, tmp_path, fatal)
        await fill(node, 6)
        count = len(store.log.files.files)
        volume.leave_room_for(3)
        await delete_expired(node, maintenance)
        assert counted(store) == (count - 3, 1)
        await maintenance.stop()
    assert not fatal


# --- A node of a master-slave group ---


async def rounds(node: WholeHaNode) -> int:
    """Do what the rounds of maintenance do, instead of them; return where the log begins."""
    maintain = node.maintenance
    await maintain.end_rounds()
    for _ in range(3):
        await maintain.steps.maintain()
        await maintain.steps.checkpoint()
        node.log.store.find_expired()
        await maintain.steps.delete_expired()
    return node.log.min_position


async def fill_master(node: WholeHaNode, file_count: int) -> int:
    """Append until there are so many files; return how many messages that took."""
    number = 0
    while len(node.log.store.log.files.files) < file_count:
        await node.append(number, number + 10, size_bytes=1_000)
        number += 10
    return number


async def test_no_replica_of_a_master_slave_group_gives_up_what_has_not_expired(
    tmp_path: Path,
) -> None:
    async with group(tmp_path, 2, disk_full_ratio=0.9) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        volumes = [Volume(node.log.store) for node in (node1, node2)]
        count = await fill_master(node1, 5)
        await world.settled()
        for volume in volumes:
            volume.others_bytes = TOTAL_BYTES
        assert [await rounds(node) for node in (node1, node2)] == [0, 0]
        with pytest.raises(StoreFullError):
            await node1.append(count, count + 1)
        assert await node1.seen() == await node2.seen() == list(range(count))
        for volume in volumes:
            volume.others_bytes = 0
        assert [await rounds(node) for node in (node1, node2)] == [0, 0]
        await node1.append(count, count + 1)
        assert counted(node1.log.store) == counted(node2.log.store) == (0, 0)


async def test_a_replica_of_a_master_slave_group_makes_room_where_that_was_asked_for(
    tmp_path: Path,
) -> None:
    async with group(tmp_path, 2, delete_when_full=True) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        count = await fill_master(node1, 6)
        await world.settled()
        files = node2.log.store.log.files.files
        Volume(node2.log.store).leave_room_for(3)
        gone = len(files) - 3
        assert await rounds(node2) == files[gone].position
        assert counted(node2.log.store) == (gone, gone)
        assert counted(node1.log.store) == (0, 0), "its own volume has room"
        assert await node1.seen() == list(range(count))
        kept = await node2.seen()
        assert 0 < len(kept) < count
        assert kept[-1] == count - 1
