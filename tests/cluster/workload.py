"""Numbered messages sent to a real cluster, and the proof of what became of each of them."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from chaos.verdict import caught_up, same_digests

import quorumlog
from deploy.local import LocalCluster
from quorumlog.errors import QuorumlogError
from tests.patience import PATIENCE_S

TOPIC: Final = "orders"
QUEUE_COUNT: Final = 3


@dataclass(slots=True)
class History:
    """What the clients know: numbers by outcome."""

    acked: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    """Their error said that nothing was applied."""

    last_index: int = -1


class Workload:
    """Sends numbers until it is told to stop; several producers, each idempotent."""

    def __init__(self, client: quorumlog.Client, *, producers: int = 2) -> None:
        self._client, self._producer_count = client, producers
        self.history = History()
        self._next = 0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()

    async def __aenter__(self) -> "Workload":
        self._tasks = [asyncio.create_task(self._send()) for _ in range(self._producer_count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> History:
        """Let what is under way be decided."""
        self._stopping = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
        self._tasks = []
        return self.history

    async def acked(self, count: int) -> None:
        """Wait until so many more are acked."""
        target = len(self.history.acked) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.history.acked) < target:
                self._progress.clear()
                await self._progress.wait()

    async def _send(self) -> None:
        async with self._client.producer() as producer:
            while not self._stopping:
                numbers = range(self._next, self._next + 10)
                self._next = numbers.stop
                sent = [
                    (n, await producer.enqueue(TOPIC, b"%08d" % n, queue_id=n % QUEUE_COUNT))
                    for n in numbers
                ]
                for number, delivery in sent:
                    await self._settle(number, delivery)

    async def _settle(self, number: int, delivery: quorumlog.Delivery) -> None:
        history = self.history
        try:
            receipt = await delivery
        except QuorumlogError as error:
            is_refused = error.outcome.value == "not_applied"
            (history.refused if is_refused else history.unknown).add(number)
        else:
            history.acked.add(number)
            history.last_index = max(history.last_index, receipt.index)
        self._progress.set()


async def read_all(client: quorumlog.Client, history: History, node_id: int | None) -> list[int]:
    """Every number that the leader (linearizable) or one replica alone has, queue by queue."""
    consumer = client.pull_consumer(
        TOPIC,
        position="first",
        until="end",
        consistency="linearizable" if node_id is None else "local",
        at_least_index=max(history.last_index, 0),
        node_id=node_id,
    )
    by_queue: dict[int, list[int]] = {}
    async with consumer:
        async for message in consumer:
            by_queue.setdefault(message.queue_id, []).append(int(message.body))
    return [number for queue_id in sorted(by_queue) for number in by_queue[queue_id]]


async def prove(cluster: LocalCluster, client: quorumlog.Client, history: History) -> list[int]:
    """Every acked number once, from the leader and from each replica; all logs equal."""
    assert history.acked, "nothing was acked, so nothing is proven"
    values = await read_all(client, history, None)
    counted = Counter(values)
    assert not (lost := history.acked - counted.keys()), f"acked and lost: {sorted(lost)[:20]}"
    assert not (again := [n for n, count in counted.items() if count > 1]), f"twice: {again[:20]}"
    surplus = counted.keys() - history.acked - history.unknown
    assert not surplus, f"neither acked nor unknown: {sorted(surplus)[:20]}"
    await same_logs(cluster, client)
    for node_id in cluster.node_ids:
        assert await read_all(client, history, node_id) == values, f"node {node_id} differs"
    return values


async def same_logs(cluster: LocalCluster, client: quorumlog.Client) -> None:
    """Wait until all nodes count in full and have applied what is committed now; compare their
    digests."""
    index = await applied(client, *cluster.node_ids)
    await same_digests(client, cluster.node_ids, index)


async def applied(client: quorumlog.Client, *node_ids: int) -> int:
    """Wait until nodes count in full and have applied what is committed now; return its index."""
    return await caught_up(client, node_ids, PATIENCE_S)
