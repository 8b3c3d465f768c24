"""Damage in a file of the log: pop holds the queue that it is in, and no other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.broker.pop import shared
from node.errors.pop import QueueHeldError
from quorumlog.pb.pop_pb2 import DescribePopRequest
from store.errors import CorruptionError, DerivedFileError
from tests.node.broker.pop.pop_calls import GROUP, ack, ask, bodies, part, pass_time, receive, send
from tests.node.broker_fakes import Fixture, node_at
from tests.patience import eventually

DAMAGED = "damaged" * 20
DAMAGED_QUEUE = 1
LONG_MS = 25_000


def flip(root: Path) -> None:
    """Change one bit of the body of DAMAGED, or put it right again."""
    for path in (root / "dledger-n0" / "data").iterdir():
        at = path.read_bytes().find(DAMAGED[1:].encode())
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at - 1)
                byte = file.read(1)[0]
                file.seek(at - 1)
                file.write(bytes([byte ^ 1]))
            return
    raise AssertionError("the message is not in the log")


@asynccontextmanager
async def damaged_at(root: Path) -> AsyncIterator[Fixture]:
    """A node with a damaged message in the middle of a queue, in a file that is sealed."""
    async with node_at(root, topics={"orders": 4, "filler": 1}) as node:
        for queue_id in range(4):
            await send(node, f"a{queue_id}", queue_id=queue_id)
        await send(node, DAMAGED, queue_id=DAMAGED_QUEUE)
        await send(node, "z1", queue_id=DAMAGED_QUEUE)
        while len(node.log.store.log.files.files) < 3:
            await send(node, "x" * 1_000, topic="filler")
    flip(root)
    async with node_at(root, topics={}) as node:
        yield node


async def held_reasons(node: Fixture) -> dict[int, str]:
    described = await node.broker.pop.describe_pop(DescribePopRequest(group=GROUP))
    return {row.queue_id: row.held_reason for row in described.queues if row.held_reason}


async def test_only_the_queue_with_the_damage_waits_and_says_so(tmp_path: Path) -> None:
    async with damaged_at(tmp_path) as node:
        reports: list[CorruptionError | DerivedFileError] = []
        node.broker.context.on_damage = reports.append
        deliveries = await receive(node)
        assert sorted(bodies(deliveries)) == ["a0", "a1", "a2", "a3"], "what lies before it, too"
        assert await ack(node, *deliveries) == 0
        assert await receive(node) == []
        (reason,) = (await held_reasons(node)).values()
        assert (await held_reasons(node)).keys() == {DAMAGED_QUEUE}
        assert "CRC" in reason
        assert len(node.broker.pop.shared.held.reasons) == 1
        assert str(reports[0]) == reason
        await send(node, "b2", queue_id=2)
        assert bodies(await receive(node)) == ["b2"]
        with pytest.raises(QueueHeldError, match="queue 1 of 'orders' hands nothing out"):
            await ask(node, queue_id=DAMAGED_QUEUE, wait_ms=LONG_MS)
        assert bodies(await receive(node, group="others", queue_id=3)) == ["a3"]


@pytest.fixture
def held_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "HELD_MS", 20)


@pytest.mark.usefixtures("held_briefly")
async def test_a_waiting_receive_gets_the_message_after_its_repair(tmp_path: Path) -> None:
    async with damaged_at(tmp_path) as node:
        assert await ack(node, *await receive(node)) == 0
        assert await receive(node) == []
        assert len(node.broker.pop.shared.held.reasons) == 1
        flip(tmp_path)
        assert bodies(await receive(node, wait_ms=LONG_MS)) == [DAMAGED, "z1"]
        assert await held_reasons(node) == {}
        assert node.broker.pop.shared.held.held_total >= 1


async def test_in_flight_and_damaged_meanwhile_it_stays_in_flight(tmp_path: Path) -> None:
    """It was read when it was handed out, by a leader with a good disk; this one has a bad one."""
    async with damaged_at(tmp_path) as node:
        flip(tmp_path)
        first = await ask(node, attempt_id="x", queue_id=DAMAGED_QUEUE)
        assert len(first.deliveries) == 3
        checked = node.log.store.log.checked
        checked.forget(0, checked.trusted_position)
        flip(tmp_path)
        again = await ask(node, attempt_id="x", queue_id=DAMAGED_QUEUE)
        assert len(again.deliveries) == 2, "the same attempt gets what can be read"
        assert part(node).in_flight_count == 3
        assert len(node.broker.pop.shared.held.reasons) == 1
        pass_time(node, 5_000)
        with pytest.raises(QueueHeldError):
            await ask(node, queue_id=DAMAGED_QUEUE)
        assert part(node).in_flight_count == 3
        node.driver.lose()
        await eventually(lambda: len(node.broker.pop.shared.held.reasons) == 0, "nothing is held")


async def test_a_message_that_comes_again_is_checked_again(tmp_path: Path) -> None:
    """No byte is compared twice, but for a consumer that may have met damage."""
    async with damaged_at(tmp_path) as node:
        flip(tmp_path)
        assert len((await ask(node, queue_id=DAMAGED_QUEUE)).deliveries) == 3
        flip(tmp_path)
        pass_time(node, 5_000)
        assert len((await ask(node, queue_id=DAMAGED_QUEUE)).deliveries) == 1, "up to it"
        with pytest.raises(QueueHeldError):
            await ask(node, queue_id=DAMAGED_QUEUE)
        assert "CRC" in (await held_reasons(node))[DAMAGED_QUEUE]
