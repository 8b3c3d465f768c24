"""Producers that wait to be asked what became of their transactions.

Owns who is there, of which group, and the questions that each has not taken yet; must not know
transactions. Known to the leader only: producers come back to the next one by themselves.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from node.broker.context import Context
from node.errors import BusyError
from quorumlog.pb.transaction_pb2 import CheckTransactionsRequest, TransactionCheck


class Waiting:
    """One producer and its questions; None ends the stream."""

    __slots__ = ("group", "questions")

    def __init__(self, group: str, question_count_max: int) -> None:
        self.group = group
        # One place more, for the end.
        self.questions: asyncio.Queue[TransactionCheck | None] = asyncio.Queue(
            question_count_max + 1
        )


class Producers:
    """One per broker."""

    def __init__(self, context: Context, on_come: Callable[[str], None]) -> None:
        """`on_come` is told the group of a producer that has come."""
        self._context: Final = context
        self._on_come = on_come
        self._by_group: dict[str, list[Waiting]] = {}
        self.count = 0

    def is_there(self, group: str) -> bool:
        """Say whether any producer of a group is there."""
        return group in self._by_group

    def choose(self, group: str, planned: Counter[Waiting]) -> Waiting | None:
        """Return one that can be asked, each in turn; None if there is none.

        `planned` has the questions that will be asked with this one, and gets it, too.
        """
        there = self._by_group.get(group, [])
        limit = self._context.limits.transaction_question_count_max
        for _ in there:
            first = there.pop(0)
            there.append(first)
            if first.questions.qsize() + planned[first] < limit:
                planned[first] += 1
                return first
        return None

    async def questions(self, request: CheckTransactionsRequest) -> AsyncIterator[TransactionCheck]:
        """Yield what a producer is asked, until it goes or this node leads no longer.

        The first answer is empty and says that the stream stands. Raises NotLeaderError, BusyError.
        """
        context = self._context
        context.check_cluster(request.cluster_id)
        context.check_name("producer_group", request.producer_group)
        context.check_leads()
        limits = context.limits
        if self.count >= limits.transaction_producer_count_max:
            raise BusyError("waiting producers", self.count, limits.transaction_producer_count_max)
        waiting = Waiting(request.producer_group, limits.transaction_question_count_max)
        self._by_group.setdefault(waiting.group, []).append(waiting)
        self.count += 1
        try:
            yield TransactionCheck()
            self._on_come(waiting.group)
            while (question := await waiting.questions.get()) is not None:
                yield question
            raise context.why_not()
        finally:
            self._forget(waiting)

    def _forget(self, waiting: Waiting) -> None:
        there = self._by_group.get(waiting.group, [])
        if waiting in there:
            there.remove(waiting)
            self.count -= 1
            if not there:
                del self._by_group[waiting.group]

    def end(self) -> None:
        """This node leads no longer: all have to go elsewhere."""
        gone, self._by_group = self._by_group, {}
        self.count = 0
        for there in gone.values():
            for waiting in there:
                waiting.questions.put_nowait(None)
