"""Messages that a consumer gives back while leaders die: each comes back once, and none is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC

pytestmark = pytest.mark.long
Run = Callable[[Coroutine[Any, Any, None]], None]
GROUP = "readers"
COUNT = 60


async def bodies(client: quorumlog.Client, topic: str) -> Counter[bytes]:
    """Everything that is in a topic."""
    found: Counter[bytes] = Counter()
    async with client.pull_consumer(topic, until="end") as consumer:
        async for batch in consumer.batches():
            found.update(batch.bodies())
    return found


@pytest.mark.parametrize("replication", ["raft", "sync_master"])
async def test_each_message_comes_back_once_though_the_leader_dies(
    tmp_path: Path, replication: str
) -> None:
    sent = {b"%04d" % number for number in range(COUNT)}

    async with running(tmp_path / "c", replication=replication) as (cluster, client):
        async with client.producer() as producer:
            for body in sorted(sent):
                await producer.enqueue(TOPIC, body)
        seen: Counter[bytes] = Counter()
        dead_count = 0
        killing: asyncio.Future[bool] | None = None
        async with client.group_consumer(GROUP, TOPIC, max_attempts=2) as consumer:
            async for message in consumer:
                assert message.origin_topic == TOPIC
                if message.reconsume_times == 0:
                    done = await consumer.retry_later(message, delay=0.5)
                    assert (done.retried_count, done.dead_count) == (1, 0)
                    seen[message.body] += 1
                    if len(seen) == COUNT // 2:
                        leader = await asyncio.to_thread(cluster.leader_id)
                        killing = asyncio.ensure_future(asyncio.to_thread(cluster.kill, leader))
                    continue
                done = await consumer.retry_later(message)
                assert (done.retried_count, done.dead_count) == (0, 1)
                dead_count += 1
                if dead_count == COUNT:
                    break
        assert killing is not None
        await killing
        assert seen == Counter(dict.fromkeys(sent, 1))
        once = Counter(dict.fromkeys(sent, 1))
        assert await bodies(client, f"%RETRY%{GROUP}") == once
        assert await bodies(client, f"%DLQ%{GROUP}") == once

        dead = await client.admin.dead_letters(GROUP, max_count=COUNT)
        assert [one.is_resent for one in dead] == [False] * COUNT
        done_ = await client.admin.resend_dead_letters(GROUP, range(10))
        assert (done_.resent, done_.already_resent) == (tuple(range(10)), ())
        again = await client.admin.resend_dead_letters(GROUP, range(11))
        assert (again.resent, again.already_resent) == ((10,), tuple(range(10)))
        resent = Counter(one.message.body for one in dead[:11])
        assert await bodies(client, TOPIC) == once + resent
