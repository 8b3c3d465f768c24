"""Transactions against real nodes: messages are consumed and made once, or not at all."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog import errors
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC
from tests.patience import end


async def bodies(client: quorumlog.Client, topic: str) -> Counter[bytes]:
    """Everything that is visible in a topic."""
    counts: Counter[bytes] = Counter()
    async with client.pull_consumer(topic, until="end") as consumer:
        async for batch in consumer.batches():
            counts.update(batch.bodies())
    return counts


async def kill_leader(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.leader_id)
    await asyncio.to_thread(cluster.kill, leader)


async def move(
    client: quorumlog.Client, stop: asyncio.Event, conflicts: list[str], name: str
) -> None:
    """Consume numbers and make a message of each, exactly once, until told to stop."""
    while not stop.is_set():
        async with client.group_consumer(
            "movers", TOPIC, auto_commit=False, client_id=name
        ) as consumer:
            try:
                async for batch in consumer.batches():
                    async with client.transaction("movers") as transaction:
                        for message in batch:
                            transaction.send("bills", b"bill " + message.body, queue_id=0)
                        transaction.consumed(batch)
            except errors.ConflictError as error:
                conflicts.append(str(error))
            except (errors.OutcomeUnknownError, errors.InvalidRequestError) as error:
                conflicts.append(str(error))


@pytest.mark.long
async def test_each_message_is_transformed_once_though_leader_and_consumer_change(
    tmp_path: Path,
) -> None:
    """Two members take queues from each other while the leader dies; what is late is refused."""

    async with running(tmp_path / "c") as (cluster, client):
        await client.admin.create_topic("bills", queue_count=1)
        conflicts: list[str] = []
        stop = asyncio.Event()
        members = [asyncio.create_task(move(client, stop, conflicts, "a"))]
        async with client.producer(linger_ms=1) as producer:
            for number in range(600):
                await producer.enqueue(TOPIC, b"%04d" % number)
                if number % 20 == 0:
                    await producer.flush()
                if number == 200:
                    members.append(asyncio.create_task(move(client, stop, conflicts, "b")))
                if number == 300:
                    await kill_leader(cluster)
                if number == 450:
                    members.pop(0).cancel()  # It dies without a word.
        wanted = Counter(b"bill %04d" % number for number in range(600))
        async with asyncio.timeout(90):
            while (await bodies(client, "bills")).total() < 600:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        stop.set()
        await end(*members)
        assert await bodies(client, "bills") == wanted
        described = await client.admin.describe_group("movers")
        assert sum(queue.offset for queue in described.queues) == 600


async def test_two_with_the_same_messages_one_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (_, client):
        async with client.producer() as producer:
            await producer.send_batch(TOPIC, [b"1", b"2", b"3"], queue_id=0)
        first = await client.pull(TOPIC, 0, 0, max_count=2)
        late = client.transaction("g")
        async with client.transaction("g") as transaction:
            transaction.send(TOPIC, b"made", queue_id=1)
            transaction.consumed(first)
        assert [r.queue_offset for r in transaction.receipts] == [0]
        late.send(TOPIC, b"late", queue_id=1)
        late.consumed(first[0])
        with pytest.raises(errors.ConflictError, match="consumed already"):
            await late.commit()
        async with client.transaction("g") as again:  # Offsets alone.
            again.consumed((await client.pull(TOPIC, 0, 2))[0])
        gap = client.transaction("other")
        gap.consumed(first[1])
        await gap.commit()  # Nothing was stored, so one may begin anywhere.
        assert len(await client.pull(TOPIC, 1, 0)) == 1
        other = quorumlog.connect(client._bootstrap)
        async with other:  # Another process that knows nothing of ours.
            stale = other.transaction("g")
            stale.send(TOPIC, b"stale", queue_id=1)
            stale.consumed(first[1])
            with pytest.raises(errors.ConflictError):
                await stale.commit()
            hole = other.transaction("other")
            async with client.producer() as producer:
                await producer.send_batch(TOPIC, [b"4", b"5"], queue_id=0)
            hole.consumed((await other.pull(TOPIC, 0, 4))[0])
            with pytest.raises(errors.InvalidRequestError, match="what became of those"):
                await hole.commit()
        failed = client.transaction("g")
        failed.send(TOPIC, b"never", queue_id=1)
        with pytest.raises(ZeroDivisionError):
            async with failed:
                raise ZeroDivisionError
        assert len(await client.pull(TOPIC, 1, 0)) == 1
