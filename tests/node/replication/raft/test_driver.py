"""Three drivers with real sockets and files: appends, reads, crashes, hand-over, full disks."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from node.errors import common as errors
from node.peers.frames import FrameKind
from node.replication.raft.codec import encode
from node.replication.raft.driver import RaftDriver
from node.replication.sync_requests import SYNC_REQUEST_COUNT_MAX
from node.state.appends import Prepared
from raft.config import RaftConfig
from raft.errors import NotLeaderError, TransferRefusedError
from raft.messages import NO_INDEX, AppendRequest, Standing
from raft.pump.effects import Effects
from raft.rules import transfer
from raft.rules.membership import Change, ChangeKind
from raft.state.progress import ProgressState
from raft.state.state import RaftState
from raft.transitions import Role
from store.errors import CorruptionError, RecordFormatError, StoreError, StoreFullError
from tests.node.drivers import DriverCluster, accept, drivers, led
from tests.patience import eventually
from tests.store.records import batch, numbers


def stored(cluster: DriverCluster, node_id: int) -> list[int]:
    """The numbers that a reader of one node sees."""
    store = cluster.nodes[node_id].log.store
    return numbers(store.reads.pull("orders", 0, 0, max_count=10_000, max_size_bytes=1 << 24).data)


async def append(driver: RaftDriver, lo: int, hi: int) -> int:
    committed = await driver.append(batch(lo, hi), accept)
    return committed.index


async def test_appends_reach_every_replica_and_only_the_leader_serves(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, follower):
        pending = [leader.append(batch(n, n + 3), accept) for n in range(0, 60, 3)]
        committed = [await one for one in pending]
        indexes = [one.index for one in committed]
        assert indexes == list(range(indexes[0], indexes[0] + 20))
        assert all(len(one.synced_by) >= 2 for one in committed)
        assert committed[4].result.queue_offsets == [12, 13, 14]
        await cluster.settled()
        for node_id in cluster.nodes:
            assert stored(cluster, node_id) == list(range(60))
        logs = [node.log for node in cluster.nodes.values()]
        assert len({log.chain_at(log.last_index) for log in logs}) == 1
        index = await append(leader, 60, 65)
        assert await leader.read_barrier() >= index
        assert leader.applied_index >= index
        with pytest.raises(NotLeaderError) as refused:
            follower.append(batch(0, 1), accept)
        assert refused.value.leader_hint == leader.node_id
        with pytest.raises(NotLeaderError):
            follower.read_barrier()


async def test_a_leader_checks_again_what_a_peer_refuses_and_ends_at_damage(tmp_path: Path) -> None:
    """Its process wrote the entry, so no read compares it with its checksum otherwise."""
    async with led(tmp_path) as (cluster, leader, _follower):
        node = cluster.nodes[leader.node_id]
        late = next(each for each in cluster.nodes.values() if each is not node)
        await late.crash()
        damaged = await append(leader, 0, 1)
        await append(leader, 1, 2)
        ledger = node.log.store.ledger
        at = ledger.end_of(damaged) - 1  # The last byte of its body.
        (byte,) = ledger.files.read(at, 1)
        file = ledger.files.file_at(at)
        file.overwrite(at, bytes([byte ^ 1]))
        ledger.recent.clear()
        asyncio.get_running_loop().set_exception_handler(None)  # The process would have ended.
        await cluster.restart(late.node_id)
        await eventually(lambda: bool(node.fatal), "the leader to end")
        await node.crash()  # As its process does; else each later turn would meet the damage again.
        error = node.fatal[0]
        assert isinstance(error, CorruptionError)
        assert (error.path, error.field) == (file.path, "body CRC")
        node.fatal.clear()
        assert late.log.last_index < damaged


def stop_ticks(cluster: DriverCluster) -> None:
    for driver in cluster.up:
        assert driver._tick_timer is not None
        driver._tick_timer.cancel()
        driver._turn()  # So that no tick is due any more.


@pytest.mark.parametrize("has_met_all", [True, False])
async def test_the_first_founder_opens_the_election_once_it_has_met_all(
    tmp_path: Path, has_met_all: bool
) -> None:
    async with drivers(tmp_path, 1) as cluster:
        stop_ticks(cluster)
        (driver,) = cluster.up
        driver.has_met_all = lambda: has_met_all
        for _ in range(driver.replica.config.heartbeat_ticks):
            driver._on_tick()
            stop_ticks(cluster)
        assert (driver.role is not Role.FOLLOWER) == has_met_all


async def test_a_follower_without_an_audience_applies_many_entries_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.replication.raft.driver.LATE_APPLY_COUNT_MAX", 20)

    async with led(tmp_path) as (cluster, leader, follower):
        stop_ticks(cluster)
        # A tick may be due from before: the first one, told of by the second, uses it up.
        first = follower.applied_index + 1
        await append(leader, 0, 1)
        await append(leader, 1, 2)
        await eventually(lambda: follower.applied_index == first, "the first, for its audience")
        follower.has_audience = lambda: False
        for n in range(2, 12):
            await append(leader, n, n + 1)
        await eventually(lambda: follower.commit_index >= first + 9, "commits")
        assert follower.applied_index == first
        follower._on_tick()
        stop_ticks(cluster)  # Ticks that go on would make it a candidate.
        before = follower.applied_index
        assert before >= first + 9
        for n in range(12, 40):
            await append(leader, n, n + 1)
        await eventually(lambda: follower.applied_index >= before + 20, "enough of them")
        # News of commits without entries: nothing more is coming.
        leader._on_tick()
        await eventually(lambda: follower.applied_index == first + 39, "the rest")
        assert stored(cluster, follower.node_id) == list(range(40))


async def test_a_fenced_leader_serves_no_more_before_the_next_tick(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        stop_ticks(cluster)
        before = leader._turn_scheduled
        leader.set_fenced(True)
        assert (before, leader._turn_scheduled) == (False, True)
        await eventually(lambda: not leader.is_ready, "the end of its service")
        with pytest.raises(errors.NotReadyError):
            leader.append(batch(0, 1), accept)
        assert leader.role is Role.LEADER, "ticks hand it over"
        leader.set_fenced(False)
        await eventually(lambda: leader.is_ready, "its service again")


async def test_a_batch_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    def refuse(prepared: Prepared) -> None:
        assert prepared.queues == {(b"orders", 0): (0, 2)}
        raise KeyError("no such topic")

    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        last = leader.last_index
        with pytest.raises(KeyError):
            leader.append(batch(0, 2), refuse)
        with pytest.raises(RecordFormatError):
            leader.append(b"garbage" * 20, accept)
        assert leader.last_index == last
        assert await append(leader, 0, 2) == last + 1


async def test_a_leader_without_a_quorum_confirms_no_read_and_no_append(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        await append(leader, 0, 1)
        for node_id in cluster.nodes:
            if node_id != leader.node_id:
                await cluster.nodes[node_id].crash()
        read = leader.read_barrier()
        pending = leader.append(batch(1, 2), accept)
        with pytest.raises(errors.ReadFailedError):
            await read
        await eventually(lambda: leader.role is not Role.LEADER, "stepping down")
        assert not leader.is_ready
        with pytest.raises(errors.OutcomeUnknownError):
            await pending


async def test_leadership_moves_on_request_and_appends_go_on(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        await append(leader, 0, 1)
        roles: list[Role] = []
        leader.add_role_listener(lambda change: roles.append(change.role))
        target = leader.transfer_leadership()
        assert target != leader.node_id
        await eventually(lambda: leader.leader_id == target, "hand-over")
        assert Role.FOLLOWER in roles, "listeners hear of it"
        moved = await cluster.leader()
        assert moved.node_id == target
        await append(moved, 1, 2)
        with pytest.raises(TransferRefusedError):
            moved.transfer_leadership(9)


async def test_a_draining_node_takes_no_leadership(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        term, state = leader.term, leader.replica.core.state
        first = leader.transfer_leadership()
        draining = cluster.nodes[first].driver
        assert draining is not None
        draining.is_draining = True  # Before the order can have come.
        await eventually(lambda: not state.transferee, "the end of the hand-over")
        assert (leader.role, leader.term) == (Role.LEADER, term)
        await append(leader, 1, 2)
        second = leader.transfer_leadership()
        assert second not in (first, leader.node_id)
        await eventually(lambda: leader.leader_id == second, "hand-over")


async def test_a_change_and_an_append_of_one_turn_do_not_collide(tmp_path: Path) -> None:
    async with led(tmp_path) as (_cluster, leader, _follower):
        change = leader.change_member(Change(ChangeKind.ADD_LEARNER, 7))
        first = leader.append(batch(0, 2), accept)
        index = await change
        assert (await first).index == index + 1
        assert leader.replica.core.state.learners == (7,)


async def test_pending_calls_are_answered_when_the_node_stops(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        pending = leader.append(batch(0, 1), accept)
        reading = leader.read_barrier()
        leader.stop()
        with pytest.raises(errors.OutcomeUnknownError):
            await pending
        with pytest.raises(errors.ShuttingDownError):
            await reading
        with pytest.raises(errors.ShuttingDownError):
            leader.append(batch(0, 1), accept)
        cluster.nodes[leader.node_id].driver = leader  # Stopped twice does no harm.


def full(data_or_index: object) -> Prepared:
    raise StoreFullError("/disk", 4096, 0)


async def test_a_full_disk_of_the_leader_moves_leadership_and_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        await append(leader, 0, 4)

        monkeypatch.setattr(leader.log, "prepare", full)
        with pytest.raises(StoreFullError):
            leader.append(batch(4, 5), accept)
        await eventually(lambda: leader.leader_id not in (0, leader.node_id), "hand-over")
        assert await append(await cluster.leader(), 4, 8) > 0
        await cluster.settled()
        assert stored(cluster, leader.node_id) == list(range(8))


async def test_a_follower_without_room_stays_and_catches_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (cluster, leader, follower):
        await append(leader, 0, 1)
        await cluster.settled()
        with monkeypatch.context() as full:
            full.setattr(follower.log, "has_room_for", lambda *_: False)
            for n in range(1, 6):
                await append(leader, n, n + 1)
            await eventually(lambda: follower.dropped_for_room_count > 0, "a dropped append")
            assert follower.leader_id == leader.node_id
            assert follower.last_index < leader.last_index
        await cluster.settled()
        assert stored(cluster, follower.node_id) == list(range(6))


async def test_entries_wait_while_the_queues_cannot_grow_and_no_append_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        with monkeypatch.context() as stuck:
            stuck.setattr(leader.log, "dispatch", full)
            pending = leader.append(batch(0, 1), accept)
            await eventually(lambda: leader.apply_retry_count > 2, "retries")
            assert not pending.done()
            last = leader.last_index
            with pytest.raises(StoreFullError):
                leader.append(batch(1, 2), accept)
            assert leader.last_index == last
        assert (await pending).result.queue_offsets == [0]
        assert await append(leader, 1, 2) == last + 1


async def test_a_slow_disk_gets_few_syncs_for_many_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (_cluster, leader, _follower):
        await append(leader, 0, 1)
        requests: list[Callable[[StoreError | None], None]] = []
        real = leader.log.store.request_sync
        monkeypatch.setattr(leader.log.store, "request_sync", requests.append)
        monkeypatch.setattr(leader.log.store, "sync_here", lambda: False)
        pending = []
        for n in range(1, 40):
            pending.append(leader.append(batch(n, n + 1), accept))
            await asyncio.sleep(0)
        await eventually(lambda: len(requests) == SYNC_REQUEST_COUNT_MAX, "syncs")
        await eventually(lambda: leader.commit_index == leader.last_index, "the two others")
        assert not any(one.done() for one in pending)  # R45: applied once it is durable here.
        assert len(requests) == SYNC_REQUEST_COUNT_MAX
        monkeypatch.setattr(leader.log.store, "request_sync", real)
        for done in requests:
            real(done)
        committed = await asyncio.gather(*pending)
        assert all(leader.node_id in one.synced_by for one in committed)


async def test_the_next_tick_is_due_an_interval_behind_this_one(tmp_path: Path) -> None:
    async with drivers(tmp_path, 1) as cluster:
        driver, now = await cluster.leader(), asyncio.get_running_loop().time()
        assert driver._tick_timer is not None
        driver._tick_timer.cancel()
        driver._tick_interval_s, driver._next_tick_s = 600.0, now
        driver._on_tick()
        assert driver._tick_timer.when() == pytest.approx(now + 600, abs=0.01)  # uvloop rounds.
        driver._tick_timer.cancel()
        driver._next_tick_s = now - 6000
        driver._on_tick()
        assert driver._next_tick_s >= now, "what was missed is not caught up with"


async def test_acks_go_on_without_ticks_in_small_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(RaftConfig, apply_entry_count_max=2)
    monkeypatch.setattr("tests.node.drivers.RaftConfig", few)

    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await cluster.settled()
        stop_ticks(cluster)
        pending = [leader.append(batch(n, n + 1), accept) for n in range(20)]
        await eventually(lambda: all(one.done() for one in pending), "all of them")
        assert leader.applied_index == leader.last_index


async def test_a_sync_that_ends_at_once_begins_no_turn_within_the_turn(tmp_path: Path) -> None:
    """What the first one was told to do would come after what the second one does."""

    async with drivers(tmp_path, 1, flush="async") as cluster:
        leader = await cluster.leader()
        real, depth, deepest = leader._carry_out, 0, 0

        def carry_out(effects: Effects, *, is_last: bool) -> None:
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            real(effects, is_last=is_last)
            depth -= 1

        leader._carry_out = carry_out  # type: ignore[method-assign]
        await append(leader, 0, 1)
        assert deepest == 1


def heartbeat(driver: RaftDriver, term: int) -> tuple[FrameKind, bytes]:
    """What node 2 sends when it leads in a term and knows nothing of the receiver's log."""
    begin = NO_INDEX + 1
    return encode(
        AppendRequest("g", 2, driver.node_id, term, NO_INDEX, 0, begin, (), NO_INDEX, 1, (), 0)
    )


