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
        one, two = world.nodes[1], world.nodes[2]
        await one.append(0, 1)

        def full(position: int) -> None:
            raise StoreFullError(str(tmp_path), 4096, 0)

        with monkeypatch.context() as stuck:
            stuck.setattr(one.log.store, "dispatch_to", full)
            pending = asyncio.create_task(one.append(1, 2))
            parked = PullRequest(topic="orders", offset=1, wait_ms=60_000)
            reader = asyncio.create_task(one.broker.pull(parked))
            await eventually(lambda: one.driver.apply_retry_count > 1, "retries")
            assert one.driver.is_ready
            with pytest.raises(StoreFullError):
                await one.append(7, 8)
            assert one.log.store.counters.store_full_count == 1
            await two.driver.promote(10_000)
            await eventually(lambda: one.driver.machine.role is HaRole.SLAVE, "the new epoch")
            await eventually(lambda: not one.driver.is_ready, "and it knows")
            with pytest.raises(NotMasterError):
                await one.broker.pull(PullRequest(topic="orders", offset=0))
            with pytest.raises(NotMasterError):
                await reader
            with pytest.raises(NodeError):
                await one.append(5, 6)
            assert not pending.done()
        assert (await pending).record_count == 1, "two copies had it"
        await two.append(2, 3)
        await world.settled()
        assert await one.seen() == [0, 1, 2]
        assert await one.driver.promote(10_000) > 2
        await one.append(3, 4)


async def test_a_new_master_that_is_cut_and_knows_of_more_reports_both(tmp_path: Path) -> None:
    """It takes a shorter log of a newer epoch, and a replica in the fence heard of a longer one."""

    async with group(tmp_path, replication="async_master") as world:
        one, two, three = (world.nodes[n] for n in (1, 2, 3))
        await one.append(0, 1)
        await world.settled()
        world.isolate(1)
        await fill(one, 1, 241)
        assert len(one.log.store.log.files.files) > 1
        # Three gets the first transfer of these, which tells how far readers may see, no more.
        before, real = three.log.end, three.log.store.has_room

        def has_room(size_bytes: int) -> bool:
            return three.log.end == before and real(size_bytes)

        three.log.store.has_room = has_room  # type: ignore[method-assign]
        world.gates[1, 3].is_open = world.gates[3, 1].is_open = True
        await eventually(lambda: three.driver.inbound.no_room_count > 1, "a part of the log")
        parting = three.log.end
        assert before < parting < three.driver.machine.state.known_confirm == one.log.end
        world.isolate(1)
        await two.driver.promote(10_000)
        assert two.log.end == parting
        await eventually(lambda: three.driver.machine.state.epochs.last.number == 2, "epoch 2")
        await two.crash()
        three.log.store.has_room = real  # type: ignore[method-assign]
        world.gates[1, 3].is_open = world.gates[3, 1].is_open = True
        await eventually(lambda: one.driver.machine.state.highest_seen >= 2, "three's epoch")
        lost_hi = one.log.end
        assert await one.driver.promote(10_000) == 3
        world.check_alive()
        assert one.driver.machine.state.copies.epoch_start == parting
        assert {(x.lo, x.hi, x.is_exact) for x in one.losses.losses} == {
            (parting, lost_hi, True),
            (parting, lost_hi, False),
        }
        await eventually(lambda: one.log.store.has_room(2000), "the next file")
        await one.append(300, 301)
        await world.settled(1, 3)


async def test_a_slave_behind_what_its_master_keeps_begins_anew(tmp_path: Path) -> None:
    """It has another log of some files then, and what it had is not lost before that is whole."""

    async with group(tmp_path) as world:
        one, two, three = (world.nodes[n] for n in (1, 2, 3))
        await fill(one, 0, 240)
        await world.settled()
        await three.crash()
        three = await world.restart(3)
        await world.settled()
        old, end = log_bytes(three.log), three.log.end
        assert len(three.log.store.log.files.files) > 1
        await three.crash()
        await fill(one, 240, 600)
        await shorten(one, files_from(one, end))
        make_image = one.maintenance.steps.make_image
        gate = asyncio.Event()

        async def late() -> bytes:
            await gate.wait()
            return await make_image()

        one.maintenance.steps.make_image = late  # type: ignore[method-assign]
        three = await world.restart(3)
        sources = three.driver.inbound._images
        await eventually(lambda: sources.source is not None, "it asks for an image")
        assert log_bytes(three.log) == old, "nothing goes before there is another state"
        assert await three.seen() == list(range(240))
        assert 3 not in one.driver.report().in_sync
        gate.set()
        await world.settled()
        assert three.log.replica.standing is HaStanding.FULL
        assert three.log.min_position == one.log.min_position > end
        assert not three.applied.is_missing
        assert log_bytes(three.log) == log_bytes(one.log)
        assert await three.seen() == await one.seen() != []
        assert three.losses.losses == [], "what expired is not lost"
        directory = tmp_path / "n3"
        assert old == aside_in(directory), "kept until a checkpoint has the state"
        await three.maintenance.steps.checkpoint()
        assert not list(directory.glob("aside/*"))
        await two.crash()
        await one.append(900, 901)
        await one.crash()
        await world.restart(2)
        assert await three.driver.promote(10_000) > 1
        assert 900 in await three.seen()


