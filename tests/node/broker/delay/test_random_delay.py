"""Delayed messages against a small model: random steps, and another leader between any two.

The model knows what was sent, what is due when, and what was promised. Whatever happens: nothing
comes before its time, nothing comes twice, what was cancelled does not come, what was refused does
not come, and in the end everything that was acknowledged is there.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest

from node.config.limits import Limits
from node.errors.common import NodeError, OutcomeUnknownError
from node.errors.delay import DelayedGoneError
from node.state.image import decode_image, encode_image
from node.state.state import State
from quorumlog.pb.admin_pb2 import CreateTopicRequest, DeleteTopicRequest
from quorumlog.pb.delay_pb2 import CancelDelayedRequest
from quorumlog.pb.log_pb2 import AppendResponse
from raft.transitions import Role
from store import format as fmt
from store.record.message import message_id
from tests import seeds
from tests.node.broker_fakes import Fixture, node_with
from tests.node.delayed import bodies, delayed, request_of, settle

TOPICS = ("orders", "bills")
LIMITS = replace(
    Limits(), delivery_count_max=3, delivery_in_flight_count_max=2, cancelled_delayed_count_max=500
)


@dataclass
class Sent:
    """One delayed message, and what its producer knows."""

    number: int
    future: "asyncio.Future[AppendResponse]"
    at: int
    """Which of its batch."""
    is_cancelled: bool = False
    is_gone: bool = False

    @property
    def response(self) -> AppendResponse | None:
        """The receipt, if there is one."""
        is_acked = self.future.done() and self.future.exception() is None
        return self.future.result() if is_acked else None

    @property
    def is_refused(self) -> bool:
        """Whether the cluster said that it is not there."""
        error = self.future.exception() if self.future.done() else None
        return error is not None and not isinstance(error, OutcomeUnknownError)


class Walk:
    """One run."""

    def __init__(self, node: Fixture, seed: int) -> None:
        self.node, self.random = node, Random(seed)
        self.sent: list[Sent] = []
        self.cancels: list[asyncio.Task[None]] = []
        self.now_max_ms = node.clock.now_ms
        self.seen: Counter[int] = Counter()

    # --- Steps ---

    async def step(self) -> None:
        steps = (
            self.send,
            self.send,
            self.send,
            self.wait,
            self.wait,
            self.cancel,
            self.hold,
            self.change,
        )
        work = self.random.choice(steps)()
        if work is not None:
            await work
        if self.random.random() < 0.1:
            await self.move_topic()
        if self.random.random() < 0.7:
            await settle(self.node)
        self.look()

    def send(self) -> None:
        random, now_ms, records = self.random, self.node.clock.now_ms, list[bytes]()
        first = len(self.sent)
        for number in range(first, first + random.randint(1, 4)):
            delay_ms = random.choice([0, 1, 500, 20_000, 30_000])
            wish = random.choice(
                [
                    {"DELAY": str(random.randint(1, 3))},
                    {"TIMER_DELAY_MS": str(delay_ms)},
                    {"TIMER_DELIVER_MS": str(now_ms + delay_ms)},
                ]
            )
            where = {"topic": random.choice(TOPICS), "queue_id": random.randint(0, 1)}
            records.append(delayed(number, **where, **wish))  # type: ignore[arg-type]
        future = self.node.broker.append_nowait(request_of(*records))
        self.sent += [Sent(first + at, future, at) for at in range(len(records))]

    def wait(self) -> None:
        clock = self.node.clock
        clock.now_ms += self.random.choice([1, 400, 1_000, 5_000, 25_000, -3_000])
        self.now_max_ms = max(self.now_max_ms, clock.now_ms)

    def cancel(self) -> None:
        answered = [sent for sent in self.sent if sent.response is not None]
        if answered:
            self.cancels.append(asyncio.create_task(self._cancel(self.random.choice(answered))))

    async def _cancel(self, sent: Sent) -> None:
        response = sent.response
        assert response is not None
        host = self.node.log.store.config.store_host
        request = CancelDelayedRequest(message_id=message_id(host, response.positions[sent.at]))
        try:
            await self.node.broker.delay.cancel_delayed(request)
        except DelayedGoneError:
            sent.is_gone = True
        except NodeError:
            return
        else:
            sent.is_cancelled = True

    def hold(self) -> None:
        driver = self.node.driver
        if driver.role is not Role.LEADER:
            return
        if driver.is_holding:
            driver.commit(self.random.randint(0, len(driver.pending)) or None)
            if self.random.random() < 0.7:
                driver.release()
        else:
            driver.is_holding = True

    async def change(self) -> None:
        """Another leader, which may have less, and then this node again."""
        driver, random = self.node.driver, self.random
        if driver.role is Role.LEADER:
            driver.lose()
            if random.random() < 0.5:
                await settle(self.node)
            driver.decide(random.randint(0, len(driver.pending)), is_known=random.random() < 0.5)
        if random.random() < 0.4:
            machine = self.node.machine
            machine.restore(encode_image(machine.state.image()), machine.applied_index)
        if random.random() < 0.5:
            await settle(self.node)
        driver.is_holding = False
        driver.lead()

    async def move_topic(self) -> None:
        """A topic goes, or comes back."""
        broker = self.node.broker
        try:
            if "bills" in self.node.machine.state.topics:
                work = broker.topics.delete_topic(DeleteTopicRequest(topic="bills"))
                await asyncio.wait_for(work, 0.02)
            else:
                create = broker.topics.create_topic(
                    CreateTopicRequest(topic="bills", queue_count=2)
                )
                await asyncio.wait_for(create, 0.02)
        except (NodeError, TimeoutError):
            pass

    # --- What must be true ---

    def all_seen(self) -> Counter[int]:
        """Count all that was delivered, also to a topic that was deleted and recreated since."""
        counts: Counter[int] = Counter()
        self.node.log.store.reads.origin = lambda _topic: 0
        for topic in TOPICS:
            for queue_id in (0, 1):
                counts.update(bodies(self.node, topic, queue_id))
        counts.update(bodies(self.node, fmt.UNDELIVERABLE_TOPIC))
        self.node.log.store.reads.origin = self.node.broker.context.origin
        return counts

    def look(self) -> None:
        seen = self.all_seen()
        assert not seen or max(seen.values()) == 1, f"twice: {seen.most_common(3)}"
        assert seen >= self.seen, "what was seen stays"
        for number in seen - self.seen:
            sent = self.sent[number]
            assert not sent.is_cancelled, f"{number} was cancelled"
            assert not sent.is_refused, f"{number} was refused"
            if sent.response is not None:
                due_ms = sent.response.due_unix_ms[sent.at]
                assert due_ms <= self.now_max_ms, f"{number} was due at {due_ms}"
        self.seen = seen

    async def finish(self) -> None:
        """Let everything come that is to come, and compare."""
        driver = self.node.driver
        if driver.role is not Role.LEADER:
            driver.lead()
        driver.release()
        await settle(self.node)
        for _ in range(2):
            self.node.clock.now_ms = self.now_max_ms = self.now_max_ms + 100_000
            await settle(self.node)
        await asyncio.gather(*self.cancels)
        self.look()
        for sent in self.sent:
            if sent.response is not None:
                is_there = sent.number in self.seen
                assert is_there or sent.is_cancelled or not sent.is_gone, f"{sent} is lost"
                if not is_there and not sent.is_cancelled:
                    # A cancel whose outcome nobody knew; the state does.
                    await self._cancel(sent)
                    assert sent.is_cancelled, f"{sent} is lost"
        image = self.node.machine.state.image()
        assert encode_image(State(LIMITS, decode_image(encode_image(image))).image()) == (
            encode_image(image)
        )


@pytest.mark.parametrize("seed", [*seeds.some_of(range(6)), seeds.FRESH])
@node_with(limits=LIMITS, topics={"orders": 2, "bills": 2})
async def test_no_delayed_message_is_lost_doubled_or_early(node: Fixture, seed: int | str) -> None:
    seed = seeds.chosen(seed, "tests/node/broker/delay/test_random_delay.py -k fresh")
    walk = Walk(node, seed)
    for _ in range(150):
        await walk.step()
    await walk.finish()
    assert len(walk.seen) > 20, "something happened"
