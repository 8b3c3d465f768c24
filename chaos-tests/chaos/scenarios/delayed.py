"""Delayed messages while leaders die, sleep or are cut off: each comes once, at its time or later.

Owns the producer, which also cancels, and the consumer; the rules are in chaos/delayed.py.
"""

import asyncio
from random import Random
from typing import Final

import quorumlog
from chaos.body import body_of, value_of
from chaos.delayed import Cancel, DelayHistory, Delivered, Sent, check_delayed
from chaos.errors import NotSoError
from chaos.feature import PATIENT_MS, QUEUE_COUNT, feature_topic, messages_of, running, strike_amid
from chaos.profile import ClusterMode
from chaos.scenario import ALL_MODES, ScenarioContext, scenario
from chaos.strikes import Strike, cut_leader_off, kill_leader, pause_leader
from chaos.told import now_unix_ms, outcome_of
from chaos.verdict import caught_up
from quorumlog.errors import QuorumlogError

COUNT: Final = 300
DELAY_S_MAX: Final = 5.0
CANCEL_CHANCE: Final = 0.3
PAUSE_S: Final = 0.05
"""Pause between messages, so that there is still work after the last strike."""
END_S: Final = 120.0


class _Work:
    """Sends delayed messages, cancels some, and follows their topic."""

    def __init__(self, client: quorumlog.Client, topic: str, random: Random) -> None:
        self._client, self._topic, self._random = client, topic, random
        self.history = DelayHistory()

    @property
    def due_count(self) -> int:
        """Number of messages that were acked and not yet delivered."""
        return len(self.history.wanted() - self.history.seen_unix_ms.keys())

    async def send(self) -> None:
        """Send all, one at a time, and wait for the cancels."""
        producing = self._client.producer(timeout_ms=PATIENT_MS)
        async with asyncio.TaskGroup() as cancels, producing as producer:
            for number in range(COUNT):
                value = f"{self._topic}-{number}"
                receipt, seconds = await self._send(producer, value)
                if receipt is not None and self._random.random() < CANCEL_CHANCE:
                    # Some of the cancels come when the message is just due.
                    after_s = self._random.choice((0.0, seconds / 2, seconds))
                    cancels.create_task(self._cancel(value, receipt, after_s))
                await asyncio.sleep(PAUSE_S)

    async def _send(
        self, producer: quorumlog.Producer, value: str
    ) -> tuple[quorumlog.Receipt | None, float]:
        queue_id = self._random.randrange(QUEUE_COUNT)
        seconds = self._random.uniform(0.0, DELAY_S_MAX)
        kind = self._random.randrange(3)
        level, delay, deliver_at = None, None, None
        began_ms = now_unix_ms()
        if kind == 0:
            level, seconds = 1, 1.0
        elif kind == 1:
            delay = seconds
        else:
            deliver_at = began_ms / 1000 + seconds
        outcome, receipt = await outcome_of(
            producer.send(
                self._topic,
                body_of(value),
                queue_id=queue_id,
                level=level,
                delay=delay,
                deliver_at=deliver_at,
            )
        )
        due_ms = began_ms + int(seconds * 1000)
        self.history.sent[value] = Sent(value, queue_id, due_ms, outcome)
        return receipt, seconds

    async def _cancel(self, value: str, receipt: quorumlog.Receipt, after_s: float) -> None:
        await asyncio.sleep(after_s)
        outcome, done = await outcome_of(self._client.cancel_delayed(receipt))
        due_ms = 0 if done is None else done.due_unix_ms
        self.history.cancels.append(Cancel(value, outcome, due_ms))

    async def follow(self) -> None:
        """Read messages until cancelled; start again from the beginning after an error."""
        while True:
            try:
                async with self._client.pull_consumer(self._topic) as consumer:
                    async for message in consumer:
                        value = value_of(message.body)
                        self.history.seen_unix_ms.setdefault(value, now_unix_ms())
            except QuorumlogError:
                await asyncio.sleep(PAUSE_S)

    async def drain(self, node: int) -> list[Delivered]:
        """Read the topic from one replica."""
        return [
            Delivered(value_of(one.body), one.queue_id, one.queue_offset, one.store_unix_ms)
            for one in await messages_of(self._client, self._topic, node)
        ]

    async def is_through(self) -> bool:
        """Whether no leader holds a message, and all expected ones were seen."""
        statuses = await self._client.admin.delay_status()
        return not self.due_count and not any(status.held_count for status in statuses)


async def _delayed(x: ScenarioContext, strikes: tuple[Strike, ...]) -> None:
    async with feature_topic(x, "delayed") as (client, topic):
        work = _Work(client, topic, Random(x.random.random()))
        history = work.history
        try:
            async with running(work.send(), work.follow()) as (sending, _):
                await strike_amid(
                    x,
                    strikes,
                    sending,
                    lambda: len(history.seen_unix_ms),
                    lambda: work.due_count,
                    "messages were held",
                )
                await sending
                try:
                    await x.until_true("all messages came", work.is_through)
                except NotSoError as error:
                    x.recorder.note("wait", f"{work.due_count} messages are missing: {error}")
        finally:
            x.keep_history(history)
        await caught_up(client, x.cluster.node_ids, END_S * x.options.time_scale)
        drains = [await work.drain(node) for node in x.cluster.node_ids]
        history.delivered = max(drains, key=len)
        x.keep_history(history)
        outcomes = x.recorder.outcomes
        outcomes.update(f"delayed send {sent.outcome}" for sent in history.sent.values())
        outcomes.update(f"delayed cancel {cancel.outcome}" for cancel in history.cancels)
        x.demand_none(check_delayed(history))
        if any(one != drains[0] for one in drains):
            raise NotSoError("replicas differ in what was delivered")
        x.prove(f"{len(history.delivered)} were delivered once", history.delivered)
        x.prove(f"{len(history.cancelled())} were cancelled", history.cancelled())


@scenario("delayed", "P1 K1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def delayed(x: ScenarioContext) -> None:
    """Messages for later are sent, cancelled and come due while leaders are killed."""
    await _delayed(x, (kill_leader, kill_leader))


@scenario("delayed-cut", "P3 N1", modes=ALL_MODES - {ClusterMode.ASYNC_MASTER})
async def delayed_cut(x: ScenarioContext) -> None:
    """Messages come due while their leader sleeps, and while it is cut from all others."""
    await _delayed(x, (cut_leader_off, pause_leader))
