"""The same client for programs without asyncio: the same names, blocking.

Owns the blocking names; must not know what any call does. All clients of the process share one
thread with an event loop, started by the first and stopped with the last. A blocking call waits for
the asynchronous call of the same name, with the same arguments, errors and deadline. Objects may be
used from several threads.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import grpc

from quorumlog import client as async_client
from quorumlog.admin import admin as async_admin
from quorumlog.client import CONNECT_TIMEOUT_MS, TIMEOUT_MS, ClientStats
from quorumlog.consume import group as async_group
from quorumlog.consume import raw as async_raw
from quorumlog.consume.prefetch import BATCH_SIZE_BYTES_MAX as FETCH_SIZE_BYTES_MAX
from quorumlog.consume.prefetch import HELD_COUNT_MAX, HELD_SIZE_BYTES_MAX, PREFETCH_DEFAULT
from quorumlog.consume.rebalance import Strategy
from quorumlog.produce import delivery as async_delivery
from quorumlog.produce import producer as async_producer
from quorumlog.produce.options import (
    BATCH_COUNT_MAX,
    BATCH_SIZE_BYTES_MAX,
    BUFFER_SIZE_BYTES_MAX,
    IN_FLIGHT_DEFAULT,
)
from quorumlog.produce.producer import ProducerStats
from quorumlog.records.compression import COMPRESS_FROM_SIZE_BYTES
from quorumlog.records.message import Message
from quorumlog.records.options import Consistency, Position
from quorumlog.records.queues import Pair
from quorumlog.records.receipt import Receipt
from quorumlog.sync.consumers import GroupConsumer, PullConsumer
from quorumlog.sync.loop_thread import blocking, loop_thread, plain
from quorumlog.sync.pop import PopClient
from quorumlog.sync.transactions import (
    TransactionClient,
)


class Delivery:
    """A message on its way; `receipt()` waits for its receipt."""

    def __init__(self, inner: async_delivery.Delivery) -> None:
        self._inner = inner

    @property
    def is_done(self) -> bool:
        """Whether there is a receipt or an error."""
        return self._inner.is_done

    def receipt(self) -> Receipt:
        """Wait for the receipt. Raises the error if the message failed."""
        if self._inner.is_done:
            return self._inner.result()
        return loop_thread.call(self._inner.receipt())

    def result(self) -> Receipt:
        """Return the receipt or raise the error; only when `is_done`."""
        return self._inner.result()


class Producer:
    """Sends messages; see quorumlog.Producer. For bulk, `enqueue` many and `flush`."""

    def __init__(self, inner: async_producer.Producer) -> None:
        self._inner = inner

    send = blocking(async_producer.Producer.send)
    send_batch = blocking(async_producer.Producer.send_batch)
    flush = blocking(async_producer.Producer.flush)
    close = blocking(async_producer.Producer.close)
    abort = blocking(async_producer.Producer.abort)

    @property
    def is_closed(self) -> bool:
        """Whether the producer was closed, or is about to be."""
        return self._inner.is_closed

    stats: Callable[..., ProducerStats] = plain(async_producer.Producer.stats)

    def enqueue(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        message_group: str | None = None,
    ) -> Delivery:
        """Hand over one message, waiting only while the buffer is full."""
        work = self._inner.enqueue(
            topic,
            body,
            key=key,
            tag=tag,
            queue_id=queue_id,
            properties=properties,
            flag=flag,
            group=group,
            delay=delay,
            level=level,
            deliver_at=deliver_at,
            message_group=message_group,
        )
        return Delivery(loop_thread.call(work))

    def send_nowait(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        group: str = "",
        delay: float | None = None,
        level: int | None = None,
        deliver_at: float | None = None,
        message_group: str | None = None,
    ) -> Delivery:
        """Hand over one message. Raises BusyError (`client.busy`) while the buffer is full."""
        return Delivery(
            loop_thread.call_plain(
                lambda: self._inner.send_nowait(
                    topic,
                    body,
                    key=key,
                    tag=tag,
                    queue_id=queue_id,
                    properties=properties,
                    flag=flag,
                    group=group,
                    delay=delay,
                    level=level,
                    deliver_at=deliver_at,
                    message_group=message_group,
                )
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admin:
    """Administers the cluster; see quorumlog.Admin."""

    def __init__(self, inner: async_admin.Admin) -> None:
        self._inner = inner

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


class Raw:
    """Records as bytes; see quorumlog.consume.raw.Raw."""

    def __init__(self, inner: async_raw.Raw) -> None:
        self._inner = inner

    pull = blocking(async_raw.Raw.pull)
    append = blocking(async_raw.Raw.append)


class Client(PopClient, TransactionClient):
    """A connection to a cluster; see quorumlog.Client. Start it with `with`."""

    def __init__(self, inner: async_client.Client) -> None:
        self._inner = inner
        self._life = threading.RLock()  # Serialises starts and closes.
        self._holds_thread = False

    def start(self) -> None:
        """Find the cluster; `with` does it. Raises UnavailableError or WrongClusterError."""
        loop_thread.check_outside()
        with self._life:
            if self._holds_thread:
                return
            loop_thread.acquire()
            try:
                loop_thread.call(self._inner.start())
            except BaseException:
                loop_thread.release()
                raise
            self._holds_thread = True

    def close(self) -> None:
        """Flush and close its producers, close its consumers, then all connections."""
        loop_thread.check_outside()
        with self._life:
            if not self._holds_thread:
                return
            self._holds_thread = False
            try:
                loop_thread.call(self._inner.close())
            finally:
                loop_thread.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """The name of this client."""
        return self._inner.client_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered."""
        return self._inner.cluster_id

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the broker groups that are known now."""
        return self._inner.groups

    @property
    def admin(self) -> Admin:
        """Topics, groups, members and nodes."""
        return Admin(self._inner.admin)

    @property
    def raw(self) -> Raw:
        """Records as bytes."""
        return Raw(self._inner.raw)

    stats: Callable[..., ClientStats] = plain(async_client.Client.stats)
    pull = blocking(async_client.Client.pull)
    cancel_delayed = blocking(async_client.Client.cancel_delayed)
    get_message = blocking(async_client.Client.get_message)
    query_by_key = blocking(async_client.Client.query_by_key)
    queue_offsets = blocking(async_client.Client.queue_offsets)
    offset_by_time = blocking(async_client.Client.offset_by_time)
    route = blocking(async_client.Client.route)

    def producer(
        self,
        *,
        idempotent: bool = True,
        name: str | None = None,
        linger_ms: float = 0,
        batch_size_bytes_max: int = BATCH_SIZE_BYTES_MAX,
        batch_count_max: int = BATCH_COUNT_MAX,
        in_flight_max: int = IN_FLIGHT_DEFAULT,
        buffer_size_bytes_max: int = BUFFER_SIZE_BYTES_MAX,
        compression: str | None = None,
        compress_from_size_bytes: int = COMPRESS_FROM_SIZE_BYTES,
        unique_keys: bool = False,
        timeout_ms: int | None = None,
    ) -> Producer:
        """Make a producer; the options are those of quorumlog.Client.producer."""
        return Producer(
            loop_thread.call_plain(
                lambda: self._inner.producer(
                    idempotent=idempotent,
                    name=name,
                    linger_ms=linger_ms,
                    batch_size_bytes_max=batch_size_bytes_max,
                    batch_count_max=batch_count_max,
                    in_flight_max=in_flight_max,
                    buffer_size_bytes_max=buffer_size_bytes_max,
                    compression=compression,
                    compress_from_size_bytes=compress_from_size_bytes,
                    unique_keys=unique_keys,
                    timeout_ms=timeout_ms,
                )
            )
        )

    def pull_consumer(
        self,
        topic: str,
        *,
        queues: Sequence[int | Pair] | None = None,
        position: Position = "first",
        until: Literal["end"] | None = None,
        consistency: Consistency | str = Consistency.LEADER,
        at_least_index: int | None = None,
        node_id: int | None = None,
        tags: Sequence[str] = (),
        sql: str = "",
        batch_size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        batch_count_max: int = 0,
        prefetch: int = PREFETCH_DEFAULT,
        timeout_ms: int | None = None,
    ) -> PullConsumer:
        """Make a pull consumer; the options are those of quorumlog.Client.pull_consumer."""
        return PullConsumer(
            loop_thread.call_plain(
                lambda: self._inner.pull_consumer(
                    topic,
                    queues=queues,
                    position=position,
                    until=until,
                    consistency=consistency,
                    at_least_index=at_least_index,
                    node_id=node_id,
                    tags=tags,
                    sql=sql,
                    batch_size_bytes_max=batch_size_bytes_max,
                    batch_count_max=batch_count_max,
                    prefetch=prefetch,
                    timeout_ms=timeout_ms,
                )
            )
        )

    def group_consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        mode: async_group.Mode = "clustering",
        strategy: str | Strategy = "averagely",
        position: Position = "first",
        auto_commit: bool = True,
        commit_interval_ms: int = 1_000,
        tags: Sequence[str] = (),
        sql: str = "",
        max_attempts: int | None = None,
        offsets_path: str | None = None,
        client_id: str | None = None,
        batch_size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        batch_count_max: int = 0,
        prefetch: int = PREFETCH_DEFAULT,
        held_size_bytes_max: int = HELD_SIZE_BYTES_MAX,
        held_count_max: int = HELD_COUNT_MAX,
        timeout_ms: int | None = None,
    ) -> GroupConsumer:
        """Make a member of a group; the options are those of quorumlog.Client.group_consumer."""
        return GroupConsumer(
            loop_thread.call_plain(
                lambda: self._inner.group_consumer(
                    group,
                    topics,
                    mode=mode,
                    strategy=strategy,
                    position=position,
                    auto_commit=auto_commit,
                    commit_interval_ms=commit_interval_ms,
                    tags=tags,
                    sql=sql,
                    max_attempts=max_attempts,
                    offsets_path=offsets_path,
                    client_id=client_id,
                    batch_size_bytes_max=batch_size_bytes_max,
                    batch_count_max=batch_count_max,
                    prefetch=prefetch,
                    held_size_bytes_max=held_size_bytes_max,
                    held_count_max=held_count_max,
                    timeout_ms=timeout_ms,
                )
            )
        )

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


def connect(
    bootstrap: str | Sequence[str],
    *,
    cluster_id: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    client_id: str | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Client:
    """Make a blocking client; the arguments are those of quorumlog.connect."""
    inner = async_client.connect(
        bootstrap,
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
        client_id=client_id,
        credentials=credentials,
    )
    return Client(inner)
