"""Strangers at all nodes of a real cluster, for minutes, beside clients that are checked."""

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

import quorumlog
from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from node.framed.server import PLAIN_SIZE_BYTES
from node.runtime.accounts import Kind
from tests import seeds
from tests.cluster.conftest import running
from tests.cluster.workload import QUEUE_COUNT, TOPIC, Workload, prove
from tests.patience import end, eventually
from tests.strange_requests import TOPICS
from tests.strangers import DURABLE
from tests.two_processes import results_of

SECONDS: Final = float(os.environ.get("QUORUMLOG_TEST_STRANGERS_S", "600"))
CALM_S: Final = 10.0
STILL_MS_MAX: Final = 250.0
PAID: Final = "paid"


async def paid(client: quorumlog.Client, stop: asyncio.Event, until: int = 1 << 30) -> list[bytes]:
    """Commit every other transaction and roll the others back; return what was committed."""
    committed = []
    producer = client.transactional_producer(
        "payers", lambda _: "rollback", check_after_ms=3_600_000
    )
    async with producer:
        for number in range(until):
            if stop.is_set():
                break
            body = b"%d" % number
            made = await producer.begin(PAID, body, queue_id=0)
            await (made.rollback() if number % 2 else made.commit())
            committed += [] if number % 2 else [body]
    return committed


async def consumed(client: quorumlog.Client, found: dict[int, list[int]]) -> None:
    """Read numbers as a member of a group, by queue, until cancelled."""
    async with client.group_consumer("checkers", TOPIC) as consumer:
        async for batch in consumer.batches():
            for message in batch:
                found[message.queue_id].append(int(message.body))


async def stand_stills(cluster: LocalCluster, seconds: float) -> dict[int, tuple[float, float]]:
    """Return the longest stand-still and the longest answer of each node, in ms."""
    states = await asyncio.to_thread(cluster.status)
    nodes = [f"{cluster.framed_address(s.node_id).rpartition(':')[2]}:{s.pid}" for s in states]
    figures = await asyncio.to_thread(results_of, "tests.cluster.stand_stills", seconds, *nodes)
    return {state.node_id: tuple(one) for state, one in zip(states, figures, strict=True)}


def held(cluster: LocalCluster) -> dict[tuple[int, str, str], float]:
    """Return what nodes hold for callers, by node, metric and kind."""
    return {
        (node_id, name, kind.name.lower()): metric_of(
            cluster, node_id, name, kind=kind.name.lower()
        )
        for node_id in cluster.node_ids
        for name in ("quorumlog_held", "quorumlog_held_bytes")
        for kind in Kind
        if kind not in DURABLE
    }


@pytest.mark.long
def test_strangers_cost_a_cluster_neither_its_leader_nor_messages(tmp_path: Path) -> None:
    seed = seeds.drawn("--all tests/cluster/test_strangers.py")
    asyncio.run(judged(tmp_path / "c", seed))  # Longer than a test that is a coroutine may be.


async def judged(directory: Path, seed: int) -> None:
    async with running(directory) as (cluster, client):
        for topic in (PAID, *TOPICS):
            await client.admin.create_topic(topic, queue_count=6)
        ports = [cluster.framed_address(one).rpartition(":")[2] for one in cluster.node_ids]
        stop, read = asyncio.Event(), {queue_id: list[int]() for queue_id in range(QUEUE_COUNT)}
        reading = asyncio.create_task(consumed(client, read))
        paying = asyncio.create_task(paid(client, stop))
        async with Workload(client, producers=1) as load:
            await load.acked(100)
            calm = await stand_stills(cluster, CALM_S)
            held_before = await asyncio.to_thread(held, cluster)
            before = [(s.node_id, s.role, s.term, s.pid) for s in cluster.status()]
            (sent_count,), busy = await asyncio.gather(
                asyncio.to_thread(results_of, "tests.strangers", seed, SECONDS, *ports),
                stand_stills(cluster, SECONDS),
            )
            print(f"{sent_count} requests; stand-still, answer in ms: calm {calm}, {busy}")
            after = [(s.node_id, s.role, s.term, s.pid) for s in cluster.status()]
            await load.acked(100)
            history = await load.stop()
        stop.set()
        committed = await paying
        assert after == before, "leadership was lost"
        assert not history.refused | history.unknown
        numbers = await prove(cluster, client, history)
        assert numbers == sorted(numbers, key=lambda n: (n % QUEUE_COUNT, n)), "out of order"
        await eventually(lambda: sum(map(len, read.values())) >= len(numbers), "the consumer")
        await end(reading)
        assert [number for queue_id in sorted(read) for number in read[queue_id]] == numbers
        async with client.pull_consumer(PAID, until="end") as consumer:
            bodies = [message.body async for message in consumer]
        assert bodies == committed
        for node_id in cluster.node_ids:
            failed = metric_of(
                cluster, node_id, "quorumlog_calls_failed_total", code="node.internal"
            )
            assert not failed, f"node {node_id}: {failed} errors that nobody foresaw"

        async def is_empty() -> bool:
            await client.admin.list_groups()  # Drops silent members.
            now = await asyncio.to_thread(held, cluster)
            over.clear()
            over.update((k, n) for k, n in now.items() if n > held_before[k] + spare.get(k[1:], 0))
            return not over

        # Nodes forward requests on connections of their own, which stay.
        nodes = len(ports) - 1
        spare = {
            ("quorumlog_held", "connections"): nodes,
            ("quorumlog_held_bytes", "connections"): nodes * PLAIN_SIZE_BYTES,
        }
        over: dict[tuple[int, str, str], float] = {}
        try:
            await eventually(is_empty, "what was held for strangers to end")
        except AssertionError as error:
            raise AssertionError(f"{error}: {over}, before {held_before}") from None
        assert max(still_ms for still_ms, _ in busy.values()) <= STILL_MS_MAX, (calm, busy)