def aside_in(directory: Path) -> bytes:
    """What was set aside of a log, files in order."""
    found = [path.read_bytes() for path in sorted(directory.glob("aside/*"))]
    found += [path.read_bytes()[48:] for path in sorted(directory.glob("cut/*.cut"))]
    return b"".join(found)


async def test_a_replica_asks_again_when_a_damaged_disk_let_no_image_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master reports the damage, and goes on."""
    monkeypatch.setattr(image_transfer, "RETRY_MS", 1_000)
    async with group(tmp_path, replication="async_master") as world:
        one, three = world.nodes[1], world.nodes[3]
        await fill(one, 0, 240)
        await world.settled()
        end = three.log.end
        await three.crash()
        await fill(one, 240, 600)
        await world.settled(1, 2)
        await shorten(one, files_from(one, end))
        met = list[BaseException]()
        real, damage = one.applied.make_image, CorruptionError("f", 10, "crc", "1", "2")

        def damaged() -> Callable[[], bytes]:
            def make() -> bytes:
                raise damage

            one.applied.make_image = real  # type: ignore[method-assign]
            return make

        one.applied.make_image = damaged  # type: ignore[method-assign]
        one.replication = replace(one.replication, on_damage=met.append)
        three = await world.restart(3)
        await eventually(lambda: one.driver.inbound.image_sender.failed_count == 1)
        await world.settled(1, 3)
        assert met == [damage]
        assert await three.seen() == await one.seen() != []


async def test_a_candidate_behind_what_the_longest_log_keeps_begins_anew(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        one, two, three = (world.nodes[n] for n in (1, 2, 3))
        await fill(one, 0, 80)
        await world.settled()
        end = three.log.end
        await three.crash()
        await fill(one, 80, 400)
        await world.settled(1, 2)
        await shorten(two, files_from(two, end))
        await one.crash()
        three = await world.restart(3)
        assert await three.driver.promote(15_000) > 1
        await three.append(400, 401)
        await world.settled(2, 3)
        assert await three.seen() == await two.seen()
        assert 400 in await two.seen()


async def test_a_master_that_lost_its_state_gets_it_from_who_follows(tmp_path: Path) -> None:
    """The cut to its donor's log took it back behind its only checkpoint, and files are gone."""

    async with group(tmp_path, replication="async_master") as world:
        one, two, three = (world.nodes[n] for n in (1, 2, 3))
        await fill(one, 0, 240)
        await world.settled()
        world.isolate(1)
        await fill(one, 240, 480)
        first = one.log.store.log.files.files[0].end_position
        assert first < two.log.end < one.log.end
        await shorten(one, first)
        assert await two.driver.promote(10_000) == 2
        await two.append(1000, 1001)
        # What an async master acked alone may go with it.
        await world.settled(2, 3)
        await two.crash()
        # It becomes a candidate before it hears of the newer epoch.
        one.driver.resign("to be promoted again")
        one.driver.machine.state.highest_seen = 5
        promotion = asyncio.create_task(one.driver.promote(15_000))
        await eventually(lambda: one.driver.machine.role is HaRole.CANDIDATE, "a candidate")
        world.heal()
        assert await promotion == 6
        assert not one.applied.is_missing
        assert one.losses.losses
        await one.append(1001, 1002)
        await world.settled(1, 3)
        assert set(one.state.state.topics) == set(three.state.state.topics) != set()
        assert (await one.seen())[-2:] == (await three.seen())[-2:] == [1000, 1001]


async def test_a_replica_without_state_serves_no_reads(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        one, two = world.nodes[1], world.nodes[2]
        await one.append(0, 1)
        await world.settled()
        two.applied.is_missing = True
        with pytest.raises(StateMissingError) as found:
            await two.seen()
        assert (found.value.retryable, found.value.leader_id) == (True, 1)
        two.applied.is_missing = False
        assert await two.seen() == [0]


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
        one, two, disk = world.nodes[1], world.nodes[2], world.disks[2]
        disk.errno_value = errno.ENOSPC
        promotion = asyncio.create_task(two.driver.promote(15_000))
        await eventually(lambda: two.driver.save_error is not None, "it waits")
        await one.append(0, 1)
        assert not promotion.done()
        assert not two.driver.is_ready
        disk.errno_value = 0
        assert await promotion == 2
        await two.append(1, 2)
        await world.settled()
        assert await world.nodes[3].seen() == [0, 1]
