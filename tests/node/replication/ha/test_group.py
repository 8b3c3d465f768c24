"""A master-slave group of real nodes: who serves, who reads what, and what is lost.

The names of the first two are those of fault-matrix 7 C9. The rules themselves are in `core`
and in the simulator; here they are seen through brokers, files and sockets.
"""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from node.errors.common import (
    AppendTimeoutError,
    NewerLevelError,
    NodeError,
    OutcomeUnknownError,
    SequenceReusedError,
    UnknownCommandError,
)
from node.errors.ha import NotMasterError, PromotionRefusedError, PromotionTimeoutError
from node.lifecycle import exit_code_of
from node.replication.ha.core.types import AckMode, HaRole, HaStanding
from node.replication.ha.storage.losses import LOSS_COUNT_MAX, LossFile, LossFileError, LostEnd
from node.replication.ha.storage.replica_file import GroupChangedError
from node.runtime.fail_stop import EXIT_BAD_CONFIG, EXIT_BAD_DATA
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import DrainRequest, HaStatusRequest
from quorumlog.pb.log_pb2 import PullRequest, QueueOffsetsRequest
from store.files.file_system import FileSystem
from tests.node.replication.ha.ha_logs import log_bytes
from tests.node.replication.ha.ha_nodes import HaNodes, WholeHaNode, group, shorten
from tests.patience import eventually


async def refused(node: WholeHaNode, lo: int = 0) -> NodeError:
    """Append, and return how it was refused."""
    with pytest.raises(NodeError) as found:
        await node.append(lo, lo + 1)
    return found.value


async def test_fence_before_serving(tmp_path: Path) -> None:
    """A promoted node serves nobody before its fence stands, and then has the longest log."""

    async with group(tmp_path) as world:
        node1, node2, node3 = (world.nodes[n] for n in (1, 2, 3))
        world.isolate(2)
        acked = [await node1.append(n, n + 1) for n in range(5)]
        assert [tuple(receipt.synced_by) for receipt in acked] == [(1, 3)] * 5
        await node1.crash()
        await node3.crash()
        with pytest.raises(PromotionTimeoutError, match="1 of the 2 replicas"):
            await node2.driver.promote(50)
        assert node2.driver.machine.role is HaRole.CANDIDATE
        assert isinstance(await refused(node2), NotMasterError)
        assert await node2.seen() == []
        world.heal()
        await world.restart(3)
        await world.master(2)
        assert await node2.seen() == list(range(5)), "the longest log of the fence"
        receipt = await node2.append(5, 6)
        assert (receipt.term, tuple(receipt.synced_by)) == (node2.driver.term, (2, 3))


async def test_two_controller_leaders_lose_nothing(tmp_path: Path) -> None:
    """Two that both claim to lead give one number to two nodes, again and again."""
    acked: dict[int, int] = {}
    """By message: its index."""
    async with group(tmp_path) as world:
        stopped = asyncio.Event()
        client = asyncio.create_task(append_all(world, acked, stopped))
        for number in range(10, 50, 4):
            for node, nonce in ((2, 7), (3, 8)):
                world.nodes[node].driver.advise(number, node, nonce)
            before = set(acked)
            await asyncio.sleep(0)
            # The winner surpasses the number: its loser follows no other pair.
            await eventually(lambda: acked.keys() - before, "appends go on")  # noqa: B023
        stopped.set()
        await client
        await world.settled()
        assert len(world.masters()) == 1
        assert len(set(acked.values())) == len(acked), "two masters acked at one place"
        numbers_seen = await world.nodes[1].seen()
        assert not (lost := acked.keys() - set(numbers_seen)), f"acked and lost: {lost}"
        assert len({log_bytes(node.log) for node in world.nodes.values()}) == 1


async def append_all(world: HaNodes, acked: dict[int, int], stopped: asyncio.Event) -> None:
    """Append numbers wherever somebody serves, each once, until told to stop."""
    number = 0
    while not stopped.is_set():
        await asyncio.sleep(0)
        for node in world.nodes.values():
            if node.is_master:
                number += 1
                try:
                    receipt = await node.append(number, number + 1)
                except NodeError:
                    continue
                acked[number] = receipt.index


