"""Producers that wait for questions about their transactions.

Owns the connected producers by group, and the questions that each has not taken yet; must not know
transactions. Known to the leader only: producers find the next leader and connect to it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.runtime.room import Room
from quorumlog.pb.transaction_pb2 import CheckTransactionsRequest, TransactionCheck

SHARES: Final = 8
"""Count of producers whose untaken questions fill all room; the leader then asks no other."""


class Question(NamedTuple):
    """One question, and the size it counts for."""

    check: TransactionCheck
    size_bytes: int


class WaitingProducer:
    """One producer and its questions; None ends the stream."""

    __slots__ = ("group", "host", "is_gone", "questions", "size_bytes")

    def __init__(self, group: str, host: str, question_count_max: int) -> None:
        self.group, self.host = group, host
        self.is_gone = False
        self.size_bytes = 0
        # One place more, for the end.
        self.questions: asyncio.Queue[Question | None] = asyncio.Queue(question_count_max + 1)


class Planned(NamedTuple):
    """Questions of one round, counted before they are sent."""

    counts: Counter[WaitingProducer]
    sizes_bytes: Counter[WaitingProducer]


class Producers:
    """The connected producers and their questions. One per broker."""

    def __init__(
        self,
        context: Context,
        on_come: Callable[[str], None],
        on_take: Callable[[TransactionCheck], Awaitable[bool]],
    ) -> None:
        """`on_come` is called with the group of a producer that has connected, `on_take` with the
        next question of one; it returns whether to ask it."""
        self._context: Final = context
        self._on_come = on_come
        self._on_take = on_take
        self._by_group: dict[str, list[WaitingProducer]] = {}
        self.room: Final = Room("waiting producers", context.limits.transaction_producer_count_max)
        self.size_bytes = 0
        """Size of all questions that no producer has taken yet."""

    def is_there(self, group: str) -> bool:
        """Whether any producer of a group is connected."""
        return group in self._by_group

    def choose(self, group: str, planned: Planned, size_bytes: int) -> WaitingProducer | None:
        """Return a producer with room for one more question, each in turn; None if there is none.

        `planned` has the other questions of the round; this one is added to it. A question that is
        larger than a producer's room is sent alone.
        """
        there, limits = self._by_group.get(group, []), self._context.limits
        size_bytes_max = limits.transaction_question_size_bytes_max
        held_bytes = self.size_bytes + planned.sizes_bytes.total()
        if held_bytes and held_bytes + size_bytes > size_bytes_max:
            return None
        for _ in there:
            first = there.pop(0)
            there.append(first)
            count = first.questions.qsize() + planned.counts[first]
            held_bytes = first.size_bytes + planned.sizes_bytes[first]
            has_room = not held_bytes or held_bytes + size_bytes <= size_bytes_max // SHARES
            if has_room and count < limits.transaction_question_count_max:
                planned.counts[first] += 1
                planned.sizes_bytes[first] += size_bytes
                return first
        return None

    def ask(self, waiting: WaitingProducer, question: Question) -> None:
        """Give a chosen producer its question, unless it has gone."""
        limit = self._context.limits.transaction_question_count_max
        if not waiting.is_gone and waiting.questions.qsize() < limit:
            waiting.questions.put_nowait(question)
            self._hold(waiting, question.size_bytes)

    def _hold(self, waiting: WaitingProducer, size_bytes: int) -> None:
        waiting.size_bytes += size_bytes
        self.size_bytes += size_bytes

    async def questions(self, request: CheckTransactionsRequest) -> AsyncIterator[TransactionCheck]:
        """Yield the questions to a producer, until it goes or this node leads no longer.

        The first answer is empty and says that the stream stands. Raises NotLeaderError, BusyError,
        and the errors of a question that cannot be counted.
        """
        context = self._context
        context.check_call(request.cluster_id, "producer_group", request.producer_group)
        limit, group = context.limits.transaction_question_count_max, request.producer_group
        waiting = WaitingProducer(group, self.room.take(), limit)
        self._by_group.setdefault(group, []).append(waiting)
        try:
            yield TransactionCheck()
            self._on_come(waiting.group)
            while (question := await waiting.questions.get()) is not None:
                try:
                    if await self._on_take(question.check):
                        yield question.check
                finally:  # Counts until the producer requests the next one.
                    self._hold(waiting, -question.size_bytes)
            raise context.why_not()
        finally:
            self._forget(waiting)

    def _forget(self, waiting: WaitingProducer) -> None:
        waiting.is_gone = True
        while not waiting.questions.empty():
            question = waiting.questions.get_nowait()
            if question is not None:
                self._hold(waiting, -question.size_bytes)
        there = self._by_group.get(waiting.group, [])
        if waiting in there:
            there.remove(waiting)
            self.room.give_back(waiting.host)
            if not there:
                del self._by_group[waiting.group]

    def end(self) -> None:
        """End all streams: this node leads no longer, and producers have to go elsewhere."""
        gone, self._by_group = self._by_group, {}
        for there in gone.values():
            for waiting in there:
                self.room.give_back(waiting.host)
                waiting.questions.put_nowait(None)
