"""Random walks through transactions and conditional offsets, with leader changes between steps.

The model is small: what was told to be done is done once, what was told not to be is not, and what
nobody could tell is done once or not at all; and state and log say the same.
"""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.transactions import OffsetConflictError
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.transaction_pb2 import (
    TRANSACTION_OUTCOME_GIVEN_UP,
    CheckTransactionsRequest,
    ConsumedOffset,
    ConsumedOffsets,
    EndTransactionRequest,
    EndTransactionResponse,
)
from store.errors import Outcome
from tests.node.broker_fakes import Fixture, hidden, node_with, request
from tests.node.checkpoints import check_images
from tests.node.transaction_calls import (
    COMMITTED,
    GROUP,
    ROLLED_BACK,
    halves,
    part,
    round_of,
    stored,
)

LIMITS = Limits(transaction_check_count_max=2, open_transaction_count_max=8)
STEPS = 250


class Walk:
    """One node, what was asked of it, and what it said."""

    def __init__(self, node: Fixture, random: Random) -> None:
        self.node, self.random = node, random
        self.next_number = 0
        self.begun: dict[int, asyncio.Future[Any]] = {}
        """Number of the message: its receipt."""
        self.ended: list[tuple[int, Any, asyncio.Task[EndTransactionResponse]]] = []
        self.made: list[tuple[int, asyncio.Future[Any]]] = []
        """Offset that was consumed, and the receipt of what was made of it."""
        self.listeners: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        number, self.next_number = self.next_number, self.next_number + 1
        self.begun[number] = self.node.broker.append_nowait(halves(number, number + 1))

    def end(self) -> None:
        positions = [f.result().position for f in self.begun.values() if _is_good(f)]
        if positions:
            which = self.random.choice(positions[-6:])
            outcome = self.random.choice([COMMITTED, COMMITTED, ROLLED_BACK])
            request = EndTransactionRequest(
                transaction_id=which, producer_group=GROUP, outcome=outcome
            )
            task = asyncio.ensure_future(self.node.broker.transactions.end_transaction(request))
            self.ended.append((which, outcome, task))

    def consume(self) -> None:
        """A consumer takes the message that it believes to be next; some are late."""
        stored = self.node.machine.state.groups.get("readers", {}).get("orders", {}).get(1, -1)
        under_way = sum(not future.done() for _, future in self.made)
        expected = stored + self.random.choice([0, 0, under_way, under_way, -1, 1])
        if expected < -1 or expected == 0:
            return
        offset = max(expected, 0)
        append: AppendRequest = request(offset, offset + 1, topic="bills")
        row = ConsumedOffset(topic="orders", queue_id=1, expected=expected, offset=offset + 1)
        append.consumed.CopyFrom(ConsumedOffsets(group="readers", offsets=[row]))
        self.made.append((offset, self.node.broker.append_nowait(append)))

    def listen(self) -> None:
        """A producer comes, and answers nothing."""

        async def take() -> None:
            request = CheckTransactionsRequest(producer_group=GROUP, client_id="p")
            async for _ in self.node.broker.transactions.check_transactions(request):
                pass

        self.listeners.append(asyncio.ensure_future(take()))

    async def pass_time(self) -> None:
        self.node.clock.now_ms += self.random.choice([1_000, 6_000, 31_000])
        self.node.broker.transactions.checks._wake.set()
        for _ in range(6):
            await asyncio.sleep(0)

    async def step(self) -> None:
        driver = self.node.driver
        match self.random.randint(0, 12):
            case 0 | 1 | 2:
                self.begin()
            case 3 | 4 | 5:
                self.end()
            case 6 | 7:
                self.consume()
            case 8:
                driver.is_holding = True
            case 9:
                driver.commit(self.random.randint(1, 3))
            case 10:
                driver.is_holding = False
                driver.commit()
            case 11:
                driver.change_leader(self.random)
            case 12:
                await self.pass_time()
                if self.random.random() < 0.3:
                    self.listen()
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        self.node.driver.release()
        await asyncio.wait(
            {*self.begun.values(), *(task for *_, task in self.ended), *(f for _, f in self.made)}
        )
        applied = -1
        while applied < self.node.driver.applied_index or self.node.driver.pending:
            applied = self.node.driver.applied_index
            await round_of(self.node, 31_000)  # All questions about all that is open, in vain.
            await self.pass_time()
        for listener in self.listeners:
            listener.cancel()
        await asyncio.gather(*self.listeners, return_exceptions=True)


def _is_good(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _is_unknown(future: "asyncio.Future[Any]") -> bool:
    return getattr(future.exception(), "outcome", Outcome.UNKNOWN) is Outcome.UNKNOWN


async def check_transactions(walk: Walk) -> None:
    """Each message is seen once if its transaction was committed, and else never."""
    node = walk.node
    seen = Counter(int(m.body[:8]) for m in await stored(node))
    half = {int(m.body[:8]): m.position for m in hidden(node, "RMQ_SYS_TRANS_HALF_TOPIC")}
    given_up = [int(m.body[:8]) for m in await stored(node, "TRANS_CHECK_MAX_TIME_TOPIC")]
    state = part(node)
    for number, begun in walk.begun.items():
        if _is_good(begun):
            assert half[number] == begun.result().position
        elif not _is_unknown(begun):
            assert number not in half
        position = half.get(number)
        outcome = state.ended.get(position) if position is not None else None
        assert (position in state.open) == (position is not None and outcome is None)
        assert seen[number] == (outcome == COMMITTED), f"{number}: {outcome}"
        assert given_up.count(number) == (outcome == TRANSACTION_OUTCOME_GIVEN_UP)
    for position, outcome, task in walk.ended:
        if _is_good(task):
            assert state.ended[position] == outcome
    marks = hidden(node, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert len(marks) == len(state.ended), "each is done once"
    assert node.machine.state.refused_count == 0


async def check_consumed(walk: Walk) -> None:
    """What was made is there once for each offset below the stored one, in order."""
    made = [int(m.body[:8]) for m in await stored(walk.node, "bills")]
    next_offset = walk.node.machine.state.groups.get("readers", {}).get("orders", {}).get(1, 0)
    assert made == list(range(next_offset))
    good = [offset for offset, future in walk.made if _is_good(future)]
    assert len(good) == len(set(good))
    assert set(good) <= set(made)


@pytest.mark.parametrize("seed", range(12))
@node_with(topics={"orders": 2, "bills": 1}, limits=LIMITS)
async def test_transactions_happen_once_under_any_leader(node: Fixture, seed: int) -> None:
    random = Random(seed)
    walk = Walk(node, random)
    for _ in range(STEPS):
        await walk.step()
    await walk.settle()
    await check_transactions(walk)
    await check_consumed(walk)
    check_images(node, LIMITS, random)
    assert not node.broker.consumed._coming
    conflicts = [f for _, f in walk.made if isinstance(f.exception(), OffsetConflictError)]
    assert len(conflicts) < len(walk.made), "some must get through"
