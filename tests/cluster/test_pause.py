"""A paused leader: the others go on, and when it wakes up it serves nothing stale."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import QuorumlogError
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC, eventually

pytestmark = pytest.mark.slow
Run = Callable[[Coroutine[Any, Any, None]], None]


def test_a_paused_leader_serves_no_stale_linearizable_read(tmp_path: Path, run: Run) -> None:
    """Reads wait at the old leader while it sleeps, and are answered when it wakes up: with
    everything that was acked meanwhile, or with an error."""

    async def work() -> None:
        async with running(tmp_path / "c") as (cluster, client), client.producer() as producer:
            await producer.send(TOPIC, "before", queue_id=0)
            old = await asyncio.to_thread(cluster.leader_id)
            await asyncio.to_thread(cluster.pause, old)
            receipt = await producer.send(TOPIC, "after", queue_id=0)
            assert receipt.term > 1
            reads = [
                asyncio.create_task(
                    client.pull(
                        TOPIC, 0, 0, consistency="linearizable", node_id=old, timeout_ms=20_000
                    )
                )
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            await asyncio.to_thread(cluster.resume, old)
            answers = await asyncio.gather(*reads, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    assert isinstance(answer, QuorumlogError), repr(answer)
                else:
                    assert answer.bodies() == [b"before", b"after"]
            await eventually("one leader", lambda: cluster.leader_id() not in (0, old))
            assert (await client.pull(TOPIC, 0, 0, consistency="linearizable")).bodies() == [
                b"before",
                b"after",
            ]

    run(work())


def test_appends_at_a_paused_leader_are_not_acked_twice(tmp_path: Path, run: Run) -> None:
    """What waited at the sleeping leader is decided once, whoever decides it."""

    async def work() -> None:
        async with running(tmp_path / "c") as (cluster, client), client.producer() as producer:
            await producer.send(TOPIC, "0", queue_id=0)
            old = await asyncio.to_thread(cluster.leader_id)
            await asyncio.to_thread(cluster.pause, old)
            sent = [await producer.enqueue(TOPIC, str(n), queue_id=0) for n in range(1, 50)]
            receipts = [await one for one in sent]
            await asyncio.to_thread(cluster.resume, old)
            offsets = [receipt.queue_offset for receipt in receipts]
            assert offsets == list(range(1, 50))
            bodies = (await client.pull(TOPIC, 0, 0, max_count=1000)).bodies()
            assert bodies == [str(n).encode() for n in range(50)]

    run(work())
