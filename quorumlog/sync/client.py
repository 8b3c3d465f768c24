"""The same client for programs without asyncio: the same names, blocking.

Owns the blocking names; must not know what any call does. All clients of the process share one
thread with an event loop, started by the first and stopped with the last. A blocking call waits for
the asynchronous call of the same name, with the same arguments, errors and deadline. Objects may be
used from several threads.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self

from quorumlog import client as async_client
from quorumlog.admin import admin as async_admin
from quorumlog.consume import raw as async_raw
from quorumlog.produce import delivery as async_delivery
from quorumlog.produce import producer as async_producer
from quorumlog.records.message import Message
from quorumlog.records.receipt import Receipt
from quorumlog.sync.consumers import GroupConsumer, PopConsumer, PullConsumer
from quorumlog.sync.loop_thread import loop_thread
from quorumlog.sync.transactions import ConsumeTransaction, TransactionalProducer, on_thread
from quorumlog.sync.wrappers import ClosingWrapper, Same, Wrapper, blocking, closing, into, plain
from quorumlog.transactions.producer import Check


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
    transfer_leadership = blocking(async_admin.Admin.transfer_leadership)
    add_learner = blocking(async_admin.Admin.add_learner)
    promote = blocking(async_admin.Admin.promote)
    remove_member = blocking(async_admin.Admin.remove_member)
    drain = blocking(async_admin.Admin.drain)
    accept_loss = blocking(async_admin.Admin.accept_loss)
    chain_digest = blocking(async_admin.Admin.chain_digest)
    describe_pop = blocking(async_admin.Admin.describe_pop)
    ha_status = blocking(async_admin.Admin.ha_status)
    ha_group = blocking(async_admin.Admin.ha_group)
    ha_promote = blocking(async_admin.Admin.ha_promote)


class Raw(Wrapper[async_raw.Raw]):
    """Records as bytes; see quorumlog.consume.raw.Raw."""

    pull = blocking(async_raw.Raw.pull)
    append = blocking(async_raw.Raw.append)


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
    groups = Same[tuple[str, ...]]()

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

    def transactional_producer(
        self,
        group: str,
        check: Check,
        *,
        check_after_ms: int = 0,
        timeout_ms: int | None = None,
        **options: Any,
    ) -> TransactionalProducer:
        """Make a producer whose messages become visible when their local work is done."""
        options |= {"check_after_ms": check_after_ms, "timeout_ms": timeout_ms}
        make = plain(async_client.Client.transactional_producer)
        return TransactionalProducer(make(self, group, on_thread(check), **options))

    def consume(self, topic: str, *, group: str | None = None, **options: Any) -> Iterator[Message]:
        """Iterate over messages, as a member of a group if one is named, else by pulling."""
        if group is None:
            with self.pull_consumer(topic, **options) as pull:
                for message in pull:
                    yield message
            return
        member = self.group_consumer(group, topic, **options)
        try:
            # Not `yield from`: leaving that early would call member.close() in its own way.
            for message in member:
                yield message
        finally:
            member.close(is_processed=False)


connect = into(Client, async_client.connect)
