"""A master-slave group in trouble: no room on disks, replicas behind what is kept, lost states."""

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.errors.common import NodeError
from node.errors.ha import NotMasterError, PromotionRefusedError, StateMissingError
from node.replication.ha.core.types import HaRole, HaStanding
from node.replication.ha.link import image_transfer
from quorumlog.pb.log_pb2 import PullRequest
from store.errors import CorruptionError, FileSystemError, StoreFullError
from store.files.file_system import FileSystem
from tests.node.replication.ha.ha_logs import log_bytes
from tests.node.replication.ha.ha_nodes import HaNodes, WholeHaNode, group, serving, shorten
from tests.patience import eventually


class Disk(FileSystem):
    """May be without room for anything new, or without descriptors."""

    def __init__(self) -> None:
        self.errno_value = 0

    def _check(self, path: str) -> None:
        if self.errno_value == errno.ENOSPC:
            raise StoreFullError(path, 1, 0)
        if self.errno_value:
            raise FileSystemError("open", path, self.errno_value)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self._check(path)
        return super().open(path, create=create, read_only=read_only)

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        if position + len(data) > os.fstat(fd).st_size:
            self._check(path)
        super().write_at(fd, path, position, data)


class Disks(HaNodes):
    """A group whose disks fill up."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 3, "sync_master", 2)
        self.disks = {n: Disk() for n in (1, 2, 3)}

    def file_system(self, node_id: int) -> FileSystem:
        return self.disks[node_id]


async def fill(node: WholeHaNode, lo: int, hi: int) -> None:
    """Append messages [lo, hi): more than a file for 120 of them."""
    for n in range(lo, hi, 8):
        await node.append(n, n + 8, size_bytes=500)


def files_from(node: WholeHaNode, position: int) -> int:
    """Where the first file begins that begins at a position or behind it."""
    return next(f.position for f in node.log.store.log.files.files if f.position >= position)


async def test_a_deposed_master_that_cannot_apply_answers_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        await node1.append(0, 1)

        def full(position: int) -> None:
            raise StoreFullError(str(tmp_path), 4096, 0)

        with monkeypatch.context() as stuck:
            stuck.setattr(node1.log.store, "dispatch_to", full)
            pending = asyncio.create_task(node1.append(1, 2))
            parked = PullRequest(topic="orders", offset=1, wait_ms=60_000)
            reader = asyncio.create_task(node1.broker.pull(parked))
            await eventually(lambda: node1.driver.apply_retry_count > 1, "retries")
            assert node1.driver.is_ready
            with pytest.raises(StoreFullError):
                await node1.append(7, 8)
            assert node1.log.store.counters.store_full_count == 1
            await node2.driver.promote(10_000)
            await eventually(lambda: node1.driver.machine.role is HaRole.SLAVE, "the new epoch")
            await eventually(lambda: not node1.driver.is_ready, "and it knows")
            with pytest.raises(NotMasterError):
                await node1.broker.pull(PullRequest(topic="orders", offset=0))
            with pytest.raises(NotMasterError):
                await reader
            with pytest.raises(NodeError):
                await node1.append(5, 6)
            assert not pending.done()
        assert (await pending).record_count == 1, "two copies had it"
        await node2.append(2, 3)
        await world.settled()
        assert await node1.seen() == [0, 1, 2]
        assert await node1.driver.promote(10_000) > 2
        await node1.append(3, 4)


async def test_a_new_master_that_is_cut_and_knows_of_more_reports_both(tmp_path: Path) -> None:
    """It takes a shorter log of a newer epoch, and a replica in the fence heard of a longer one."""

    async with group(tmp_path, replication="async_master") as world:
        node1, node2, node3 = (world.nodes[n] for n in (1, 2, 3))
        await node1.append(0, 1)
        await world.settled()
        world.isolate(1)
        await fill(node1, 1, 241)
        assert len(node1.log.store.log.files.files) > 1
        # Three gets the first transfer of these, which tells how far readers may see, no more.
        before, real = node3.log.end, node3.log.store.has_room

        def has_room(size_bytes: int) -> bool:
            return node3.log.end == before and real(size_bytes)

        node3.log.store.has_room = has_room  # type: ignore[method-assign]
        world.gates[1, 3].is_open = world.gates[3, 1].is_open = True
        await eventually(lambda: node3.driver.inbound.no_room_count > 1, "a part of the log")
        parting = node3.log.end
        assert before < parting < node3.driver.machine.state.known_confirm == node1.log.end
        world.isolate(1)
        await node2.driver.promote(10_000)
        assert node2.log.end == parting
        await eventually(lambda: node3.driver.machine.state.epochs.last.number == 2, "epoch 2")
        await node2.crash()
        node3.log.store.has_room = real  # type: ignore[method-assign]
        world.gates[1, 3].is_open = world.gates[3, 1].is_open = True
        await eventually(lambda: node1.driver.machine.state.highest_seen >= 2, "node3's epoch")
        lost_hi = node1.log.end
        assert await node1.driver.promote(10_000) == 3
        world.check_alive()
        assert node1.driver.machine.state.copies.epoch_start == parting
        assert [(x.epoch, x.lo, x.hi, x.is_exact) for x in node1.losses.losses] == [
            (1, parting, lost_hi, True),
            (2, parting, lost_hi, False),
        ]
        await eventually(lambda: node1.log.store.has_room(2000), "the next file")
        await node1.append(300, 301)
        await world.settled(1, 3)


async def test_a_slave_behind_what_its_master_keeps_begins_anew(tmp_path: Path) -> None:
    """It has another log of some files then, and what it had is not lost before that is whole."""

    async with group(tmp_path) as world:
        node1, node2, node3 = (world.nodes[n] for n in (1, 2, 3))
        await fill(node1, 0, 240)
        await world.settled()
        await node3.crash()
        node3 = await world.restart(3)
        await world.settled()
        old, end = log_bytes(node3.log), node3.log.end
        assert len(node3.log.store.log.files.files) > 1
        await node3.crash()
        await fill(node1, 240, 600)
        await shorten(node1, files_from(node1, end))
        make_image = node1.maintenance.steps.make_image
        gate = asyncio.Event()

        async def late() -> bytes:
            await gate.wait()
            return await make_image()

        node1.maintenance.steps.make_image = late  # type: ignore[method-assign]
        node3 = await world.restart(3)
        sources = node3.driver.inbound._images
        await eventually(lambda: sources.source is not None, "it asks for an image")
        assert log_bytes(node3.log) == old, "nothing goes before there is another state"
        assert await node3.seen() == list(range(240))
        assert 3 not in node1.driver.in_sync()
        gate.set()
        await world.settled()
        assert node3.log.replica.standing is HaStanding.FULL
        assert node3.log.min_position == node1.log.min_position > end
        assert not node3.applied.is_missing
        assert log_bytes(node3.log) == log_bytes(node1.log)
        assert await node3.seen() == await node1.seen() != []
        assert node3.losses.losses == [], "what expired is not lost"
        directory = tmp_path / "n3"
        assert old == aside_in(directory), "kept until a checkpoint has the state"
        await node3.maintenance.steps.checkpoint()
        assert not list(directory.glob("aside/*"))
        await node2.crash()
        await node1.append(900, 901)
        await node1.crash()
        await world.restart(2)
        assert await node3.driver.promote(10_000) > 1
        assert 900 in await node3.seen()


def aside_in(directory: Path) -> bytes:
    """What was set aside of a log, files in order."""
    pieces = [path.read_bytes() for path in sorted(directory.glob("aside/*"))]
    pieces += [path.read_bytes()[48:] for path in sorted(directory.glob("cut/*.cut"))]
    return b"".join(pieces)


async def test_a_replica_asks_again_when_a_damaged_disk_let_no_image_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master reports the damage, and goes on."""
    monkeypatch.setattr(image_transfer, "RETRY_MS", 1_000)
    async with group(tmp_path, replication="async_master") as world:
        node1, node3 = world.nodes[1], world.nodes[3]
        await fill(node1, 0, 240)
        await world.settled()
        end = node3.log.end
        await node3.crash()
        await fill(node1, 240, 600)
        await world.settled(1, 2)
        await shorten(node1, files_from(node1, end))
        met = list[BaseException]()
        real, damage = node1.applied.make_image, CorruptionError("f", 10, "crc", "1", "2")

        def damaged() -> Callable[[], bytes]:
            def make() -> bytes:
                raise damage

            node1.applied.make_image = real  # type: ignore[method-assign]
            return make

        node1.applied.make_image = damaged  # type: ignore[method-assign]
        node1.replication = replace(node1.replication, on_damage=met.append)
        node3 = await world.restart(3)
        await eventually(lambda: node1.driver.inbound.image_sender.failed_count == 1)
        await world.settled(1, 3)
        assert met == [damage]
        assert await node3.seen() == await node1.seen() != []


