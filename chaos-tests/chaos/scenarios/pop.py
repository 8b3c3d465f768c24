"""Pop consumption while leaders die, sleep or are cut off: one holder at a time, done is done.

Owns the end of the work and the final questions to the replicas; the consumers' actions are in
chaos/pop_clients.py, the rules in chaos/popped.py.
"""

import asyncio
from collections import Counter
from random import Random
from typing import Final

import quorumlog
from chaos.body import value_of
from chaos.feature import QUEUE_COUNT, feature_topic, is_at_end, messages_of, running, strike_amid
from chaos.pop_clients import INVISIBLE_MS, TIMEOUT_MS, PopWorker, produce
from chaos.popped import PopHistory, check_pop
from chaos.profile import ClusterMode
from chaos.scenario import ALL_MODES, ScenarioContext, scenario
from chaos.strikes import Strike, cut_leader_off, kill_leader, pause_leader
from quorumlog.errors import UnknownTopicError

COUNT: Final = 300
WORKER_COUNT: Final = 4
LEFT_COUNT_MIN: Final = 21


class _Work:
    """A topic, its producer and the consumers of one group."""

    def __init__(self, client: quorumlog.Client, topic: str, random: Random, fifo: bool) -> None:
        self._client, self._topic, self._fifo = client, topic, fifo
        self._group = f"{topic}-group"
        self.history = PopHistory()
        self._random = random
        self.workers: list[PopWorker] = []

    @property
    def acked_count(self) -> int:
        """Number of messages that are done."""
        return sum(worker.acked_count for worker in self.workers)

    async def consume(self) -> None:
        """Run all consumers, until they are told to stop."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKER_COUNT):
                consumer = self._client.pop_consumer(
                    self._group,
                    self._topic,
                    invisible=INVISIBLE_MS / 1000,
                    fifo=self._fifo,
                    timeout_ms=TIMEOUT_MS,
                )
                worker = PopWorker(consumer, self.history, Random(self._random.random()))
                self.workers.append(worker)
                tasks.create_task(worker.run())

    async def is_through(self, consuming: "asyncio.Future[None]") -> bool:
        """Whether the group has no work left, while its consumers run."""
        assert not consuming.done(), consuming
        return await is_at_end(self._client, self._group, self._topic, QUEUE_COUNT)

    async def stop(self, consuming: "asyncio.Future[None]") -> None:
        """Let consumers finish their current messages."""
        for worker in self.workers:
            worker.is_stopping = True
        await consuming

    async def dead(self) -> list[str]:
        """Return the values of the dead letters of the group."""
        try:
            letters = await messages_of(self._client, f"%DLQ%{self._group}")
        except UnknownTopicError:
            return []  # No message was rejected.
        return [value_of(letter.body) for letter in letters]


async def _pop(x: ScenarioContext, strikes: tuple[Strike, ...], *, fifo: bool) -> None:
    async with feature_topic(x, "pop") as (client, topic):
        work = _Work(client, topic, Random(x.random.random()), fifo)
        history = work.history
        try:
            sending = produce(client, topic, COUNT, history)
            async with running(work.consume(), sending) as (consuming, producing):
                await strike_amid(
                    x,
                    strikes,
                    consuming,
                    lambda: work.acked_count,
                    lambda: COUNT - work.acked_count,
                    "messages were still to be done",
                    left_count_min=LEFT_COUNT_MIN,
                )
                await producing
                await x.until_true("the group has no work left", work.is_through, consuming)
                await work.stop(consuming)
        finally:
            x.keep_history(history)
        history.dead = await work.dead()
        x.keep_history(history)
        _count(x.recorder.outcomes, history)
        x.demand_none(check_pop(history, is_fifo=fifo))
        again = sum(one.count > 1 for one in history.deliveries)
        x.prove(f"{again} were handed out again", again)
        x.prove(f"{len(history.dead)} are dead letters", history.dead)
        held = sum(worker.held_count for worker in work.workers)
        x.prove(f"{held} were held longer than first agreed", held)


def _count(outcomes: Counter[str], history: PopHistory) -> None:
    outcomes["pop delivery ok"] += len(history.deliveries)
    outcomes["pop receive failed"] += history.failed_receive_count
    outcomes.update(f"pop hide {hide.outcome}" for hide in history.hides)
    outcomes.update(
        f"pop {'ack' if end.is_ack else 'reject'} {end.outcome}" for end in history.settles
    )


@scenario("pop", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def pop(x: ScenarioContext) -> None:
    """Messages are taken, held, given back, acknowledged and rejected while leaders are killed."""
    await _pop(x, (kill_leader, kill_leader), fifo=False)


@scenario("pop-fifo", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def pop_fifo(x: ScenarioContext) -> None:
    """The same in the order of message groups."""
    await _pop(x, (kill_leader, kill_leader), fifo=True)


@scenario("pop-cut", "P3 N1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def pop_cut(x: ScenarioContext) -> None:
    """Message groups are consumed in order while leaders are cut off, and while they sleep."""
    await _pop(x, (cut_leader_off, pause_leader), fifo=True)
