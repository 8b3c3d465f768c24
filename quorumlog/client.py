"""The client: one connection to a cluster, from which producers, consumers and admin are made.

Owns their common parts (channels, the view of the cluster, defaults) and their end; must not know
how any of them works. All objects of a client belong to the event loop that it was started in.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, Self

from quorumlog.admin.admin import Admin
from quorumlog.admin.messages import CancelledDelay
from quorumlog.arguments import check_token, checked, checked_call, shown, takes_fields
from quorumlog.cluster import program_end
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.cluster.channels import Credentials
from quorumlog.cluster.close_once import CloseOnce, Kept, failures_beside
from quorumlog.cluster.forks import forks
from quorumlog.cluster.grpc_engine import check_descriptors, check_polling
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.routes import Route, parse_bootstrap
from quorumlog.cluster.transport import Transport, transport_of
from quorumlog.consume.consumer import (
    Consumption,
    PullArguments,
    PullConsumer,
    PullConsumerOptions,
)
from quorumlog.consume.group import (
    ConsumeOptions,
    GroupConsumer,
    GroupOptions,
    MemberArguments,
)
from quorumlog.consume.pop import PopConsumer, PopOptions
from quorumlog.consume.raw import Raw
from quorumlog.consume.reads import (
    QueueOffsets,
    ReadCalls,
    ReadFreshness,
    Reading,
    SinglePullArguments,
)
from quorumlog.errors import ClosedError, InvalidRequestError
from quorumlog.pb import log_pb2
from quorumlog.produce.options import ProducerOptions
from quorumlog.produce.producer import Producer
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import Consistency
from quorumlog.records.queues import Pair, Queue, queue_in
from quorumlog.records.receipt import Receipt
from quorumlog.transactions.consume import ConsumeTransaction, Stored
from quorumlog.transactions.producer import TransactionalOptions, TransactionalProducer

TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 10_000
GROUPS_MAX = 1_000  # Consumer groups whose stored offsets are remembered.
TIMES_MAX = 16  # Different timeouts of consuming transactions: nodes remember few producers.


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the start of the client. `calls` does not count streams."""

    calls: int
    retries: int
    searches: int
    questions: int
    leader_changes: int
    connections: int
    framed_connections: int
    """Nodes that get frames; `connections` are those of gRPC."""
    framed_other_nodes: int
    """Nodes whose framed port is not used: when it was last tried, another node answered there."""


@dataclass(frozen=True)
class QueuePull(SinglePullArguments):
    """The arguments of a pull of one queue."""

    topic: str
    queue_id: int
    offset: int
    _: KW_ONLY
    wait_ms: int = 0
    tags: Sequence[str] = ()
    sql: str = ""
    broker_group: str = ""


