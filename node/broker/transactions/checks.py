"""Asks producers about transactions that stay open, and gives up those that stay open too long.

Owns when, and how often; must not know how a transaction ends. The time of the next question and
the count of earlier ones are replicated. A new leader rebuilds the soft state here (a heap of
times) from them, and resumes where the old one was. The leader counts a question when a producer
takes it, before that one gets it: a question that none takes does not count, and goes to another
producer. If the leader falls in between, the producers get one question less; they never get more
than the limit. Transactions whose producers are gone stay; the leader asks about them when one
connects.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Final

import structlog

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Refused
from node.broker.core.context import DAMAGE, Context
from node.broker.transactions.ends import GIVEN_UP, TransactionEnds
from node.broker.transactions.producers import Planned, Producers, Question, WaitingProducer
from node.errors.transactions import TransactionEndedError, UnknownTransactionError
from node.runtime.background import BackgroundTasks
from node.state.tables.transactions import OpenTransaction
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import TransactionCheck
from store.errors import PositionRangeError

AT_ONCE: Final = 256
"""Questions of one entry, and transactions looked at before other tasks get their turn."""
_SIZE_BYTES_AT_ONCE: Final = 1024 * 1024
"""Size of messages in questions before other tasks get their turn: a few ms."""
PAUSE_MS_MAX: Final = 1_000
"""Ages, and transactions that could not be asked about, are looked at again after this time."""
_log: Final = structlog.get_logger(component="transactions")
_ENDED: Final = (TransactionEndedError, UnknownTransactionError)


class Checks:
    """The task that asks and gives up. One per broker; a LeaderWork."""

    def __init__(self, context: Context, own_appends: OwnAppends, ends: TransactionEnds) -> None:
        self._context: Final = context
        self._own_appends = own_appends
        self._ends = ends
        self.producers: Final = Producers(context, self._on_producer, self._on_take)
        self._due: list[tuple[int, int]] = []
        """Heap of (when to ask, position). The state decides whether an item still counts."""
        self._queued: set[int] = set()
        """Positions in the heap, each there once, however often producers come and go."""
        self._asked: dict[int, TransactionCheck] = {}
        """By position: questions that no producer has taken yet; each is in the heap, too."""
        self._tasks = BackgroundTasks("transactions are not looked at any more")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.checks_total = 0

    # --- LeaderWork ---

    def begin(self) -> None:
        """See `LeaderWork.begin`: look at all open transactions."""
        for one in self._ends.table.open.values():
            self._push(one.next_check_unix_ms, one.position)
        self._task = self._tasks.run(self._run())

    def end(self) -> None:
        """See `LeaderWork.end`: forget all soft state."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._due.clear()
        self._queued.clear()
        self._asked.clear()
        self._ends.forget()
        self.producers.end()

    # --- Events ---

    def on_begun(self, position: int) -> None:
        """Note when to ask about a transaction that was begun."""
        transaction = self._ends.table.open.get(position)
        if transaction is not None and self._task is not None:
            self._push(transaction.next_check_unix_ms, position)

    def is_orphaned(self, known: OpenTransaction) -> bool:
        """Whether a question is due, and no producer of the group is connected."""
        is_due = known.next_check_unix_ms <= self._context.unix_ms()
        return is_due and not self.producers.is_there(known.producer_group)

    def _on_producer(self, group: str) -> None:
        """Push the due transactions of a group again: without a producer they left the heap."""
        now_ms = self._context.unix_ms()
        for known in self._ends.table.open.values():
            if known.producer_group == group and known.next_check_unix_ms <= now_ms:
                self._push(known.next_check_unix_ms, known.position)

    def _push(self, at_unix_ms: int, position: int) -> None:
        if position not in self._queued:
            self._queued.add(position)
            heapq.heappush(self._due, (at_unix_ms, position))
            self._wake.set()

    # --- Rounds ---

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.round()
            except Refused as error:
                if not self._context.driver.is_ready:
                    return
                _log.warning("transactions are looked at again later", error=str(error))
                await asyncio.sleep(PAUSE_MS_MAX / 1000)
            pause_ms = PAUSE_MS_MAX
            if self._due:
                pause_ms = min(pause_ms, max(0, self._due[0][0] - self._context.unix_ms()))
            if not pause_ms:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def round(self) -> None:
        """Ask about due transactions, and give up those asked about too often or too old."""
        now_ms = self._context.unix_ms()
        limit = self._context.limits.transaction_check_count_max
        questions: list[tuple[OpenTransaction, WaitingProducer]] = []
        planned = Planned(Counter(), Counter())
        given_up = self._aged(now_ms)
        postponed: list[tuple[int, int]] = []
        for known in self._take_due(now_ms):
            untaken = self._asked.pop(known.position, None)
            if known.check_count >= limit:
                given_up.append(known)
            elif not self.producers.is_there(known.producer_group):
                continue  # Waits until a producer comes.
            elif (
                waiting := self.producers.choose(known.producer_group, planned, known.size_bytes)
            ) is not None:
                questions.append((known, waiting))
            else:  # All producers have enough questions.
                postponed.append((now_ms + PAUSE_MS_MAX, known.position))
                if untaken is not None:
                    self._asked[known.position] = untaken
        try:
            if questions:
                await self._ask(questions, now_ms)
            for known in given_up:
                try:
                    await self._give_up(known)
                except DAMAGE as error:
                    # The other transactions do not wait for the repair.
                    self._context.on_damage(error)
                    postponed.append((now_ms + PAUSE_MS_MAX, known.position))
        except Refused:
            again = [known for known, _ in questions] + given_up
            postponed += [(now_ms + PAUSE_MS_MAX, known.position) for known in again]
            raise
        finally:
            for one in postponed:
                self._push(*one)

    def _take_due(self, now_ms: int) -> list[OpenTransaction]:
        """Take due transactions out of the heap, at most as many as one entry holds."""
        opened, due = self._ends.table.open, self._due
        taken: dict[int, OpenTransaction] = {}
        while due and due[0][0] <= now_ms and len(taken) < AT_ONCE:
            _, position = heapq.heappop(due)
            self._queued.remove(position)
            transaction = opened.get(position)
            if transaction is None:
                self._asked.pop(position, None)
                continue
            if transaction.next_check_unix_ms <= now_ms:
                taken[position] = transaction
            else:  # It was asked about while it was queued.
                self._push(transaction.next_check_unix_ms, position)
        return list(taken.values())

    def _aged(self, now_ms: int) -> list[OpenTransaction]:
        """Return the oldest transactions, if retention may soon delete their half messages."""
        config, log = self._context.store.config, self._context.store.log
        age_ms = self._context.limits.transaction_age_ms_max
        if config.retention_ms:
            age_ms = min(age_ms, config.retention_ms // 2)
        lo_position = log.min_position
        if config.retention_size_bytes:
            lo_position = max(lo_position, log.max_position - config.retention_size_bytes // 2)
        aged = []
        for known in self._ends.table.open.values():  # Oldest first.
            if known.begun_unix_ms > now_ms - age_ms and known.position >= lo_position:
                break
            aged.append(known)
            if len(aged) == AT_ONCE:
                break
        return aged

    async def _ask(
        self, questions: Sequence[tuple[OpenTransaction, WaitingProducer]], now_ms: int
    ) -> None:
        next_ms = now_ms + self._context.limits.transaction_check_interval_ms
        for known, _ in questions:
            self._push(next_ms, known.position)
        size_bytes = 0
        for known, waiting in questions:
            size_bytes += known.size_bytes
            if size_bytes > _SIZE_BYTES_AT_ONCE:
                size_bytes = 0
                await asyncio.sleep(0)
            try:
                made = await self._ends.visible_messages(known)
            except PositionRangeError:  # Will be given up as expired.
                continue
            except DAMAGE as error:
                # The next question comes after the repair.
                self._context.on_damage(error)
                continue
            question = TransactionCheck(
                transaction_id=known.position,
                check_count=known.check_count + 1,
                records=made.records,
                record_count=made.record_count,
            )
            self._asked[known.position] = question
            self.producers.ask(waiting, Question(question, known.size_bytes))

    async def _on_take(self, question: TransactionCheck) -> bool:
        """Count a question that a producer is about to get; return whether it still stands."""
        position = question.transaction_id
        if self._asked.get(position) is not question:
            return False
        del self._asked[position]
        if position not in self._ends.table.open:
            return False
        next_ms = self._context.unix_ms() + self._context.limits.transaction_check_interval_ms
        check = Command.CheckTransactions(positions=[position], next_unix_ms=next_ms)
        await self._own_appends.submit(Command(check_transactions=check))
        self.checks_total += 1
        return True

    async def _give_up(self, known: OpenTransaction) -> None:
        try:
            await self._ends.end(known.position, GIVEN_UP)
        except _ENDED as error:
            _log.warning("a transaction has ended", reason=str(error))
            return
        _log.warning(
            "a transaction was given up",
            transaction_id=known.position,
            producer_group=known.producer_group,
            check_count=known.check_count,
        )
