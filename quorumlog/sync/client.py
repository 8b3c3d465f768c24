"""The same client for programs without asyncio: the same names, blocking.

Owns the blocking names, the iteration between the threads, and where a program's check runs: on a
thread of its own, since it may block. Must not know what any call does. All clients of the
process share one thread with an event loop, started by the first and stopped with the last. A
blocking call waits for the asynchronous call of the same name, with the same arguments, errors and
deadline. Objects may be used from several threads.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Self, TypeVar, Unpack

from quorumlog import client as async_client
from quorumlog.admin import admin as async_admin
from quorumlog.arguments import checked_call, shows_options_of, takes_fields
from quorumlog.cluster.close_once import failures_beside
from quorumlog.cluster.forks import forks
from quorumlog.consume import consumer as async_consumer
from quorumlog.consume import group as async_group
from quorumlog.consume import pop as async_pop
from quorumlog.consume import raw as async_raw
from quorumlog.consume.in_hand import Reader
from quorumlog.consume.pop import PopMessage
from quorumlog.produce import delivery as async_delivery
from quorumlog.produce import producer as async_producer
from quorumlog.produce.delivery import Receipts
from quorumlog.records.message import Message, MessageBatch, OutgoingMessage
from quorumlog.records.options import Decision
from quorumlog.records.receipt import Receipt
from quorumlog.sync.loop_thread import loop_thread
from quorumlog.sync.wrappers import ClosingWrapper, Same, Wrapper, blocking, closing, into, plain
from quorumlog.transactions import consume as async_consume
from quorumlog.transactions import producer as async_transactions
from quorumlog.transactions.producer import Check
from quorumlog.transactions.types import CheckedTransaction, HalfOptions

_T = TypeVar("_T")
_Consumer = TypeVar("_Consumer", bound=async_consumer.Consumption)
_log = logging.getLogger("quorumlog.producer")


class Delivery(Wrapper[async_delivery.Delivery]):
    """A message on its way; `receipt()` waits for its receipt."""

    is_done = Same[bool]()

    def receipt(self) -> Receipt:
        """Wait for the receipt. Raises the error if the message failed."""
        if self._inner.is_done:
            return self._inner.result()
        return loop_thread.call(self._inner.receipt())

    def result(self) -> Receipt:
        """Return the receipt or raise the error; only when `is_done`."""
        return self._inner.result()


class Producer(ClosingWrapper[async_producer.Producer]):
    """Sends messages; see quorumlog.Producer. For bulk, `enqueue` many and `flush`."""

    send = blocking(async_producer.Producer.send)
    enqueue = into(Delivery, blocking(async_producer.Producer.enqueue))
    send_nowait = into(Delivery, plain(async_producer.Producer.send_nowait))
    send_batch = blocking(async_producer.Producer.send_batch)
    flush = blocking(async_producer.Producer.flush)
    close = closing(async_producer.Producer.close)
    abort = closing(async_producer.Producer.abort)
    is_closed = Same[bool]()
    stats = plain(async_producer.Producer.stats)


class Admin(Wrapper[async_admin.Admin]):
    """Administers the cluster; see quorumlog.Admin."""

    create_topic = blocking(async_admin.Admin.create_topic)
    delete_topic = blocking(async_admin.Admin.delete_topic)
    topic_page = blocking(async_admin.Admin.topic_page)
    list_topics = blocking(async_admin.Admin.list_topics)
    describe_topic = blocking(async_admin.Admin.describe_topic)
    list_groups = blocking(async_admin.Admin.list_groups)
    describe_group = blocking(async_admin.Admin.describe_group)
    delete_group = blocking(async_admin.Admin.delete_group)
    fetch_offsets = blocking(async_admin.Admin.fetch_offsets)
    commit_offsets = blocking(async_admin.Admin.commit_offsets)
    trace_message = blocking(async_admin.Admin.trace_message)
    topic_sizes = blocking(async_admin.Admin.topic_sizes)
    list_transactions = blocking(async_admin.Admin.list_transactions)
    describe_transaction = blocking(async_admin.Admin.describe_transaction)
    end_transaction = blocking(async_admin.Admin.end_transaction)
    cancel_delayed = blocking(async_admin.Admin.cancel_delayed)
    delay_status = blocking(async_admin.Admin.delay_status)
    group_settings = blocking(async_admin.Admin.group_settings)
    set_group_settings = blocking(async_admin.Admin.set_group_settings)
    dead_letters = blocking(async_admin.Admin.dead_letters)
    resend_dead_letters = blocking(async_admin.Admin.resend_dead_letters)
    reset_offsets = blocking(async_admin.Admin.reset_offsets)
    export_config_files = blocking(async_admin.Admin.export_config_files)
    import_config_files = blocking(async_admin.Admin.import_config_files)
    node_status = blocking(async_admin.Admin.node_status)
    cluster_status = blocking(async_admin.Admin.cluster_status)
    events = blocking(async_admin.Admin.events)
    settings = blocking(async_admin.Admin.settings)
    stacks = blocking(async_admin.Admin.stacks)
    metrics = blocking(async_admin.Admin.metrics)
    history = blocking(async_admin.Admin.history)
    read_log = blocking(async_admin.Admin.read_log)
    transfer_leadership = blocking(async_admin.Admin.transfer_leadership)
    add_learner = blocking(async_admin.Admin.add_learner)
    promote = blocking(async_admin.Admin.promote)
    remove_member = blocking(async_admin.Admin.remove_member)
    drain = blocking(async_admin.Admin.drain)
    accept_loss = blocking(async_admin.Admin.accept_loss)
    finalize_upgrade = blocking(async_admin.Admin.finalize_upgrade)
    chain_digest = blocking(async_admin.Admin.chain_digest)
    describe_pop = blocking(async_admin.Admin.describe_pop)
    ha_status = blocking(async_admin.Admin.ha_status)
    ha_group = blocking(async_admin.Admin.ha_group)
    ha_promote = blocking(async_admin.Admin.ha_promote)
    put_user = blocking(async_admin.Admin.put_user)
    delete_user = blocking(async_admin.Admin.delete_user)
    users = blocking(async_admin.Admin.users)
    put_role = blocking(async_admin.Admin.put_role)
    delete_role = blocking(async_admin.Admin.delete_role)
    roles = blocking(async_admin.Admin.roles)
    explain_access = blocking(async_admin.Admin.explain_access)
    who_am_i = blocking(async_admin.Admin.who_am_i)


class Raw(Wrapper[async_raw.Raw]):
    """Records as bytes; see quorumlog.consume.raw.Raw."""

    pull = blocking(async_raw.Raw.pull)
    append = blocking(async_raw.Raw.append)


class _Iteration(ClosingWrapper[_Consumer]):
    """Iteration over messages and batches; whole batches cross between the threads."""

    def __init__(self, inner: _Consumer) -> None:
        super().__init__(inner)
        self._taking = threading.Lock()  # Several threads may iterate; each message goes to one.

    start = blocking(async_consumer.Consumption.start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if not forks.own[0]:  # Before the lock, which another thread of the parent may have held.
            forks.check()
        message = self._hand_out(self._inner.next_ready)
        if message is None:
            raise StopIteration
        return message

    def _hand_out(self, ready: Callable[[Reader], _T | None]) -> _T | None:
        """Wait until `ready` hands something out to this thread; None when all is read."""
        reader, inner = threading.current_thread(), self._inner
        in_hand = inner.in_hand
        before = in_hand.last
        try:
            if self._taking.locked():
                in_hand.asking.add(reader)
            with self._taking:
                if in_hand.asking:
                    in_hand.has_turn(reader)
                while (delivery := ready(reader)) is None:
                    if not loop_thread.call(inner.fill(reader)):
                        break
        except BaseException:  # The handler of a signal may raise anywhere.
            with self._taking:
                inner.take_back(reader, before)
            raise
        return delivery

    is_closed = Same[bool]()

    def next_batch(self) -> MessageBatch | None:
        """Wait for a batch; None when all is read. The rest of a begun batch comes first."""
        forks.check()
        return self._hand_out(self._inner.batch_ready)

    def batches(self) -> Iterator[MessageBatch]:
        """Iterate over batches instead of messages."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __enter__(self) -> Self:
        self.start()
        return self