@checked
class Client:
    """A connection to a cluster. Made by `quorumlog.connect()`; start it with `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        client_id: str | None = None,
        credentials: Credentials = None,
        transport: Transport = "auto",
        token: str = "",
    ) -> None:
        forks.use()
        program_end.watch()
        Deadline(timeout_ms)  # Raises for a bad timeout.
        self._timeout_ms = timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._bootstrap = parse_bootstrap(bootstrap)
        self._cluster_id = cluster_id
        self._credentials = credentials
        self._transport = transport_of(transport)
        self._token = token.removesuffix("\n")  # That of its file.
        check_token(self._token)
        self.client_id = client_id or default_client_id()
        self._groups: BrokerGroups | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._close_once = CloseOnce()
        self._made = Kept()
        """The objects that are closed with the client."""
        self._sharing: dict[int, Producer] = {}
        """Producers of consuming transactions, by timeout (ms): none fails by another's."""
        self._stored: dict[str, Stored] = {}

    # Life cycle.

    async def start(self) -> None:
        """Find the cluster; `async with` does it. A cluster that is electing a leader is found too.

        Raises UnavailableError when no node can be reached within `connect_timeout_ms`
        (ConnectTimeoutError: none answers) or too few file descriptors are free,
        WrongClusterError, or InvalidRequestError for GRPC_POLL_STRATEGY; as
        the program ends ClosedError, which `async with` does not raise.
        """
        if self._groups is None:
            program_end.check()
        await self._start()

    async def _start(self) -> None:
        async with self._starting:
            if self._groups is not None:
                return
            self._check_not_closed()
            check_polling()
            check_descriptors()
            groups = BrokerGroups(
                self._bootstrap,
                self._cluster_id,
                self._credentials,
                self._transport,
                self._token,
            )
            try:
                await groups.connect(Deadline(self._connect_timeout_ms))
                self._check_not_closed()  # The client may have been closed meanwhile.
            except BaseException:
                await groups.close()
                raise
            self._groups = groups

    async def close(self) -> None:
        """Flush and close its producers, close its consumers, then all connections.

        Raises the first failure of those, after everything is closed; each of the others is logged
        as a warning, and a note of the first. A client is not started again.
        """
        self._is_closed = True
        await self._close_once.once(self._close)

    async def _close(self) -> None:
        groups = self._groups
        if groups is None:
            return
        try:
            await self._made.close()
        finally:
            self._groups = None
            await groups.close()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            await self.close()

    def _check_not_closed(self) -> None:
        forks.check()
        if self._is_closed:
            raise ClosedError("the client is closed; connect again")

    @property
    def _cluster(self) -> BrokerGroups:
        """The broker groups with their routes and channels, which all parts share: a port for the
        parts and for tests. Programs use `groups`. Raises ClosedError."""
        self._check_not_closed()
        if self._groups is None:
            raise ClosedError("the client is not started; use 'async with', or await start()")
        return self._groups

    @property
    def _reads(self) -> ReadCalls:
        return ReadCalls(self._cluster)

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered."""
        return self._cluster.cluster_id

    @property
    def broker_groups(self) -> tuple[str, ...]:
        """Names of the known broker groups; the first is the default where a call names none."""
        return tuple(group.name for group in self._cluster.all)

    @property
    def admin(self) -> Admin:
        """Topics, groups, members and nodes."""
        return Admin(self._cluster, self._timeout_ms)

    @property
    def raw(self) -> Raw:
        """Records as bytes."""
        return Raw(self._cluster, self._reads, self._timeout_ms)

    def stats(self) -> ClientStats:
        """Return the counts so far."""
        groups = self._cluster.known()
        return ClientStats(
            calls=sum(group.calls.attempts for group in groups),
            retries=sum(group.calls.retries for group in groups),
            searches=sum(group.router.searches for group in groups),
            questions=sum(group.router.questions for group in groups),
            leader_changes=sum(group.router.leader_changes for group in groups),
            connections=sum(len(group.router.channels) for group in groups),
            framed_connections=sum(group.router.channels.framed_count for group in groups),
            framed_other_nodes=sum(group.router.channels.other_node_count for group in groups),
        )

    async def cancel_delayed(
        self, message: Receipt | str, *, broker_group: str = ""
    ) -> CancelledDelay:
        """Cancel the delivery of a delayed message; as `admin.cancel_delayed`, with its errors."""
        return await self.admin.cancel_delayed(message, broker_group=broker_group)

    # Producers and consumers.

    @takes_fields(ProducerOptions)
    def producer(self, options: ProducerOptions) -> Producer:
        """Make a producer. One is enough for many tasks and topics.

        A batch leaves when the one before has its receipt or `linger_ms` have passed, whichever is
        later, and at once when it holds `batch_size_bytes_max` or `batch_count_max`. Up to
        `in_flight_max` batches are under way. All held messages, sent or not, are bounded by
        `buffer_size_bytes_max`. A message is given up `timeout_ms` after it was handed over.
        `compression` ("zlib", "lz4", "zstd") makes larger bodies smaller; `unique_keys` gives each
        message a key to find it by (UNIQ_KEY). `with_stages`: receipts say where the time at the
        leader went.

        A `name` belongs to one producer at a time: the latest to send under it has it, in each
        broker group from its first message there on, and sends of all others raise
        ProducerFencedError. So a process that was counted as dead no longer stores messages.
        """
        return self._made.add(Producer(self._cluster, options, self._timeout_ms))

    @takes_fields(PullConsumerOptions)
    def pull_consumer(self, options: PullConsumerOptions) -> PullConsumer:
        """Make a consumer of queues from a position on: offset, "first", "end", "@TIME" or "-100".

        The messages have one of the `tags`, and properties that make `sql` true. `until` ends
        before that position, at the latest where the queues ended when it started. `node_id` reads
        from that very replica. `prefetch` batches of `batch_size_bytes_max` are read ahead of each
        queue.
        """
        return self._made.add(PullConsumer(self._reads, options, self._timeout_ms))

    @takes_fields(GroupOptions)
    def group_consumer(self, options: GroupOptions) -> GroupConsumer:
        """Make a member of a consumer group; several from one client count as several members.

        `position` is where a group without offsets begins; queues that come later are read from
        their first message. `strategy`
        ("averagely", "circle", "consistent_hash" or a function) divides the queues; all members
        must use the same. `offsets_path` keeps the offsets of a broadcasting member, of one only:
        where two have it, the one that comes second gets ConflictError. A message that
        was delivered `max_attempts` times is not delivered again (`retry_later`); None: the limit
        of the group's settings. At most `held_size_bytes_max` and `held_count_max` are read ahead,
        and a batch of each queue.
        """
        groups, client_id = self._cluster, options.client_id or self._client_id_of_part()
        on_known = self._stored_of(options.group).update
        consumer = GroupConsumer(
            self._reads, groups, options, client_id, self._timeout_ms, on_known
        )
        # Only the program can say that it has processed the message in hand.
        return self._made.add(consumer, lambda: consumer.close(is_processed=False))

    @takes_fields(PopOptions)
    def pop_consumer(self, options: PopOptions) -> PopConsumer:
        """Make a consumer that takes single messages and acknowledges each alone.

        A message that is not acknowledged within `invisible` seconds comes again. With `fifo` no
        message of a message group is handed out while an earlier one is in flight. `start`
        ("first", "end") is the beginning of queues without a stored offset of the group. Messages
        without one of the `tags`, or for which the property filter `sql` is not true, count as
        done.
        """
        client_id = options.client_id or self._client_id_of_part()
        consumer = PopConsumer(self._cluster, options, client_id, self._timeout_ms)
        return self._made.add(consumer)

    def _client_id_of_part(self) -> str:
        return f"{self.client_id}#{secrets.token_hex(4)}"

    @takes_fields(ConsumeOptions)
    async def consume(self, options: ConsumeOptions) -> AsyncIterator[Message]:
        """Iterate over messages, as a member of a group if one is named, else by pulling.

        The other arguments are those of `group_consumer` or of `pull_consumer`. When the loop is
        left early, the last message of a group counts as not processed; `async with
        client.group_consumer(...)` gives more control.
        """
        if options.group is None:
            pull = self.pull_consumer(options.topic, **options.of(PullArguments))
            consumer: Consumption = pull
            close = consumer.close
        else:
            given = options.of(MemberArguments)
            consumer = member = self.group_consumer(options.group, options.topic, **given)
            close = partial(member.close, is_processed=False)
        try:
            async for message in consumer:
                yield message
        finally:
            await close()

    # Single reads.

    @takes_fields(QueuePull)
    async def pull(self, wanted: QueuePull) -> MessageBatch:
        """Read one queue from an offset on, once; at least one message if there is any.

        With `wait_ms` the node waits that long for one. 0 for the limits means the node's own.
        `broker_group` has the queue; the default is the first one by name.
        """
        options = wanted.options(
            self._timeout_ms, wait_ms=wanted.wait_ms, tags=tuple(wanted.tags), sql=wanted.sql
        )
        queue = Queue(wanted.topic, wanted.queue_id, wanted.broker_group)
        return await self._reads.pull(queue, wanted.offset, options)

    async def get_message(
        self,
        message_id: str,
        *,
        consistency: Consistency | str = Consistency.LEADER,
        node_id: int | None = None,
    ) -> Message:
        """Return the message with that id. Raises NotFoundError."""
        return await self._reads.message(message_id, self._reading(consistency, node_id))

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        lo_unix_ms: int = 0,
        hi_unix_ms: int = 0,
        max_count: int = 64,
        consistency: Consistency | str = Consistency.LEADER,
    ) -> list[Message]:
        """Return the newest messages that were sent with this key, oldest first.

        Stored within [lo, hi) (0: no limit). There are no others unless `max_count` came back; as
        0 it asks each group for one answer of its size. Raises InvalidRequestError for a key with a
        blank, which parts the keys of a message.
        """
        if not key or " " in key:
            raise InvalidRequestError(
                f"key is {shown(key)}, which no message has: a blank parts keys; use one of them"
            )
        request = log_pb2.QueryByKeyRequest(
            topic=topic,
            key=key,
            lo_unix_ms=lo_unix_ms,
            hi_unix_ms=hi_unix_ms,
            max_count=max_count,
        )
        return await self._reads.by_key(request, self._reading(consistency))

    async def queue_offsets(
        self,
        topic: str,
        queues: Sequence[int | Pair] | None = None,
        *,
        consistency: Consistency | str = Consistency.LEADER,
        node_id: int | None = None,
    ) -> list[QueueOffsets]:
        """Return the offsets of a topic's queues, all of them if none is named.

        Raises the error of a broker group that cannot answer; name queues to leave it out.
        """
        reading = self._reading(consistency, node_id)
        if queues is None:
            named, failed = await self._reads.queues(topic, reading)
            if failed:
                raise failed[0]
        else:
            named = [queue_in(topic, queue) for queue in queues]
        return await self._reads.queue_offsets(named, reading)

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        unix_ms: int,
        *,
        consistency: Consistency | str = Consistency.LEADER,
        broker_group: str = "",
    ) -> int:
        """Return the offset of the first message stored at that time or later."""
        queue = Queue(topic, queue_id, broker_group)
        return await self._reads.offset_by_time(queue, unix_ms, self._reading(consistency))

    async def route(self, *topics: str) -> Route:
        """Ask for the leaders and the routes of topics; unknown topics are left out."""
        deadline = Deadline(self._timeout_ms)
        if topics:
            await self._reads.ask_routes(topics, deadline)
        else:
            await self._cluster.refresh(deadline)
        return self._cluster.view(topics)

    def _reading(self, consistency: Consistency | str, node_id: int | None = None) -> Reading:
        return Reading(ReadFreshness.of(consistency, node_id=node_id), Deadline(self._timeout_ms))

    # Transactions.

    def transaction(self, group: str, *, timeout_ms: int | None = None) -> ConsumeTransaction:
        """Begin to consume as a group and to produce from the messages, exactly once.

        Within `async with`: `send` the outputs, and pass the inputs to `consumed`. Leaving it
        stores both in one atomic entry, or neither. Consumers of the group must not commit by
        themselves (`auto_commit=False`), and the transactions of a queue follow one another. Use
        few values of `timeout_ms`: beyond 16 it is the client's.
        """
        groups, timeout_ms = self._cluster, timeout_ms or self._timeout_ms
        consumers = [one for one in self._made if isinstance(one, GroupConsumer)]
        consumers = [one for one in consumers if one.group == group]
        if any(one.auto_commit for one in consumers):
            raise InvalidRequestError(
                f"a consumer of group {group} commits automatically; make it with auto_commit=False"
            )
        if timeout_ms not in self._sharing and len(self._sharing) >= TIMES_MAX:
            timeout_ms = self._timeout_ms
        if timeout_ms not in self._sharing:
            producer = Producer(groups, ProducerOptions(), timeout_ms)
            self._sharing[timeout_ms] = self._made.add(producer)
        stored, producer = self._stored_of(group), self._sharing[timeout_ms]
        return ConsumeTransaction(
            groups, self._reads, producer, group, stored, consumers, timeout_ms
        )

    def _stored_of(self, group: str) -> Stored:
        """Return what consuming transactions of a group know to be stored. Its consumers add where
        they begin: what a transaction has consumed was read behind that."""
        if len(self._stored) >= GROUPS_MAX:
            self._stored.clear()
        return self._stored.setdefault(group, {})

    @takes_fields(TransactionalOptions)
    def transactional_producer(self, options: TransactionalOptions) -> TransactionalProducer:
        """Make a producer whose messages become visible when their local work is done.

        `producer_group` names the producers that do the same work: any of them may be asked by
        `check`, which gets a CheckedTransaction and returns "commit", "rollback" or "unknown". The
        cluster asks after `check_after_ms` (0: 6 s), then every 30 s, 15 times at most. The other
        arguments are those of `producer`. Its messages have unique keys.
        """
        producer = TransactionalProducer(
            self._cluster, options, self.client_id, options.timeout_ms or self._timeout_ms
        )
        return self._made.add(producer)


@checked_call
def connect(
    bootstrap: str | Sequence[str],
    *,
    cluster_id: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    client_id: str | None = None,
    credentials: Credentials = None,
    transport: Transport = "auto",
    token: str = "",
) -> Client:
    """Make a client of the cluster of the nodes at `bootstrap` ("host:port,host:port").

    With `cluster_id` nodes of any other cluster are refused. `timeout_ms` is the one deadline over
    all attempts of a call. `credentials` (of ClientTls, or any of gRPC) turn TLS on.

    `transport` is the way of the calls on the path of a message (sends, pulls, offsets, receives
    and acknowledgements, heartbeats). "auto": frames where a node has a framed port that can be
    reached, else gRPC. "framed" raises UnimplementedError for a node without one. All other calls
    go over gRPC. Credentials of gRPC, not of ClientTls, serve gRPC only.

    `token` shows which user calls. Without TLS each host on the way can read it.
    """
    return Client(
        bootstrap,
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
        client_id=client_id,
        credentials=credentials,
        transport=transport,
        token=token,
    )


def default_client_id() -> str:
    """Return a name of this process: host, pid and random digits."""
    return f"{socket.gethostname()}@{os.getpid()}-{secrets.token_hex(4)}"
