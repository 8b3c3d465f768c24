"""The client against real nodes: processes that are killed, paused and restarted."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from quorumlog import Queue, errors, sync
from quorumlog.testing import Cluster
from tests.patience import PATIENCE_S


def run(directory: Path, scenario: Any, **options: Any) -> None:
    """Run a scenario in a cluster of its own, with a client."""

    async def within() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            quorumlog.testing.cluster(directory=directory, **options) as cluster,
            cluster.client() as client,
        ):
            await client.admin.create_topic("orders", queue_count=4)
            await scenario(cluster, client)

    asyncio.run(within())


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The logs of the nodes are shown when a test fails."""
    yield tmp_path
    for log in sorted(tmp_path.glob("node-*/log")):
        print(log, log.read_text()[-2_000:], sep="\n")


async def read_bodies(client: quorumlog.Client, **options: Any) -> list[bytes]:
    return [m.body async for m in client.consume("orders", until="end", **options)]


def test_everything_works_on_real_nodes(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        producer = client.producer()
        receipt = await producer.send("orders", b"hello", key="k1", tag="t", properties={"a": "b"})
        assert receipt.durability is quorumlog.Durability.QUORUM_DISK
        assert len(receipt.synced_by) >= 2
        batch = await producer.send_batch("orders", [b"1", b"2", b"3"], queue_id=2)
        assert [r.queue_offset for r in batch] == list(
            range(batch[0].queue_offset, batch[0].queue_offset + 3)
        )
        message = await client.get_message(receipt.message_id)
        assert (message.body, message.tag, message.properties["a"]) == (b"hello", "t", "b")
        assert message.position == receipt.position
        assert message.queue_offset == receipt.queue_offset
        for r in batch:
            assert (await client.get_message(r.message_id)).position == r.position
        assert [m.body for m in await client.query_by_key("orders", "k1")] == [b"hello"]
        assert sorted(await read_bodies(client)) == [b"1", b"2", b"3", b"hello"]
        assert await read_bodies(client, tags=["t"]) == [b"hello"]
        assert await read_bodies(client, consistency="linearizable", tags=["t"]) == [b"hello"]
        for node_id in cluster.node_ids:
            bodies = await read_bodies(client, node_id=node_id, at_least_index=batch[0].index)
            assert sorted(bodies) == [b"1", b"2", b"3", b"hello"]
        offset = await client.offset_by_time("orders", receipt.queue_id, receipt.store_unix_ms)
        assert offset == receipt.queue_offset
        with pytest.raises(errors.UnknownTopicError):
            await producer.send("none", b"")
        with pytest.raises(errors.UnknownTopicError):
            await client.pull("none", 0, 0)
        with pytest.raises(errors.NotFoundError):
            await producer.send("orders", b"", queue_id=99)
        assert (await producer.send("orders", b"on")).attempts == 1
        with pytest.raises(errors.WrongClusterError):
            await quorumlog.connect(cluster.bootstrap, cluster_id="other").start()

    run(directory, scenario)


@pytest.mark.long
def test_admin_calls_on_real_nodes(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        admin = client.admin
        assert [t.topic for t in await admin.list_topics()] == ["orders"]
        with pytest.raises(errors.TopicExistsError):
            await admin.create_topic("orders", must_be_new=True)
        await client.producer().send("orders", b"x", queue_id=1)
        described = await admin.describe_topic("orders")
        assert [q.max_offset for q in described.queues] == [0, 1, 0, 0]
        assert await admin.commit_offsets("g", {("orders", 1): 1}) > 0
        assert await admin.fetch_offsets("g") == {Queue("orders", 1, "g0"): 1}
        group = await admin.describe_group("g")
        assert (group.lag_count, group.queues[0].offset) == (0, 1)
        assert [g.group for g in await admin.list_groups()] == ["g"]
        await admin.delete_group("g")
        status = await admin.cluster_status()
        assert {n.node_id for n in status.nodes} == set(cluster.node_ids)
        target = next(n for n in cluster.node_ids if n != status.leader_id)
        assert (await admin.transfer_leadership(target)).leader_id == target
        assert (await client.producer().send("orders", b"y")).term > status.term
        digests = {(await admin.chain_digest(n, index=3)).chain_crc for n in cluster.node_ids}
        assert len(digests) == 1
        await admin.delete_topic("orders")
        assert await admin.list_topics() == []

    run(directory, scenario)


@pytest.mark.long
def test_leaders_that_are_killed_cost_no_message_and_about_an_election(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        producer = client.producer(batch_count_max=20)
        sent: list[bytes] = []
        deliveries = []
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                body = b"%06d" % len(sent)
                sent.append(body)
                deliveries.append(await producer.enqueue("orders", body, queue_id=0))
                await asyncio.sleep(0.0005)

        producing = asyncio.create_task(produce())
        for _ in range(3):
            acked = producer.stats().acked_count
            while producer.stats().acked_count < acked + 50:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            leader_id = await cluster.leader_id()
            await cluster.kill(leader_id)
            acked = producer.stats().acked_count
            while producer.stats().acked_count < acked + 50:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await cluster.restart(leader_id)
        stop.set()
        await producing
        await producer.flush()
        receipts = [await delivery for delivery in deliveries]
        assert [r.queue_offset for r in receipts] == list(range(len(sent)))
        assert await read_bodies(client, queues=[0]) == sent
        last = receipts[-1].index
        for node_id in cluster.node_ids:
            assert (
                await read_bodies(client, queues=[0], node_id=node_id, at_least_index=last) == sent
            )
        # Generous: other work may share this machine. `qlog bench failover` measures.
        assert producer.stats().no_ack_ms_max < 15_000

    run(directory, scenario)


@pytest.mark.long
def test_a_paused_leader_is_left_by_producers_and_consumers(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        producer = client.producer()
        await producer.send("orders", b"0", queue_id=0)
        consumer = client.pull_consumer("orders", queues=[0])
        assert (await anext(consumer)).body == b"0"
        leader_id = await cluster.leader_id()
        cluster.pause(leader_id)
        began = time.monotonic()
        receipt = await producer.send("orders", b"1", queue_id=0)
        assert (await anext(consumer)).body == b"1"
        assert time.monotonic() - began < 20
        cluster.resume(leader_id)
        await producer.send("orders", b"2", queue_id=0)
        assert await read_bodies(client, queues=[0]) == [b"0", b"1", b"2"]
        assert receipt.term > 1

    run(directory, scenario)


@pytest.mark.long
def test_a_group_survives_a_kill_of_all_nodes(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        producer = client.producer()
        for i in range(200):
            await producer.enqueue("orders", b"%03d" % i)
        await producer.flush()
        got: set[bytes] = set()
        async with client.group_consumer("g", "orders", commit_interval_ms=50) as consumer:
            async for message in consumer:
                got.add(message.body)
                if len(got) == 100:
                    break
            await consumer.commit()
            stored = await client.admin.fetch_offsets("g")
            assert sum(stored.values()) == 100
            for node_id in cluster.node_ids:
                await cluster.kill(node_id)
            for node_id in cluster.node_ids:
                await cluster.restart(node_id, wait=False)
            await cluster.wait_ready()
            async for message in consumer:
                got.add(message.body)
                if len(got) == 200:
                    break
        assert got == {b"%03d" % i for i in range(200)}
        assert sum((await client.admin.fetch_offsets("g")).values()) == 200

    run(directory, scenario)


@pytest.mark.long
def test_two_members_share_real_queues(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        members = [client.group_consumer("g", "orders") for _ in range(2)]
        for member in members:
            await member.start()
        while [len(m.assignment()) for m in members] != [2, 2]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert sorted(members[0].assignment() + members[1].assignment()) == [
            Queue("orders", q, "g0") for q in range(4)
        ]
        assert len((await client.admin.describe_group("g")).client_ids) == 2
        await members[0].close()
        while len(members[1].assignment()) != 4:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await members[1].close()

    run(directory, scenario)


def test_the_blocking_client_on_real_nodes(directory: Path) -> None:
    async def scenario(cluster: Cluster, client: quorumlog.Client) -> None:
        def work() -> list[bytes]:
            with sync.connect(cluster.bootstrap) as blocking, blocking.producer() as producer:
                for i in range(100):
                    producer.enqueue("orders", b"%02d" % i, queue_id=1)
                producer.flush()
                return [m.body for m in blocking.consume("orders", until="end")]

        assert await asyncio.to_thread(work) == [b"%02d" % i for i in range(100)]

    run(directory, scenario)
