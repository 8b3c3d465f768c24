"""Transactions for programs without asyncio, made by the client of `quorumlog.sync`.

Owns the blocking names, and where a program's check runs: on a thread of its own, since it may
block. Must not know what any call does.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Self, Unpack

from quorumlog.arguments import checked_call
from quorumlog.cluster.close_once import failures_beside
from quorumlog.produce.delivery import Receipts
from quorumlog.records.message import OutgoingMessage
from quorumlog.records.options import Decision
from quorumlog.records.receipt import Receipt
from quorumlog.sync.loop_thread import loop_thread
from quorumlog.sync.wrappers import ClosingWrapper, Same, Wrapper, blocking, closing, into, plain
from quorumlog.transactions import consume as async_consume
from quorumlog.transactions import producer as async_transactions
from quorumlog.transactions.producer import Check
from quorumlog.transactions.types import CheckedTransaction, HalfOptions

_log = logging.getLogger("quorumlog.producer")


class Transaction(Wrapper[async_transactions.Transaction]):
    """Messages that are stored and not visible; see quorumlog.Transaction."""

    transaction_id = Same[int]()
    receipts = Same[Receipts]()
    decision = Same[Decision | None]()
    group = Same[str]()
    commit = blocking(async_transactions.Transaction.commit)
    rollback = blocking(async_transactions.Transaction.rollback)


class TransactionalProducer(ClosingWrapper[async_transactions.TransactionalProducer]):
    """Begins transactions, and answers for them; see quorumlog.TransactionalProducer."""

    start = plain(async_transactions.TransactionalProducer.start)
    close = closing(async_transactions.TransactionalProducer.close)
    producer_group = Same[str]()
    checks_count = Same[int]()
    is_closed = Same[bool]()
    begin = into(Transaction, blocking(async_transactions.TransactionalProducer.begin))

    @contextmanager
    def transaction(
        self,
        topic: str,
        body: bytes | str | Sequence[bytes | str | OutgoingMessage],
        **options: Unpack[HalfOptions],
    ) -> Iterator[Transaction]:
        """Begin, do the local work within, commit; roll back if it raises."""
        within = self._inner.transaction(topic, body, **options)
        made = Transaction(loop_thread.call(within.__aenter__()))
        try:
            yield made
        except BaseException as error:
            if loop_thread.is_running:  # Else the cluster asks later, and this error says more.
                with failures_beside(error):
                    loop_thread.call(within.__aexit__(type(error), error, error.__traceback__))
            raise
        loop_thread.call(within.__aexit__(None, None, None))

    @checked_call
    def send(
        self,
        topic: str,
        body: bytes | str | Sequence[bytes | str | OutgoingMessage],
        local: Callable[[Transaction], Decision | str],
        **options: Unpack[HalfOptions],
    ) -> Transaction:
        """Begin, do the local work, and end the transaction as its result says."""
        made = self.begin(topic, body, **options)
        decision = async_transactions.decision_of(local(made))
        if decision is Decision.COMMIT:
            made.commit()
        elif decision is Decision.ROLLBACK:
            made.rollback()
        return made

    def __enter__(self) -> Self:
        self.start()
        return self


class ConsumeTransaction(Wrapper[async_consume.ConsumeTransaction]):
    """Outputs and offsets in one entry; see quorumlog.ConsumeTransaction."""

    receipts = Same[Sequence[Receipt]]()
    send = plain(async_consume.ConsumeTransaction.send)
    consumed = plain(async_consume.ConsumeTransaction.consumed)
    commit = blocking(async_consume.ConsumeTransaction.commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None or loop_thread.is_running:
            with failures_beside(error):
                loop_thread.call(self._inner.__aexit__(kind, error, at))


def on_thread(check: Check) -> Check:
    """Return a check that runs on a thread of its own, since a program's may block.

    The program does not wait for the thread, so a check that never returns keeps nothing from
    ending. A producer runs `CHECKS_MAX` at a time."""

    async def check_on_thread(checked: CheckedTransaction) -> Decision | str:
        answer: Future[Decision | str | Awaitable[Decision | str]] = Future()
        answer.set_running_or_notify_cancel()

        def run() -> None:
            try:
                answer.set_result(check(checked))
            except Exception as error:  # noqa: BLE001 - a program may raise any error.
                answer.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - it would end only this thread.
                ended = RuntimeError("the check tried to end the program")
                ended.__cause__ = error
                answer.set_exception(ended)

        threading.Thread(target=run, name="quorumlog-check", daemon=True).start()
        try:
            said = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not answer.done():
                text = "the check of transaction %d is abandoned; its producer closes without it"
                _log.warning(text, checked.transaction_id)
            raise
        return await said if inspect.isawaitable(said) else said

    return check_on_thread