@pytest.mark.parametrize("call", ["pump", "receive"])
async def test_an_error_of_the_disk_within_a_turn_or_a_frame_ends_the_process_and_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Within a frame the caller is the connection."""

    def broken(*_: object) -> Effects:
        raise OSError("the log cannot be written")

    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        fatal = cluster.nodes[leader.node_id].fatal
        frame = *heartbeat(leader, leader.term), memoryview(b"")
        calls: dict[str, Callable[[], None]] = {
            "pump": leader._turn,
            "receive": lambda: leader.on_raft_frame(2, *frame),
        }
        with monkeypatch.context() as disk:
            disk.setattr(leader.replica, call, broken)
            with pytest.raises(OSError, match="cannot be written"):
                calls[call]()
        assert [str(error) for error in fatal] == ["the log cannot be written"]
        fatal.clear()  # It was meant.


async def test_a_driver_that_has_stopped_changes_nothing_any_more(tmp_path: Path) -> None:
    """Its log is closed next."""
    async with led(tmp_path) as (cluster, leader, _follower):
        driver = next(each for each in cluster.up if each.node_id != 2)
        driver.stop()
        state = driver.replica.core.state
        node_file = driver.log.node_file
        before = node_file.record.hard_state, state.hard_state(), driver.leader_id
        driver.on_raft_frame(2, *heartbeat(driver, leader.term + 1), memoryview(b""))
        driver.lose_memory(7)
        driver.on_refused(2)
        driver.on_disconnected(2)
        driver.on_snapshot_failed(2)
        stored = driver.log.node_file.record.hard_state
        assert (stored, state.hard_state(), driver.leader_id) == before


async def test_memory_that_is_lost_is_noted_on_the_disk_at_once(tmp_path: Path) -> None:
    async with led(tmp_path) as (_cluster, _leader, driver):
        driver.lose_memory(7)
        stored = driver.log.node_file.record.hard_state
        assert (stored.standing, stored.incarnation) == (Standing.JOINING, 7)


async def test_a_leader_probes_a_peer_again_whose_link_broke(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, leader, _follower):
        node, progress = next(iter(leader.replica.core.state.progress.items()))
        await eventually(lambda: progress.state is ProgressState.REPLICATE, "acks")
        leader.on_refused(99)  # No member, or not any more.
        leader.on_disconnected(node)
        assert progress.state is ProgressState.PROBE
        await append(leader, 1, 2)
        await cluster.settled()


async def test_a_loss_that_raft_tells_of_stays_known(tmp_path: Path) -> None:
    async with drivers(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        assert leader.loss_from == NO_INDEX
        effects = Effects()
        effects.loss_from = 3
        leader._carry_out(effects, is_last=True)
        leader._carry_out(Effects(), is_last=True)
        assert leader.loss_from == 3


async def test_a_leader_without_room_asks_once_in_a_while_for_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (_cluster, leader, _follower):
        requests: list[int] = []

        def refuse(_: RaftState, node: int) -> None:
            requests.append(node)
            raise TransferRefusedError(node, "it is too far behind")

        monkeypatch.setattr(transfer, "transfer_leadership", refuse)
        monkeypatch.setattr(leader.log, "prepare", full)
        for _ in range(3):
            with pytest.raises(StoreFullError):
                leader.append(batch(1, 2), accept)
        assert len(requests) == 1