async def test_a_candidate_behind_what_the_longest_log_keeps_begins_anew(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2, node3 = (world.nodes[n] for n in (1, 2, 3))
        await fill(node1, 0, 80)
        await world.settled()
        end = node3.log.end
        await node3.crash()
        await fill(node1, 80, 400)
        await world.settled(1, 2)
        await shorten(node2, files_from(node2, end))
        await node1.crash()
        node3 = await world.restart(3)
        assert await node3.driver.promote(15_000) > 1
        await node3.append(400, 401)
        await world.settled(2, 3)
        assert await node3.seen() == await node2.seen()
        assert 400 in await node2.seen()


async def test_a_master_that_lost_its_state_gets_it_from_who_follows(tmp_path: Path) -> None:
    """The cut to its donor's log took it back behind its only checkpoint, and files are gone."""

    async with group(tmp_path, replication="async_master") as world:
        node1, node2, node3 = (world.nodes[n] for n in (1, 2, 3))
        await fill(node1, 0, 240)
        await world.settled()
        world.isolate(1)
        await fill(node1, 240, 480)
        first = node1.log.store.log.files.files[0].end_position
        assert first < node2.log.end < node1.log.end
        await shorten(node1, first)
        assert await node2.driver.promote(10_000) == 2
        await node2.append(1000, 1001)
        # What an async master acked alone may go with it.
        await world.settled(2, 3)
        await node2.crash()
        # It becomes a candidate before it hears of the newer epoch.
        node1.driver.resign("to be promoted again")
        node1.driver.machine.state.highest_seen = 5
        promotion = asyncio.create_task(node1.driver.promote(15_000))
        await eventually(lambda: node1.driver.machine.role is HaRole.CANDIDATE, "a candidate")
        world.heal()
        assert await promotion == 6
        assert not node1.applied.is_missing
        assert node1.losses.losses
        await node1.append(1001, 1002)
        await world.settled(1, 3)
        assert set(node1.state.state.topics) == set(node3.state.state.topics) != set()
        assert (await node1.seen())[-2:] == (await node3.seen())[-2:] == [1000, 1001]


async def test_a_replica_without_state_serves_no_reads(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        await node1.append(0, 1)
        await world.settled()
        node2.applied.is_missing = True
        with pytest.raises(StateMissingError) as found:
            await node2.seen()
        assert (found.value.retryable, found.value.leader_id) == (True, 1)
        node2.applied.is_missing = False
        assert await node2.seen() == [0]


@pytest.mark.parametrize("errno_value", [errno.ENOSPC, errno.EMFILE])
async def test_a_full_disk_makes_a_change_of_masters_wait(tmp_path: Path, errno_value: int) -> None:
    """Nothing is promised that is not written, nothing is forgotten, and no process ends."""

    world = Disks(tmp_path)
    async with serving(world):
        two, three = world.nodes[2], world.nodes[3]
        world.disks[3].errno_value = errno_value
        assert await two.driver.promote(10_000) == 2
        assert tuple((await two.append(0, 1)).synced_by) == (1, 2)
        await eventually(lambda: three.driver.save_error is not None, "it waits")
        assert three.log.replica.bound.number == 1, "and has promised nothing"
        assert await three.seen() == []
        with pytest.raises(PromotionRefusedError, match="cannot write"):
            await three.driver.promote(1_000)
        world.isolate(3)
        await two.append(1, 2)
        world.heal()
        await two.append(2, 3)
        world.disks[3].errno_value = 0
        await world.settled()
        assert await three.seen() == [0, 1, 2]
        # Of the master: it is deposed, and has to cut what nobody else has.
        world.isolate(2)
        lost = asyncio.create_task(two.append(9, 10))
        await eventually(
            lambda: two.log.store.durable_position > three.log.end, "written and synced"
        )
        world.disks[2].errno_value = errno_value
        assert await three.driver.promote(10_000) == 3
        world.heal()
        await eventually(lambda: two.driver.save_error is not None, "it waits")
        await eventually(lambda: not two.driver.is_ready, "and serves nobody")
        await three.append(3, 4)
        assert two.losses.losses == []
        world.disks[2].errno_value = 0
        with pytest.raises(NodeError):
            await lost
        await world.settled()
        assert await two.seen() == [0, 1, 2, 3]
        assert [loss.record_count for loss in two.losses.losses] == [1]
        assert not world.nodes[2].driver.save_error


async def test_a_node_that_cannot_write_its_promise_is_no_master_yet(tmp_path: Path) -> None:
    world = Disks(tmp_path)
    async with serving(world):
        node1, node2, disk = world.nodes[1], world.nodes[2], world.disks[2]
        disk.errno_value = errno.ENOSPC
        promotion = asyncio.create_task(node2.driver.promote(15_000))
        await eventually(lambda: node2.driver.save_error is not None, "it waits")
        await node1.append(0, 1)
        assert not promotion.done()
        assert not node2.driver.is_ready
        disk.errno_value = 0
        assert await promotion == 2
        await node2.append(1, 2)
        await world.settled()
        assert await world.nodes[3].seen() == [0, 1]
