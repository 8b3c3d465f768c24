"""Messages by pop from three real nodes while leaders die: in order, none lost, none again."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.errors import NotFoundError, QuorumlogError, StaleHandleError, UnknownTopicError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC

Run = Callable[[Coroutine[Any, Any, None]], None]
GROUP = "workers"
KEYS = 20
EACH = 8
COUNT = KEYS * EACH


async def kill_leader(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.leader_id)
    await asyncio.to_thread(cluster.kill, leader)


async def send_all(client: quorumlog.Client) -> None:
    async with client.producer() as producer:
        for number in range(EACH):
            for key in range(KEYS):
                body = f"{key}:{number}"
                await producer.enqueue(TOPIC, body, message_group=f"key{key}")


class Work:
    """What consumers saw, all of them together."""

    def __init__(self) -> None:
        self.acked: Counter[str] = Counter()
        self.order: defaultdict[str, list[int]] = defaultdict(list)
        self.is_half_done = asyncio.Event()

    def on_received(self, message: quorumlog.PopMessage) -> None:
        body = message.body.decode()
        assert not self.acked[body], f"{body} was acknowledged, and comes again"
        key, _, number = body.partition(":")
        seen = self.order[key]
        expected = len(set(seen))
        assert int(number) in (expected, expected - 1), f"{body} behind {seen}"
        seen.append(int(number))

    def on_acked(self, message: quorumlog.PopMessage) -> None:
        self.acked[message.body.decode()] += 1
        if len(self.acked) == COUNT // 2:
            self.is_half_done.set()


async def consume(client: quorumlog.Client, work: Work) -> None:
    """Take and acknowledge one message after the other, until all are done."""
    async with client.pop_consumer(GROUP, TOPIC, invisible=60.0, fifo=True) as consumer:
        while len(work.acked) < COUNT:
            for message in await consumer.receive(1, wait=0.5):
                work.on_received(message)
                try:
                    await consumer.ack(message)
                except StaleHandleError:
                    continue
                work.on_acked(message)


@pytest.mark.long
@pytest.mark.parametrize("replication", ["raft", "sync_master"])
async def test_message_groups_keep_their_order_though_the_leader_dies(
    tmp_path: Path, replication: str
) -> None:
    async with running(tmp_path / "c", replication=replication) as (cluster, client):
        await send_all(client)
        work = Work()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(consume(client, work))
            await work.is_half_done.wait()
            await kill_leader(cluster)
        # Whose time was over while nobody led acknowledges what another one has done since.
        assert work.acked.keys() == {f"{k}:{n}" for k in range(KEYS) for n in range(EACH)}
        assert (await client.admin.describe_group(GROUP)).lag_count == 0
        async with client.pop_consumer(GROUP, TOPIC) as consumer:
            assert await consumer.receive(wait=0) == []


@pytest.mark.long
async def test_members_of_a_group_get_each_queue_in_order_though_the_leader_dies(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        await send_all(client)
        seen: defaultdict[str, list[int]] = defaultdict(list)
        async with client.group_consumer(GROUP, TOPIC) as consumer:
            count = 0
            async for message in consumer:
                key, _, number = message.body.decode().partition(":")
                seen[key].append(int(number))
                count += 1
                if count == COUNT // 2:
                    await kill_leader(cluster)
                if count == COUNT:
                    break
        assert seen == {str(key): [*range(EACH)] for key in range(KEYS)}


async def test_the_calls_of_a_pop_consumer(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (_, client):
        await client.admin.create_topic("bills")
        consumer = client.pop_consumer(GROUP, [TOPIC, "bills"], invisible=20)
        async with client.producer() as producer, consumer:
            assert await consumer.receive(wait=0) == []
            waiting = asyncio.create_task(consumer.receive())
            await producer.send("bills", "1", tag="a")
            (first,) = await waiting
            assert (first.topic, first.body, first.delivery_count) == ("bills", b"1", 1)
            assert first.to_dict()["handle"] == first.handle
            await consumer.nack(first)
            (again,) = await consumer.receive()
            assert (again.body, again.delivery_count) == (b"1", 2)
            with pytest.raises(StaleHandleError) as caught:
                await consumer.ack([first, again])
            assert (caught.value.handles, caught.value.code) == (
                (first.handle,),
                "node.stale_handle",
            )
            with pytest.raises(StaleHandleError):
                await consumer.change_invisible(again, 5)
            await producer.send(TOPIC, "2")
            (second,) = await consumer.receive()
            before = second.visible_unix_ms
            await consumer.change_invisible(second, 3_600)
            assert second.visible_unix_ms > before
            await consumer.reject(second)
            dead = await client.admin.dead_letters(GROUP)
            assert [one.message.body for one in dead] == [b"2"]
            await producer.send(TOPIC, "3")
            async for message in consumer:
                await consumer.ack(message)
                break
        with pytest.raises(QuorumlogError, match="closed"):
            await consumer.receive()
        with pytest.raises(UnknownTopicError):
            await client.pop_consumer(GROUP, "nowhere").receive(wait=0)
        with pytest.raises(NotFoundError):
            await client.admin.describe_group("nobody")
