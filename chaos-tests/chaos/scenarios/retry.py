"""Messages that a consumer gives back while leaders die: each comes back once, is dead once."""

import asyncio
from collections import Counter
from typing import Final

import quorumlog
from chaos.feature import bodies_of, demand_same, feature_topic, running, strike_amid
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


@scenario("give-back", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def give_back(x: ScenarioContext) -> None:
    """Messages go to the retry topic and to the dead letters while leaders are killed."""
    sent = Counter({b"%04d" % number: 1 for number in range(COUNT)})
    async with feature_topic(x, "given-back") as (client, topic):
        group = f"{topic}-group"
        async with client.producer() as producer:
            for body in sent:
                await producer.enqueue(topic, body)
        consumer = _Consumer(client, topic, group)
        async with running(consumer.run()) as (task,):
            await strike_amid(
                x,
                (kill_leader,) * KILL_COUNT,
                task,
                lambda: consumer.moved_count,
                lambda: int(not task.done()),
                "consumer still had work",
            )
            await asyncio.wait_for(task, 120 * x.options.time_scale)
        for place in (f"%RETRY%{group}", f"%DLQ%{group}"):
            demand_same(place, await bodies_of(client, place), sent)
        x.prove("each came back once, and was dead once", True)
