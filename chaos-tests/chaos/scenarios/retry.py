"""Messages that a consumer gives back while leaders die: each comes back once, is dead once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import quorumlog
from chaos.errors import NotSoError
from chaos.profile import ClusterMode
from chaos.scenario import ALL_MODES, ScenarioContext, scenario
from chaos.strikes import kill_leader

COUNT: Final = 150
DELAY_S: Final = 0.3
KILL_COUNT: Final = 3
PAUSE_S: Final = 0.1
"""Pause after each message, so that there is still work after the last kill."""


class _Consumer:
    """Gives back each message once, and rejects it when it comes again."""

    def __init__(self, client: quorumlog.Client, topic: str, group: str) -> None:
        self._client, self._topic, self._group = client, topic, group
        self.retried: Counter[bytes] = Counter()
        self.dead: Counter[bytes] = Counter()

    @property
    def moved_count(self) -> int:
        return self.retried.total() + self.dead.total()

    async def run(self) -> None:
        """Run until each message was given back and rejected; repeat a failed call later."""
        async with self._client.group_consumer(self._group, self._topic) as consumer:
            async for message in consumer:
                if message.reconsume_times:
                    await consumer.reject(message)
                    self.dead[message.body] += 1
                else:
                    await consumer.retry_later(message, delay=DELAY_S)
                    self.retried[message.body] += 1
                if self.dead.total() == COUNT:
                    return
                await asyncio.sleep(PAUSE_S)


def _moves(consumer: _Consumer, task: "asyncio.Future[None]") -> Callable[[], bool]:
    """Return a condition: some more messages have moved, or the consumer has ended."""
    lo = consumer.moved_count
    return lambda: task.done() or consumer.moved_count > lo + 10


async def _bodies(client: quorumlog.Client, topic: str) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    async with client.pull_consumer(topic, until="end") as consumer:
        async for batch in consumer.batches():
            counts.update(batch.bodies())
    return counts


@scenario("give-back", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def give_back(x: ScenarioContext) -> None:
    """Messages go to the retry topic and to the dead letters while leaders are killed."""
    sent = Counter({b"%04d" % number: 1 for number in range(COUNT)})
    topic = f"{x.load.clients.topic}-given-back"
    group = f"{topic}-group"
    async with quorumlog.connect(
        x.target.bootstrap, timeout_ms=60_000, transport=x.load.transport
    ) as client:
        await client.admin.create_topic(topic, queue_count=2)
        async with client.producer() as producer:
            for body in sent:
                await producer.enqueue(topic, body)
        consumer = _Consumer(client, topic, group)
        task = asyncio.ensure_future(consumer.run())
        try:
            for _ in range(KILL_COUNT):
                await x.until("messages move", _moves(consumer, task))
                x.prove("the consumer still had work", not task.done())
                await kill_leader(x)
            await asyncio.wait_for(task, 120 * x.options.time_scale)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for place in (f"%RETRY%{group}", f"%DLQ%{group}"):
            bodies = await _bodies(client, place)
            if bodies != sent:
                lost, doubled = sent - bodies, bodies - sent
                raise NotSoError(f"{place}: {lost.total()} are lost, {doubled.total()} doubled")
        x.prove("each came back once, and was dead once", True)
