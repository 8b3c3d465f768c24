"""The gateway of one node for RocketMQ's remoting protocol: the table of requests.

Owns which request is answered by which part. Must not know bytes.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from node.broker import Broker
from node.remoting.calls.groups import GroupCalls
from node.remoting.calls.locks import LockCalls
from node.remoting.calls.messages import MessageCalls
from node.remoting.calls.offsets import OffsetCalls
from node.remoting.calls.pulls import Pulls
from node.remoting.calls.replies import ReplyCalls
from node.remoting.calls.retries import RetryCalls
from node.remoting.calls.routes import RouteCalls
from node.remoting.calls.send import Sends
from node.remoting.calls.shared import Shared
from node.remoting.calls.transactions import TransactionCalls
from node.remoting.conversation import Handler, RemotingCalls, RemotingConnection, Request
from node.remoting.forwarder import Forwarder
from node.remoting.places import AskRoute, Places
from node.remoting.protocol.answers import Answer
from node.remoting.protocol.codes import RequestCode
from node.rocketmq.cluster import GatewayCluster
from raft.messages import NodeId

_LOOK_S: Final = 10.0
_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_log: Final = structlog.get_logger(component="remoting")


class Remoting:
    """The gateway of one node."""

    def __init__(
        self,
        broker: Broker,
        calls: RemotingCalls,
        ask: AskRoute,
        context: ssl.SSLContext | None,
        is_connected: Callable[[NodeId], bool],
        *,
        node_address: str,
        addresses: tuple[str, ...],
        name_count: int,
    ) -> None:
        """`ask` asks other nodes for their addresses, `context` is for connections to them;
        `addresses` are those at which this node answers, one for each broker name or one for all.
        """
        self._calls = calls
        cluster = GatewayCluster(broker.context, broker.other_groups, is_connected)
        self.places: Final = Places(cluster, ask, name_count)
        self.places.learn(node_address, addresses)
        self.forwarder: Final = Forwarder(cluster, self.places, context)
        shared = Shared(broker.context, self.places, self.forwarder, node_address)
        self._sends = Sends(shared, broker)
        self._retries = RetryCalls(shared, broker)
        self._locks = LockCalls(shared)
        self.transactions: Final = TransactionCalls(shared, broker)
        self.groups: Final = GroupCalls(
            shared, self._on_consumer, self.transactions.watch, self._locks.release
        )
        self.transactions.clients = self.groups.clients
        self._replies = ReplyCalls(shared, self.groups.clients)
        self._messages = MessageCalls(shared, broker)
        self._offsets = OffsetCalls(shared, broker)
        self._pulls = Pulls(shared, broker, self.groups, self._offsets)
        self._routes = RouteCalls(shared, cluster, broker.context.identity.cluster_id)
        broker.add_leader_work(self.transactions)
        self._topics_under_way: dict[str, asyncio.Task[None]] = {}
        self._looker: asyncio.Task[None] | None = None

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request that is served."""
        at_leader, offsets = self._offsets.at_leader, self._offsets
        return {
            RequestCode.SEND_MESSAGE: self._sends.send,
            RequestCode.SEND_MESSAGE_V2: self._sends.send,
            RequestCode.SEND_BATCH_MESSAGE: self._sends.send,
            RequestCode.PULL_MESSAGE: self._pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: self._pulls.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: at_leader(offsets.fetch),
            RequestCode.UPDATE_CONSUMER_OFFSET: at_leader(offsets.commit),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: at_leader(offsets.by_time),
            RequestCode.GET_MAX_OFFSET: at_leader(offsets.max_offset),
            RequestCode.GET_MIN_OFFSET: at_leader(offsets.min_offset),
            RequestCode.GET_EARLIEST_MSG_STORETIME: at_leader(offsets.earliest_time),
            RequestCode.HEART_BEAT: self.groups.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.groups.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.groups.members,
            RequestCode.LOCK_BATCH_MQ: self._locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: self._locks.unlock,
            RequestCode.END_TRANSACTION: self.transactions.end_transaction,
            RequestCode.SEND_REPLY_MESSAGE: self._replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._replies.reply,
            RequestCode.VIEW_MESSAGE_BY_ID: self._messages.by_position,
            RequestCode.QUERY_MESSAGE: self._messages.by_key,
            RequestCode.CHECK_CLIENT_CONFIG: self.groups.check_config,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._retries.send_back,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._routes.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._routes.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._routes.topics,
        }

    def start(self) -> None:
        """Serve from now on."""
        self.places.start()
        self._looker = asyncio.create_task(self._look())
        self._calls.open(self.handlers(), self._begin, self._on_closed)

    async def stop(self) -> None:
        """Release everything that is held for clients."""
        self.groups.stop()
        self.transactions.end()
        tasks = [*self._topics_under_way.values(), self._looker]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(t for t in tasks if t is not None), return_exceptions=True)
        await self.forwarder.stop()
        await self.places.stop()

    def _begin(self, request: Request) -> "asyncio.Future[Answer] | None":
        return self._sends.begin(request) if request.command.code in _SENDS else None

    def _on_closed(self, connection: RemotingConnection) -> None:
        self.groups.clients.on_closed(connection)

    async def _look(self) -> None:
        """Take silent clients out, at intervals."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.groups.clients.expire()

    def _on_consumer(self, group: str) -> None:
        """Have the leader make the retry topic of a group, once at a time."""
        if group in self._topics_under_way:
            return
        task = asyncio.create_task(self._retry_topic(group))
        self._topics_under_way[group] = task
        task.add_done_callback(lambda _: self._topics_under_way.pop(group, None))

    async def _retry_topic(self, group: str) -> None:
        try:
            await self._retries.make_retry_topic(group)
        except Exception as error:  # noqa: BLE001 - the next heartbeat of the group tries again.
            _log.warning("a retry topic could not be made", group=group, reason=str(error))