class PullConsumer(_Iteration[async_consumer.PullConsumer]):
    """Reads queues from a position on; see quorumlog.PullConsumer."""

    close = closing(async_consumer.PullConsumer.close)
    offsets = plain(async_consumer.PullConsumer.offsets)
    queue_offsets = plain(async_consumer.PullConsumer.queue_offsets)
    seek = blocking(async_consumer.PullConsumer.seek)


class GroupConsumer(_Iteration[async_group.GroupConsumer]):
    """Consumes as a member of a group; see quorumlog.GroupConsumer."""

    auto_commit = Same[bool]()
    assignment = plain(async_group.GroupConsumer.assignment)
    members = plain(async_group.GroupConsumer.members)
    offsets = plain(async_group.GroupConsumer.offsets)
    commit = blocking(async_group.GroupConsumer.commit)
    commit_offsets = blocking(async_group.GroupConsumer.commit_offsets)
    retry_later = blocking(async_group.GroupConsumer.retry_later)
    reject = blocking(async_group.GroupConsumer.reject)
    close = closing(async_group.GroupConsumer.close)

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            self.close(is_processed=error is None)


class PopConsumer(ClosingWrapper[async_pop.PopConsumer]):
    """Receives single messages for a group; see quorumlog.PopConsumer."""

    receive = blocking(async_pop.PopConsumer.receive)
    ack = blocking(async_pop.PopConsumer.ack)
    change_invisible = blocking(async_pop.PopConsumer.change_invisible)
    nack = blocking(async_pop.PopConsumer.nack)
    reject = blocking(async_pop.PopConsumer.reject)
    close = closing(async_pop.PopConsumer.close)
    is_closed = Same[bool]()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PopMessage:
        """Receive for ever, message by message; each has to be acknowledged all the same."""
        return loop_thread.call(self._inner.__anext__())


