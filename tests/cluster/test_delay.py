"""Delayed messages on real nodes whose leader is killed: none lost, none twice, none early."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.errors import DelayedGoneError
from tests.cluster.conftest import running
from tests.cluster.workload import QUEUE_COUNT, TOPIC
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
Run = Callable[[Coroutine[Any, Any, None]], None]
COUNT = 200


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Delayed:
    """Numbered messages that are due all the time for a few seconds."""

    def __init__(self, client: quorumlog.Client) -> None:
        self.client = client
        self.receipts: dict[int, quorumlog.Receipt] = {}
        self.cancelled: set[int] = set()

    async def send(self) -> None:
        """Due from now on until 3 s from now, in no order."""
        begin_s = time.time()
        async with self.client.producer() as producer:
            deliveries = []
            for number in range(COUNT):
                at_s = begin_s + number * 37 % COUNT / COUNT * 3
                wish: dict[str, Any] = {"level": 1} if number % 7 == 0 else {"deliver_at": at_s}
                deliveries.append(
                    await producer.enqueue(TOPIC, b"%d" % number, key=f"k{number}", **wish)
                )
            for number, delivery in enumerate(deliveries):
                self.receipts[number] = await delivery

    async def cancel(self) -> None:
        """Some of those that are due late."""
        for number in range(5, COUNT, 10):
            try:
                await self.client.cancel_delayed(self.receipts[number])
            except DelayedGoneError:
                continue
            self.cancelled.add(number)

    async def delivered(self, count: int) -> dict[int, quorumlog.Message]:
        """Wait for so many, and return all there are by number; none is there twice."""
        found: dict[int, quorumlog.Message] = {}
        async with asyncio.timeout(PATIENCE_S):
            for queue_id in range(QUEUE_COUNT):
                await self._read(queue_id, found)
            while len(found) < count:
                found.clear()
                for queue_id in range(QUEUE_COUNT):
                    await self._read(queue_id, found)
        return found

    async def _read(self, queue_id: int, found: dict[int, quorumlog.Message]) -> None:
        offset = 0
        while batch := (await self.client.pull(TOPIC, queue_id, offset, wait_ms=50)).messages:
            for message in batch:
                assert int(message.body) not in found, f"{message.body!r} twice"
                found[int(message.body)] = message
            offset = batch[-1].queue_offset + 1

    async def prove(self) -> None:
        """Everything that was promised is there, and nothing else, and nothing came early."""
        found = await self.delivered(COUNT - len(self.cancelled))
        assert found.keys() == self.receipts.keys() - self.cancelled
        for number, message in found.items():
            receipt = self.receipts[number]
            assert message.store_unix_ms >= receipt.due_unix_ms, f"{number} came early"
            assert (message.key, message.queue_id) == (f"k{number}", receipt.queue_id)


async def kill_leader(cluster: LocalCluster) -> None:
    await asyncio.to_thread(cluster.kill, await asyncio.to_thread(cluster.leader_id))


async def test_the_leader_is_killed_while_messages_are_due(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        load = Delayed(client)
        await load.send()
        cancels = asyncio.create_task(load.cancel())
        await load.delivered(COUNT // 4)
        await kill_leader(cluster)
        await cancels
        await load.prove()
        status = await client.admin.delay_status()
        assert [row.held_count for row in status] == [0]


async def test_a_master_is_stopped_while_messages_are_held(tmp_path: Path) -> None:
    """Master-slave mode: what the old master held, the new one delivers."""

    async with running(tmp_path / "c", replication="sync_master") as (cluster, client):
        load = Delayed(client)
        await load.send()
        await load.cancel()
        await load.delivered(COUNT // 4)
        await asyncio.to_thread(cluster.stop, await asyncio.to_thread(cluster.leader_id))
        await load.prove()