async def test_readers_stop_at_the_confirm_offset(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        await node1.append(0, 3)
        await world.settled()
        world.isolate(1)
        under_way = asyncio.create_task(node1.append(3, 5))
        await eventually(lambda: node1.log.end > node1.applied.applied, "it is written")
        await eventually(lambda: node1.log.store.durable_position == node1.log.end, "and synced")
        assert await node1.seen() == [0, 1, 2], "one copy is not two"
        request = QueueOffsetsRequest(consistency=common_pb2.CONSISTENCY_LOCAL)
        request.queues.add(topic="orders", queue_id=0)
        assert (await node1.broker.queries.queue_offsets(request)).queues[0].max_offset == 3
        assert not under_way.done()
        world.heal()
        receipt = await under_way
        assert receipt.durability == common_pb2.DURABILITY_QUORUM_DISK
        # Read your own writes at a slave, by the index of the receipt.
        pull = PullRequest(topic="orders", offset=3, at_least_index=receipt.index)
        pull.consistency = common_pb2.CONSISTENCY_LOCAL
        pull.with_entries = True
        response = await node2.broker.pull(pull)
        assert response.record_count == 2
        assert not response.entry_indexes, "this log has no entries to tell of"


async def test_an_old_master_is_fenced_and_its_suffix_set_aside(tmp_path: Path) -> None:
    """It acked alone (async), so this is a loss: counted, exact, a suffix, and kept in a file."""

    async with group(tmp_path, replication="async_master") as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        assert (await node1.append(0, 3)).durability == common_pb2.DURABILITY_LEADER_DISK
        await world.settled()
        parting = node1.log.end
        world.isolate(1)
        for n in range(3, 8):
            assert tuple((await node1.append(n, n + 1)).synced_by) == (1,)
        lost = log_bytes(node1.log)[parting:]
        assert await node2.driver.promote(10_000) == 2
        assert node2.driver.machine.state.mode is AckMode.ASYNC, "as the group was served"
        await node2.append(100, 101)
        assert await node1.seen() == [0, 1, 2, 3, 4, 5, 6, 7], "it knows no better yet"
        world.heal()
        await eventually(lambda: node1.losses.losses, "the cut")
        await world.settled()
        assert await node1.seen() == await node2.seen() == [0, 1, 2, 100]
        error = await refused(node1)
        assert isinstance(error, NotMasterError)
        assert (error.leader_id, error.leader_address) == (2, "127.0.0.1:8002")
        (loss,) = node1.losses.losses
        assert (loss.epoch, loss.lo, loss.hi) == (1, parting, parting + len(lost))
        assert (loss.record_count, loss.acked_record_count, loss.is_exact) == (5, 5, True)
        assert loss.acked_hi == loss.hi
        aside = await asyncio.to_thread(Path(loss.file).read_bytes)
        assert lost in aside
        status = await node1.admin.ha_status(HaStatusRequest())
        assert (status.role, status.master_id, len(status.losses)) == ("slave", 2, 1)
        await node1.crash()
        again = await world.restart(1)
        assert again.losses.losses == [loss], "kept over a restart"


async def test_appends_in_flight_at_a_step_down_are_unknown(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        world.isolate(1)
        under_way = asyncio.create_task(node1.append(0, 1))
        await eventually(lambda: node1.broker.produce.in_flight_count == 1)
        await node2.driver.promote(10_000)
        world.heal()
        with pytest.raises(OutcomeUnknownError):
            await under_way
        await node2.append(1, 2)
        await world.settled()
        assert await node1.seen() == [1]
        (loss,) = node1.losses.losses
        assert (loss.record_count, loss.acked_record_count, loss.is_exact) == (1, 0, True)


async def test_a_retry_after_a_failover_finds_the_first_receipt(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        first = await node1.append(0, 3, producer_id=5, sequence=0)
        await node1.append(3, 5, producer_id=5, sequence=1)
        await node1.crash()
        await node2.driver.promote(10_000)
        again = await node2.append(0, 3, producer_id=5, sequence=0)
        assert again.is_duplicate
        for field in ("index", "term", "position", "store_unix_ms", "record_count"):
            assert getattr(again, field) == getattr(first, field), field
        assert list(again.queues) == list(first.queues)
        with pytest.raises(SequenceReusedError):
            await node2.append(7, 10, producer_id=5, sequence=0)
        more = await node2.append(5, 6, producer_id=5, sequence=2)
        assert not more.is_duplicate
        assert await node2.seen() == list(range(6))


async def test_a_drained_master_stops_acking_first(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        appends = [asyncio.create_task(node1.append(n, n + 1)) for n in range(20)]
        await asyncio.sleep(0)
        await node1.admin.drain(DrainRequest())
        assert len({(await append).index for append in appends}) == 20, "all were decided"
        assert (await refused(node1)).code == "node.draining"
        assert node1.driver.machine.role is HaRole.SLAVE
        node1.driver.advise(9, 1, 5)
        assert node1.driver.machine.role is HaRole.SLAVE, "it takes no advice while it drains"
        with pytest.raises(PromotionRefusedError, match="draining"):
            await node1.driver.promote(1_000)
        await eventually(lambda: node2.driver.leader_id == 0, "nobody is believed to serve")
        assert await node2.driver.promote(10_000) == 2
        assert await node2.seen() == list(range(20))
        await node1.admin.drain(DrainRequest(undo=True))
        assert await node1.driver.promote(10_000) == 3
        await node1.append(20, 21)


async def test_a_linearizable_read_needs_enough_replicas(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1 = world.nodes[1]
        await node1.append(0, 1)
        assert await node1.driver.read_barrier() == node1.driver.applied_index
        world.isolate(1)
        read = asyncio.ensure_future(node1.driver.read_barrier())
        later = asyncio.ensure_future(node1.driver.read_barrier())
        await world.nodes[2].driver.promote(10_000)
        await world.nodes[2].append(1, 2)
        assert not read.done(), "nobody confirmed that it is still the only master"
        world.heal()
        for one_read in (read, later):
            with pytest.raises(NodeError) as found:
                await one_read
            assert found.value.code == "node.read_failed"
        with pytest.raises(NotMasterError):
            node1.driver.read_barrier()


async def test_a_new_disk_counts_once_it_is_safe(tmp_path: Path) -> None:
    """It gets the log and an image of the state, as the first files of the master are gone."""

    async with group(tmp_path) as world:
        node1 = world.nodes[1]
        for n in range(0, 240, 8):
            await node1.append(n, n + 8, size_bytes=500)
        await world.settled()
        await world.nodes[3].crash()
        await shorten(node1, node1.log.store.log.files.files[0].end_position)
        for path in sorted((tmp_path / "n3").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        node3 = await world.restart(3)
        assert node3.log.replica.standing is HaStanding.JOINING
        assert node3.log.min_position == 0
        state = node3.driver.machine.state
        await eventually(lambda: state.replica.standing is HaStanding.FULL, "its admission")
        assert node3.log.min_position == node1.log.min_position > 0
        await world.settled(1, 3)
        assert not node3.applied.is_missing
        assert set(node3.state.state.topics) == set(node1.state.state.topics)
        assert await node3.seen() == await node1.seen() != []
        await node1.crash()
        assert await node3.driver.promote(10_000) > 1
        await node3.append(900, 901)


async def test_two_of_two_wait_for_each_other(tmp_path: Path) -> None:
    """k = n = 2: nothing is acked alone, and nobody can be promoted alone."""

    async with group(tmp_path, 2) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        await node1.append(0, 1)
        await node2.crash()
        with pytest.raises(AppendTimeoutError):
            await node1.append(1, 2, timeout_ms=50)
        await node1.crash()
        node2 = await world.restart(2)
        with pytest.raises(PromotionTimeoutError):
            await node2.driver.promote(50)
        node1 = await world.restart(1)
        await world.master(2)
        await world.settled()
        assert await node2.seen() == [0, 1], "it was written before the master died"


@pytest.mark.parametrize(
    ("count", "copies", "durability"),
    [
        (1, 1, common_pb2.DURABILITY_LEADER_DISK),
        (3, 3, common_pb2.DURABILITY_QUORUM_DISK),
        (5, 2, common_pb2.DURABILITY_COPIES_DISK),
    ],
)
async def test_a_receipt_says_how_safe_it_is(
    tmp_path: Path, count: int, copies: int, durability: int
) -> None:
    async with group(tmp_path, count, copies=copies) as world:
        receipt = await world.nodes[1].append(0, 1)
        assert receipt.durability == durability
        assert len(receipt.synced_by) >= copies


def test_errors_of_a_start_have_exit_codes() -> None:
    changed = GroupChangedError("copies", "3", "2")
    assert exit_code_of(changed) == EXIT_BAD_CONFIG
    assert "put the old value back" in str(changed)
    assert exit_code_of(LossFileError("no list")) == EXIT_BAD_DATA
    for too_old in (NewerLevelError(2, 1), UnknownCommandError(7)):
        assert exit_code_of(too_old) == EXIT_BAD_CONFIG, "a supervisor that starts it again"


def test_losses_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    losses = LossFile(FileSystem(), str(tmp_path))
    for n in range(LOSS_COUNT_MAX + 2):
        losses.note(LostEnd(1, 2, n, n + 5, n, True, -1, -1, ""))
    losses.save()
    again = LossFile(FileSystem(), str(tmp_path))
    assert again.losses == losses.losses
    assert (len(again.losses), again.losses[0].lo) == (LOSS_COUNT_MAX, 2)


def test_a_loss_is_told_once_and_as_who_saw_it_first(tmp_path: Path) -> None:
    """A crash between the report and the cut makes the same cut again, by a process that did not
    see what was acked."""
    losses = LossFile(FileSystem(), str(tmp_path))
    first = LostEnd(1, 2, 100, 900, 800, True, 7, 6, "cut/a")
    losses.note(first)
    losses.save()
    again = LossFile(FileSystem(), str(tmp_path))
    again.note(dataclasses.replace(first, unix_ms=5, acked_hi=900, is_exact=False))
    assert again.losses == [first]
    again.note(dataclasses.replace(first, epoch=3))
    again.note(dataclasses.replace(first, hi=901))
    assert len(again.losses) == 3
