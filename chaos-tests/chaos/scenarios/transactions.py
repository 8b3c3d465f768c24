"""Transactions while leaders die: each ends once and correctly, also those left to the check."""

import asyncio
from collections import Counter
from typing import Final

import quorumlog
from chaos.feature import bodies_of, demand_same, feature_topic, running, strike_amid
from chaos.profile import ClusterMode
from chaos.scenario import ALL_MODES, ScenarioContext, scenario
from chaos.strikes import kill_leader

COUNT_MIN: Final = 150
CHECK_AFTER_MS: Final = 2_000
KILL_COUNT: Final = 3
PAUSE_S: Final = 0.1
"""Pause after each transaction."""


def _is_wanted(body: bytes) -> bool:
    return int(body) % 2 == 0


class _Producer:
    """Commits even and rolls back odd numbers; leaves each third transaction to the check."""

    def __init__(self, client: quorumlog.Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self.begun_count = 0
        self.is_ending = False
        """Whether it ends after COUNT_MIN transactions; before, a leader is still to die."""
        self.asked: set[bytes] = set()

    def check(self, transaction: quorumlog.CheckedTransaction) -> str:
        """Decide as the work would have decided."""
        body = transaction.messages[0].body
        self.asked.add(body)
        return "commit" if _is_wanted(body) else "rollback"

    async def run(self) -> None:
        """Run until it is to end, all transactions are begun, and none is open."""
        producer = self._client.transactional_producer(
            f"{self._topic}-group", self.check, check_after_ms=CHECK_AFTER_MS
        )
        async with producer:
            while not self.is_ending or self.begun_count < COUNT_MIN:
                number = self.begun_count
                body = b"%04d" % number
                made = await producer.begin(self._topic, body)
                self.begun_count += 1
                if number % 3:
                    await (made.commit() if _is_wanted(body) else made.rollback())
                await asyncio.sleep(PAUSE_S)
            while await self._client.admin.list_transactions():  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)


@scenario("transactions", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def transactions(x: ScenarioContext) -> None:
    """Half messages are stored, committed and rolled back while leaders are killed."""
    async with feature_topic(x, "transacted") as (client, topic):
        producer = _Producer(client, topic)
        async with running(producer.run()) as (task,):
            await strike_amid(
                x,
                (kill_leader,) * KILL_COUNT,
                task,
                lambda: producer.begun_count,
                lambda: int(not task.done()),
                "producer still had work",
            )
            producer.is_ending = True
            await asyncio.wait_for(task, 180 * x.options.time_scale)
        bodies = (b"%04d" % number for number in range(producer.begun_count))
        demand_same(topic, await bodies_of(client, topic), Counter(filter(_is_wanted, bodies)))
        x.prove("producers were asked", len(producer.asked) >= COUNT_MIN // 3)
        x.prove("each was committed or rolled back once", True)