class Transaction(Wrapper[async_transactions.Transaction]):
    """Messages that are stored and not visible; see quorumlog.Transaction."""

    transaction_id = Same[int]()
    receipts = Same[Receipts]()
    decision = Same[Decision | None]()
    broker_group = Same[str]()
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

    @shows_options_of(begin)
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
    @shows_options_of(begin)
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


class Client(ClosingWrapper[async_client.Client]):
    """A connection to a cluster; see quorumlog.Client. Start it with `with`."""

    def __init__(self, inner: async_client.Client) -> None:
        super().__init__(inner)
        self._life = threading.RLock()  # Serialises starts and closes.
        self._holds_thread = False

    def start(self) -> None:
        """Find the cluster; `with` does it. Raises UnavailableError or WrongClusterError; as the
        program ends ClosedError, which `with` raises once the thread of all clients has ended."""
        self._start(self._inner.start)

    def _start(self, start: Callable[[], Coroutine[Any, Any, object]]) -> None:
        loop_thread.check_outside()
        with self._life:
            if self._holds_thread:
                return
            loop_thread.acquire(self._inner.close)
            try:
                loop_thread.call(start())
            except BaseException:
                loop_thread.release(self._inner.close)
                raise
            self._holds_thread = True

    def close(self) -> None:
        """Flush and close its producers, close its consumers, then all connections.

        A program that ends without it does this as it ends, for at most 5 s."""
        loop_thread.check_outside()
        with self._life:
            if not self._holds_thread:
                return
            self._holds_thread = False
            try:
                if loop_thread.is_running:
                    loop_thread.call(self._inner.close())
            finally:
                loop_thread.release(self._inner.close)

    def __enter__(self) -> Self:
        self._start(self._inner.__aenter__)
        return self

    client_id = Same[str]()
    cluster_id = Same[str]()
    broker_groups = Same[tuple[str, ...]]()

    @property
    def admin(self) -> Admin:
        """Topics, groups, members and nodes."""
        return Admin(self._inner.admin)

    @property
    def raw(self) -> Raw:
        """Records as bytes."""
        return Raw(self._inner.raw)

    stats = plain(async_client.Client.stats)
    pull = blocking(async_client.Client.pull)
    cancel_delayed = blocking(async_client.Client.cancel_delayed)
    get_message = blocking(async_client.Client.get_message)
    query_by_key = blocking(async_client.Client.query_by_key)
    queue_offsets = blocking(async_client.Client.queue_offsets)
    offset_by_time = blocking(async_client.Client.offset_by_time)
    route = blocking(async_client.Client.route)

    producer = into(Producer, plain(async_client.Client.producer))
    pull_consumer = into(PullConsumer, plain(async_client.Client.pull_consumer))
    group_consumer = into(GroupConsumer, plain(async_client.Client.group_consumer))
    pop_consumer = into(PopConsumer, plain(async_client.Client.pop_consumer))
    transaction = into(ConsumeTransaction, plain(async_client.Client.transaction))

    @takes_fields(async_transactions.TransactionalOptions)
    def transactional_producer(
        self, options: async_transactions.TransactionalOptions
    ) -> TransactionalProducer:
        """Make a producer whose messages become visible when their local work is done."""
        given = {field.name: getattr(options, field.name) for field in fields(options)}
        given["check"] = on_thread(options.check)
        make = plain(async_client.Client.transactional_producer)
        return TransactionalProducer(make(self, **given))

    @takes_fields(async_group.ConsumeOptions)
    def consume(self, options: async_group.ConsumeOptions) -> Iterator[Message]:
        """Iterate over messages, as a member of a group if one is named, else by pulling."""
        if options.group is None:
            given = options.of(async_consumer.PullArguments)
            with self.pull_consumer(options.topic, **given) as pull:
                for message in pull:
                    yield message
            return
        given = options.of(async_group.MemberArguments)
        member = self.group_consumer(options.group, options.topic, **given)
        try:
            # Not `yield from`: leaving that early would call member.close() in its own way.
            for message in member:
                yield message
        finally:
            member.close(is_processed=False)


connect = into(Client, async_client.connect)
