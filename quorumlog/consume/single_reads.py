"""Single reads of a client: a pull, messages by id or key, offsets, routes.

Owns the arguments; must not know how a node is chosen (`reads`).
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from quorumlog.arguments import checked, shown, takes_fields
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.routes import Route
from quorumlog.consume.reads import (
    PullArguments,
    QueueOffsets,
    ReadCalls,
    ReadFreshness,
    Reading,
)
from quorumlog.errors import InvalidRequestError
from quorumlog.pb import log_pb2
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import Consistency
from quorumlog.records.queues import Pair, Queue, queue_in


class ClientCalls:
    """What the calls of a client share once it is started; before, they raise ClosedError."""

    _timeout_ms: int

    @property
    def broker_groups(self) -> BrokerGroups:
        """The broker groups with their routes and channels, which all parts share: a port for the
        parts and for tests. Programs use `groups`. Raises ClosedError."""
        raise NotImplementedError

    @property
    def _reads(self) -> ReadCalls:
        return ReadCalls(self.broker_groups)


@dataclass(frozen=True)
class QueuePull(PullArguments):
    """The arguments of a pull of one queue."""

    topic: str
    queue_id: int
    offset: int
    _: KW_ONLY
    wait_ms: int = 0
    tags: Sequence[str] = ()
    sql: str = ""
    group: str = ""


@checked
class SingleReads(ClientCalls):
    """The calls of a client that read once."""

    @takes_fields(QueuePull)
    async def pull(self, wanted: QueuePull) -> MessageBatch:
        """Read one queue from an offset on, once; at least one message if there is any.

        With `wait_ms` the node waits that long for one. 0 for the limits means the node's own.
        `group` is the queue's broker group; the default is the first one by name.
        """
        options = wanted.options(
            self._timeout_ms, wait_ms=wanted.wait_ms, tags=tuple(wanted.tags), sql=wanted.sql
        )
        queue = Queue(wanted.topic, wanted.queue_id, wanted.group)
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
        group: str = "",
    ) -> int:
        """Return the offset of the first message stored at that time or later."""
        queue = Queue(topic, queue_id, group)
        return await self._reads.offset_by_time(queue, unix_ms, self._reading(consistency))

    async def route(self, *topics: str) -> Route:
        """Ask for the leaders and the routes of topics; unknown topics are left out."""
        deadline = Deadline(self._timeout_ms)
        if topics:
            await self._reads.ask_routes(topics, deadline)
        else:
            await self.broker_groups.refresh(deadline)
        return self.broker_groups.view(topics)

    def _reading(self, consistency: Consistency | str, node_id: int | None = None) -> Reading:
        return Reading(ReadFreshness.of(consistency, node_id=node_id), Deadline(self._timeout_ms))
