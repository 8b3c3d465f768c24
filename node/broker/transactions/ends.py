"""Ends transactions: one entry with the messages, the mark that they are done, and the command.

Owns which transactions are being ended now; must not know the caller. The next leader finds the
whole entry or nothing of it, so a transaction is committed once or not at all: that is stricter
than RocketMQ, where a crash between message and mark makes the message visible twice.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.broker.records.half import (
    Halves,
    done_mark,
    given_up_messages,
    joined,
    offsets_of,
    portions,
    visible_messages,
)
from node.errors.common import AppendTimeoutError, UnknownTopicError
from node.errors.transactions import TransactionEndedError, UnknownTransactionError
from node.runtime.accounts import Charge
from node.state.tables.transactions import OpenTransaction, TransactionsTable, outcome_name
from quorumlog.pb import transaction_pb2
from quorumlog.pb.state_pb2 import Command
from raft.messages import Term
from store.errors import PositionRangeError

COMMITTED: Final = transaction_pb2.TRANSACTION_OUTCOME_COMMITTED
ROLLED_BACK: Final = transaction_pb2.TRANSACTION_OUTCOME_ROLLED_BACK
GIVEN_UP: Final = transaction_pb2.TRANSACTION_OUTCOME_GIVEN_UP
EXPIRED: Final = transaction_pb2.TRANSACTION_OUTCOME_EXPIRED
Outcome = transaction_pb2.TransactionOutcome

_OPEN: Final = transaction_pb2.TRANSACTION_OUTCOME_UNSPECIFIED
_AT_ONCE: Final = 256  # Messages before other tasks get their turn: 2 ms.
_T = TypeVar("_T")


class TransactionEnds:
    """Ends transactions, and knows those under way. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends
        self._running_ends: dict[int, asyncio.Task[None]] = {}
        """Transactions of this term whose last entry is written and not decided."""
        self._charges: dict[int, Charge] = {}
        """What the open transactions hold of their callers' shares, by position."""
        self.given_up_total = 0

    @property
    def table(self) -> TransactionsTable:
        """The replicated tables; a snapshot replaces them, so they are looked up each time."""
        return self._context.state.table(TransactionsTable)

    def forget(self) -> None:
        """Forget all: this node leads no longer; the next leader's log decides."""
        self._running_ends.clear()
        for position in list(self._charges):
            self._release(position)

    def hold(self, position: int, charge: Charge | None) -> None:
        """Hold a charge until the transaction at a position ends."""
        if charge is not None:
            self._charges[position] = charge
            if position not in self.table.open:
                self._release(position)

    def _release(self, position: int) -> None:
        charge = self._charges.pop(position, None)
        if charge is not None:
            charge.release()

    async def end(
        self,
        transaction_id: int,
        outcome: Outcome,
        producer_group: str = "",
        may_end: Callable[[], None] = lambda: None,
        may_know: Callable[[], None] = lambda: None,
    ) -> bool:
        """End a transaction; return whether it had been ended in this way before.

        `may_end` raises when the caller may not, or may no longer, end it; this calls it until the
        entry is in the log. `may_know` raises when the caller may not know how it ended. Cancelling
        the call withdraws nothing. Raises UnknownTransactionError, TransactionEndedError,
        UnknownTopicError (only for a commit; the transaction stays open), AppendTimeoutError, the
        errors of `may_end` and `may_know`, and those of `OwnAppends.write`.
        """
        context, timeout_ms = self._context, self._context.limits.append_timeout_ms
        context.check_leads()
        while (running := self._running_ends.get(transaction_id)) is not None:
            done, _ = await asyncio.wait({running}, timeout=timeout_ms / 1000)
            if not done:
                raise AppendTimeoutError(timeout_ms)
            context.check_leads()
        transaction = self.table.open.get(transaction_id)
        if transaction is None or (producer_group and producer_group != transaction.producer_group):
            ended = self.table.ended.get(transaction_id, _OPEN)
            if ended == _OPEN:
                raise UnknownTransactionError(transaction_id)
            may_know()
            if ended != outcome:
                raise TransactionEndedError(transaction_id, outcome_name(ended))
            return True
        may_end()
        task = asyncio.get_running_loop().create_task(
            self._write(transaction, outcome, context.driver.term, may_end)
        )
        self._running_ends[transaction_id] = task
        task.add_done_callback(lambda done: self._on_done(transaction_id, done))
        await context.decided(task)
        return False

    def _on_done(self, transaction_id: int, task: "asyncio.Task[None]") -> None:
        if self._running_ends.get(transaction_id) is task:
            del self._running_ends[transaction_id]
        if not task.cancelled():
            task.exception()  # The caller may be gone; the next one finds the transaction open.

    async def _write(
        self, known: OpenTransaction, outcome: Outcome, term: Term, may_end: Callable[[], None]
    ) -> None:
        if self._context.driver.term != term:  # The task begins only now: it may have been ended.
            raise self._context.why_not()
        try:
            halves = self.half_messages(known)
        except PositionRangeError:
            await self._write_end(known, EXPIRED, b"")
            raise TransactionEndedError(known.position, outcome_name(EXPIRED)) from None
        offsets = [one for table in await self._in_turns(offsets_of, halves) for one in table]
        records, queues = b"", frozenset[tuple[str, int]]()
        if outcome == COMMITTED:
            records, _, queues = joined(await self._in_turns(visible_messages, halves))
        elif outcome == GIVEN_UP:
            records = b"".join(await self._in_turns(given_up_messages, halves))
        if self._context.driver.term != term:  # Other tasks had their turn meanwhile.
            raise self._context.why_not()
        may_end()  # From here to the log no other task runs.
        self._check_topics(queues)
        host = self._context.store.config.store_host
        await self._write_end(
            known, outcome, records + done_mark(offsets, host, self._context.unix_ms())
        )
        self.given_up_total += outcome == GIVEN_UP

    async def _write_end(self, known: OpenTransaction, outcome: Outcome, records: bytes) -> None:
        end = Command.EndTransaction(position=known.position, outcome=outcome)
        await self._own_appends.write(records, [Command(end_transaction=end)])
        self._release(known.position)

    def half_messages(self, known: OpenTransaction) -> bytes:
        """Return the half messages of an open transaction.

        Raises PositionRangeError when retention has deleted them, CorruptionError.
        """
        if known.position < self._context.store.log.min_position:
            log = self._context.store.log
            raise PositionRangeError("position", known.position, log.min_position, log.max_position)
        with self._context.store.view(known.position, known.size_bytes) as view:
            return bytes(view)

    async def visible_messages(self, known: OpenTransaction) -> Halves:
        """Return the messages as consumers will get them. Errors as `half_messages`."""
        return joined(await self._in_turns(visible_messages, self.half_messages(known)))

    async def _in_turns(self, make: Callable[[bytes], _T], halves: bytes) -> list[_T]:
        """Apply `make` to each portion of half messages; others have their turn between."""
        pieces = self._context.turn.over(portions(halves, _AT_ONCE))
        return [make(portion) async for portion in pieces]

    def _check_topics(self, queues: Iterable[tuple[str, int]]) -> None:
        """Raise UnknownTopicError for a deleted topic; permissions count when a message is sent."""
        for topic, queue_id in queues:
            if self._context.state.queue_refusal(topic, queue_id) is not None:
                raise UnknownTopicError(topic)
