"""What is still to be delivered does not expire, and what was delivered does."""

from pathlib import Path
from typing import Any, cast

from node.replication.maintenance import Maintenance
from node.replication.raft.maintenance import RaftSteps
from node.state.held import needed_position
from node.state.tables.delay import DelayTable
from raft.messages import NO_INDEX, Index, SnapshotMeta
from raft.state.progress import Progress
from tests.node.broker_fakes import Fixture, expire_some, node_at
from tests.node.checkpoints import saved
from tests.node.delayed import bodies, delayed, request_of, settle
from tests.node.replication.raft.storage.test_snapshot import MEMBERS

PAGE = 4096


class NoFollowers:
    """A replica that needs nothing of its log, its core, and their state."""

    def __init__(self) -> None:
        self.core = self.state = self.log = self.config = self
        self.applied = self.last_index = 1 << 40
        self.retained_lag_entry_count_max = 1 << 41
        self.base_index = NO_INDEX
        self.configurations = [MEMBERS]
        self.snapshot: SnapshotMeta | None = None
        self.progress: dict[int, Progress] = {}

    def term_of(self, _index: Index) -> int:
        return 1

    def compact_to(self, index: Index) -> None:
        pass


def maintenance_of(node: Fixture, root: Path, fatal: list[BaseException]) -> Maintenance[RaftSteps]:
    steps = RaftSteps(
        node.log,
        cast(Any, NoFollowers()),
        node.machine,
        saved(root),
        lambda: needed_position(node.log.store.reads, node.machine.state),
    )
    return Maintenance(steps, fatal.append, fatal.append)  # type: ignore[arg-type]


async def fill(node: Fixture, file_count: int) -> None:
    hi = len(node.log.store.log.files.files) + file_count
    while len(node.log.store.log.files.files) < hi:
        await node.append(0, 20)


async def delete_expired(node: Fixture, maintenance: Maintenance[RaftSteps]) -> int:
    """Do what the rounds do; return where the log begins."""
    for _ in range(3):
        await maintenance.steps.maintain()
        await maintenance.steps.checkpoint()
        await maintenance.steps.delete_expired()
    return node.log.store.log.min_position


async def test_the_file_of_a_held_message_stays_until_it_is_delivered(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    async with node_at(
        tmp_path, flush="sync", retention_size_bytes=8 * PAGE, retention_interval_ms=0
    ) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        assert needed_position(node.log.store.reads, node.machine.state) is None
        await fill(node, 3)
        response = await node.broker.append(
            request_of(delayed(7, queue_id=2, TIMER_DELAY_MS="1000"))
        )
        assert needed_position(node.log.store.reads, node.machine.state) == response.positions[0]
        await fill(node, 2)
        await node.broker.append(request_of(delayed(8, DELAY="18")))
        await fill(node, 6)
        begin = await delete_expired(node, maintenance)
        assert 0 < begin <= response.positions[0], "what is older goes, and nothing else"
        node.clock.now_ms += 1_000
        await settle(node)
        assert bodies(node, queue_id=2)[-1] == 7
        assert begin < (second := await delete_expired(node, maintenance))
        node.clock.now_ms += 7_200_000
        await settle(node)
        await fill(node, 6)
        assert second < await delete_expired(node, maintenance)
        assert needed_position(node.log.store.reads, node.machine.state) is None
        await maintenance.stop()
    assert not fatal


async def test_messages_that_are_missing_all_the_same_are_counted_and_end(node: Fixture) -> None:
    await node.broker.append(request_of(delayed(7, DELAY="2"), delayed(8, TIMER_DELAY_MS="9")))
    await fill(node, 4)
    await node.broker.append(request_of(delayed(9, queue_id=2, DELAY="2")))
    await expire_some(node)
    node.driver.lose()
    node.driver.lead()
    node.clock.now_ms += 5_000
    await settle(node)
    delivery_task = node.broker.delay.delivery_task
    assert (delivery_task.missing_total, delivery_task.delivered_total) == (2, 1)
    gone = node.machine.state.table(DelayTable).queues
    assert (gone[0].floor, gone[2].floor) == (1, 2)
    assert bodies(node, queue_id=2)[-1:] == [9]
