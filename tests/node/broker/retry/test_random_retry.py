"""Random walks of a consumer that gives messages back, with leader changes between any two steps.

The model is small: what was answered happened once, a repeated call changes nothing, and at the end
each message that came back is on the retry topic once, each dead one among the dead letters, and
the stored offsets are those of the last answers. Dead letters that are sent again come back once.
"""

import asyncio
from collections import Counter
from random import Random

import pytest

from node.config.limits import Limits
from node.state.tables.dead_letters import DeadLettersTable
from quorumlog.pb.common_pb2 import Delays
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.retry_pb2 import (
    ResendDeadLettersRequest,
    ResendDeadLettersResponse,
    RetryLaterRequest,
    RetryLaterResponse,
    RetryMessage,
)
from store.record.message import decode_message
from tests import seeds
from tests.node.broker_fakes import Fixture, configure, hidden, node_with, request
from tests.node.checkpoints import check_images
from tests.node.delayed import settle

LIMITS = Limits()
GROUP, RETRY, DEAD = "readers", "%RETRY%readers", "%DLQ%readers"
STEPS = 220
COUNT = 40


def bodies(node: Fixture, topic: str) -> list[bytes]:
    """Everything that readers see of a topic, in order."""
    return [message.body for message in hidden(node, topic)]


class Walk:
    """One node and one consumer, which makes one call after the other."""

    def __init__(self, node: Fixture, random: Random) -> None:
        self.node, self.random = node, random
        self.next_offsets = {"orders": 0, RETRY: 0}
        self.stored: dict[str, int] = {}
        self.retried: Counter[bytes] = Counter()
        self.dead: Counter[bytes] = Counter()
        self.resent: set[int] = set()
        self.sequence = 0
        self.call: RetryLaterRequest | None = None
        self.task: asyncio.Task[RetryLaterResponse] | None = None
        self.resending: asyncio.Task[ResendDeadLettersResponse] | None = None

    # --- The consumer ---

    def consume(self) -> None:
        """Begin a call, or note how it ended; one that failed is made again as it was."""
        if self.task is not None and not self.task.done():
            return
        if self.task is not None:
            assert self.call is not None
            if self.task.exception() is None:
                self._note(self.call, self.task.result())
                self.call = None
        if self.call is None:
            self.call = self._next_call()
        self.task = None
        if self.call is not None:
            self.task = asyncio.ensure_future(self.node.broker.retry.retry_later(self.call))

    def _next_call(self) -> RetryLaterRequest | None:
        topic = self.random.choice(list(self.next_offsets))
        lo = self.next_offsets[topic]
        hi = min(len(bodies(self.node, topic)), lo + self.random.randint(1, 3))
        if hi <= lo:
            return None
        is_dead = self.random.random() < 0.1
        messages = [
            RetryMessage(topic=topic, offset=offset, is_dead=is_dead) for offset in range(lo, hi)
        ]
        offsets = [GroupOffset(topic=topic, offset=hi)] if self.random.random() < 0.8 else []
        return RetryLaterRequest(
            group=GROUP, messages=messages, offsets=offsets, producer_id=9, sequence=self.sequence
        )

    def _note(self, call: RetryLaterRequest, answer: RetryLaterResponse) -> None:
        self.sequence += 1
        given = call.messages
        topic = given[0].topic
        seen = bodies(self.node, topic)
        self.next_offsets[topic] = given[-1].offset + 1
        for row in call.offsets:
            self.stored[row.topic] = row.offset
        assert answer.retried_count + answer.dead_count == len(given)
        for message in given:
            record = self.node.log.store.reads.pull(topic, 0, message.offset, max_count=1).data
            is_dead = message.is_dead or decode_message(record).reconsume_times >= 2
            (self.dead if is_dead else self.retried)[seen[message.offset]] += 1

    def resend(self) -> None:
        """An operator sends some dead letters again, perhaps for the second time."""
        if self.resending is not None and not self.resending.done():
            return
        count = len(bodies(self.node, DEAD))
        if count:
            offsets = self.random.sample(range(count), min(count, 3))
            request = ResendDeadLettersRequest(group=GROUP, offsets=offsets)
            self.resending = asyncio.ensure_future(
                self.node.broker.dead_letters.resend_dead_letters(request)
            )
            self.resending.add_done_callback(lambda task: task.exception())

    # --- The world ---

    async def pass_time(self) -> None:
        self.node.clock.now_ms += self.random.choice([500, 1_000, 5_000])
        if self.node.driver.is_ready:
            self.node.broker.delay.delivery_task.look()
        for _ in range(8):
            await asyncio.sleep(0)

    async def step(self) -> None:
        driver = self.node.driver
        match self.random.randint(0, 12):
            case 0 | 1 | 2 | 3:
                self.consume()
            case 4 | 5:
                await self.pass_time()
            case 6:
                driver.is_holding = True
            case 7:
                driver.commit(self.random.randint(1, 3))
            case 8 | 9:
                driver.is_holding = False
                driver.commit()
            case 10:
                driver.change_leader(self.random)
            case 11:
                self.resend()
            case 12:
                driver.release()  # Calls that were cut off learn that nobody knows.
        for _ in range(self.random.randint(0, 4)):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Let everything end: calls are answered, and what is held is delivered."""
        self.node.driver.release()
        while self.call is not None:
            if self.task is not None:
                await asyncio.wait({self.task})
            done, self.task = self.task, None
            if done is not None and done.exception() is None:
                self._note(self.call, done.result())
                self.call = None
            elif self.call is not None:
                self.task = asyncio.ensure_future(self.node.broker.retry.retry_later(self.call))
        if self.resending is not None:
            await asyncio.wait({self.resending})
        self.node.clock.now_ms += 60_000
        await settle(self.node)


def check(walk: Walk) -> None:
    """Everything happened once, and the state says the same as the log."""
    node = walk.node
    assert Counter(bodies(node, RETRY)) == walk.retried
    assert Counter(bodies(node, DEAD)) == walk.dead
    stored = node.machine.state.groups[GROUP]
    for topic, offset in walk.stored.items():
        assert stored[topic][0] == offset
    dead = bodies(node, DEAD)
    again = Counter(bodies(node, "orders")[COUNT:])
    marks = node.machine.state.table(DeadLettersTable)
    resent = [body for offset, body in enumerate(dead) if marks.is_resent(GROUP, offset)]
    assert again == Counter(resent)
    assert node.machine.state.refused_count == 0


@pytest.mark.parametrize("seed", [*seeds.some_of(range(8)), seeds.FRESH])
@node_with(topics={"orders": 1}, limits=LIMITS)
async def test_each_message_moves_once_under_any_leader(node: Fixture, seed: int | str) -> None:
    random = Random(seeds.chosen(seed, "tests/node/broker/retry/test_random_retry.py -k fresh"))
    await node.broker.append(request(0, COUNT))
    await configure(node, GROUP, retry_count_max=2, retry_delays=Delays(delay_ms=[1_000, 3_000]))
    walk = Walk(node, random)
    for _ in range(STEPS):
        await walk.step()
    await walk.finish()
    check(walk)
    check_images(node, LIMITS, random)
    assert walk.sequence > 5, "calls must get through"
    assert not node.broker.dead_letters._under_way
