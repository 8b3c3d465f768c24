"""Clients that consume by pop, each recording its deliveries and answers.

Owns a consumer's treatment of a message: end it at once, late, never, or give it back. Must not
know faults or rules (popped.py).
"""

import asyncio
from random import Random
from typing import Final

import quorumlog
from chaos.body import body_of, value_of
from chaos.popped import Hide, PopDelivery, PopHistory, Settle
from chaos.told import ToldOutcome, now_unix_ms, outcome_of
from quorumlog.consume.pop import PopConsumer, PopMessage
from quorumlog.errors import QuorumlogError

MESSAGE_GROUP_COUNT: Final = 10
INVISIBLE_MS: Final = 1_500
LONGER_MS: Final = 3_000
HELD_S: Final = 2.0
"""Processing time of a message whose invisible time was extended: more than the first one."""
WAIT_S: Final = 0.5
WORK_S: Final = 0.05
RECEIVE_COUNT_MAX: Final = 4
PATIENT_COUNT: Final = 4
"""Delivery count from which on a message is always acknowledged."""
TIMEOUT_MS: Final = 10_000
PATIENT_MS: Final = 60_000
PAUSE_S: Final = 0.03
_DO: Final = ("ack", "forget", "nack", "hold", "reject")
_WEIGHTS: Final = (82, 6, 6, 3, 3)


async def produce(client: quorumlog.Client, topic: str, count: int, history: PopHistory) -> None:
    """Send `count` messages, one at a time, of some message groups, each group in its order."""
    async with client.producer(timeout_ms=PATIENT_MS) as producer:
        for number in range(count):
            value, group = f"{topic}-{number}", f"g{number % MESSAGE_GROUP_COUNT}"
            sending = producer.send(topic, body_of(value), message_group=group)
            history.produced[value], _ = await outcome_of(sending)
            await asyncio.sleep(PAUSE_S)


class PopWorker:
    """One consumer of the group."""

    def __init__(self, consumer: PopConsumer, history: PopHistory, random: Random) -> None:
        self._consumer, self._history, self._random = consumer, history, random
        self.acked_count = 0
        self.held_count = 0
        """Messages acknowledged after the end of their first invisible time."""
        self.is_stopping = False

    async def run(self) -> None:
        """Consume until told to stop."""
        while not self.is_stopping:
            count = self._random.randint(1, RECEIVE_COUNT_MAX)
            try:
                messages = await self._consumer.receive(count, wait=WAIT_S)
            except QuorumlogError:
                self._history.failed_receive_count += 1
                await asyncio.sleep(PAUSE_S)
                continue
            receive = len(self._history.deliveries)
            for message in messages:
                self._history.deliveries.append(_delivery_of(message, receive))
            await self._work(messages)

    async def _work(self, messages: list[PopMessage]) -> None:
        left: set[str] = set()
        """Message groups with a message that was not done: later ones are not done either."""
        for message in messages:
            group = _message_group(message)
            if group not in left and not await self._work_at(message):
                left.add(group)

    async def _work_at(self, message: PopMessage) -> bool:
        """Do a randomly drawn action; return whether the message is done."""
        what = self._random.choices(_DO, _WEIGHTS)[0]
        if message.delivery_count >= PATIENT_COUNT:
            what = "ack"
        await asyncio.sleep(self._random.uniform(0.0, WORK_S))
        if what == "forget":
            return False
        if what == "nack":
            await self._hide(message, 0)
            return False
        if what == "hold":
            if await self._hide(message, LONGER_MS) is not ToldOutcome.OK:
                return False
            await asyncio.sleep(HELD_S)
        outcome = await self._settle(message, is_ack=what != "reject")
        self.held_count += what == "hold" and outcome is ToldOutcome.OK
        return outcome is ToldOutcome.OK

    async def _hide(self, message: PopMessage, asked_ms: int) -> ToldOutcome:
        began_ms, handle = now_unix_ms(), message.handle
        change = self._consumer.change_invisible(message, asked_ms / 1000)
        outcome, _ = await outcome_of(change)
        visible_ms = message.visible_unix_ms
        self._history.hides.append(Hide(handle, began_ms, asked_ms, outcome, visible_ms))
        return outcome

    async def _settle(self, message: PopMessage, *, is_ack: bool) -> ToldOutcome:
        began_ms, handle = now_unix_ms(), message.handle
        end = self._consumer.ack if is_ack else self._consumer.reject
        outcome, _ = await outcome_of(end(message))
        self._history.settles.append(Settle(handle, is_ack, began_ms, now_unix_ms(), outcome))
        self.acked_count += is_ack and outcome is ToldOutcome.OK
        return outcome


def _message_group(message: PopMessage) -> str:
    return message.properties.get("__SHARDINGKEY", "")


def _delivery_of(message: PopMessage, receive: int) -> PopDelivery:
    return PopDelivery(
        value_of(message.body),
        _message_group(message),
        message.queue_id,
        message.queue_offset,
        message.delivery_count,
        message.handle,
        receive,
        message.visible_unix_ms - INVISIBLE_MS,
        message.visible_unix_ms,
    )
