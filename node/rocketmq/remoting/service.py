"""The gateway of one node for RocketMQ's remoting protocol: the table of requests.

Owns which request is answered by which part, and when a node counts as cut off. Must not know
bytes.
"""

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from itertools import chain
from typing import Final, NamedTuple

import structlog

from node.broker import Broker
from node.config.settings import Settings
from node.errors.requests import NotServedError
from node.rocketmq.clients import GatewayClients
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.remoting.calls.changes import Changes
from node.rocketmq.remoting.calls.group_admin import GroupAdmin
from node.rocketmq.remoting.calls.groups import GroupCalls
from node.rocketmq.remoting.calls.locks import LockCalls
from node.rocketmq.remoting.calls.messages import MessageCalls
from node.rocketmq.remoting.calls.node_admin import SAMPLE_S, AskStatus, NodeAdmin
from node.rocketmq.remoting.calls.offsets import OffsetCalls
from node.rocketmq.remoting.calls.pops import PopCalls
from node.rocketmq.remoting.calls.pulls import Pulls
from node.rocketmq.remoting.calls.relays import RelayCalls
from node.rocketmq.remoting.calls.routes import RouteCalls
from node.rocketmq.remoting.calls.send import Sends
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.calls.topic_admin import TopicAdmin
from node.rocketmq.remoting.calls.transactions import Questions, TransactionCalls
from node.rocketmq.remoting.calls.unique_keys import UniqueKeys
from node.rocketmq.remoting.conversation import (
    Handler,
    RemotingCalls,
    RemotingConnection,
    Request,
    Served,
)
from node.rocketmq.remoting.forwarder import Forwarder
from node.rocketmq.remoting.places import AskRoute, Places
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import REFUSED, RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.marks import APPLIED, CHALLENGE, GREETING, PROOF, REPORT
from node.runtime.background import BackgroundTasks
from node.runtime.clock import unix_ms
from node.users.node_proofs import NodeProofs
from raft.messages import NodeId

ISOLATED_S: Final = 3.0
"""Time without a leader and without a majority after which connections are closed."""
CHALLENGE_SIZE_BYTES: Final = 16
LOOK_S: Final = 0.5
"""Interval of looks: time that a client which comes back loses at most."""
_log: Final = structlog.get_logger(component="remoting")


class OtherNodes(NamedTuple):
    """The ways of a node to the others."""

    ask: AskRoute
    """Asks them for their addresses."""
    context: ssl.SSLContext | None
    is_connected: Callable[[NodeId], bool]
    proofs: NodeProofs
    """Tells nodes from strangers."""
    questions: Questions
    """Returns those of a leader elsewhere to its producers."""


class Isolation:
    """Closes the connections of classic clients while this node is cut off from its group. One per
    gateway.

    Clients turn to another broker name when a connection ends, and wait 3 s for each call when it
    does not, until they read a route again (protocol section 16.3). An election takes less time
    than this waits, and a node that hears a majority goes on holding calls.
    """

    def __init__(
        self, cluster: GatewayCluster, calls: RemotingCalls, monotonic_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._calls = calls
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._has_logged = False
        self.closed_total = 0
        """Connections that were closed."""

    async def watch(self) -> None:
        """Look at intervals."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Close all connections if this node has been cut off for long enough."""
        if not self._cluster.is_cut_off():
            self._since_s, self._has_logged = None, False
            return
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < ISOLATED_S:
            return
        closed_count = self._calls.close_all()
        self.closed_total += closed_count
        if closed_count and not self._has_logged:
            self._has_logged = True
            text = "connections of classic clients are closed: neither a leader nor a majority"
            _log.warning(text, count=closed_count)


class Remoting:
    """The gateway of one node."""

    def __init__(
        self,
        broker: Broker,
        calls: RemotingCalls,
        nodes: OtherNodes,
        others: GatewayClients,
        status: AskStatus,
        *,
        addresses: tuple[str, ...],
        settings: Settings,
    ) -> None:
        """This node answers at `addresses`, one for each broker name or one for all; `others` are
        the members of the gRPC protocol, and `status` returns that of this node."""
        self._calls = calls
        self.accounts: Final = calls.accounts
        self._proofs = nodes.proofs
        identity = broker.context.identity
        node_address = identity.addresses[broker.context.driver.node_id]
        cluster = GatewayCluster(broker.context, broker.other_groups, nodes.is_connected)
        self.places: Final = Places(cluster, nodes.ask, identity.name_count)
        self.places.learn(node_address, addresses)
        self.isolation: Final = Isolation(cluster, calls, time.monotonic)
        self.forwarder: Final = Forwarder(cluster, self.places, nodes.context, nodes.proofs)
        shared = self._shared = Shared(
            broker, cluster, self.places, self.forwarder, node_address, settings
        )
        self._changes: Final = Changes(shared)
        self.locks: Final = LockCalls(shared)
        self.unique_keys: Final = UniqueKeys(broker.context, settings.rocketmq_unique_ms, unix_ms)
        self._sends = Sends(shared, self.locks, self.unique_keys)
        broker.add_leader_work(self.unique_keys)
        self.transactions: Final = TransactionCalls(shared, nodes.questions)
        self.groups: Final = GroupCalls(shared, self.transactions.watch, self.locks.release, others)
        self._messages = MessageCalls(shared)
        self._offsets = OffsetCalls(shared)
        self._node = NodeAdmin(shared, status)
        self._pulls = Pulls(shared, self._offsets, self.groups, self._node)
        self._routes = RouteCalls(shared)
        self._topics = TopicAdmin(shared, self._routes, self._node)
        self._group_admin = GroupAdmin(shared)
        self._pops = PopCalls(shared, self._routes, self._node)
        self._relays = RelayCalls(shared)
        broker.add_leader_work(self.transactions)
        self._tasks = BackgroundTasks("classic clients are not looked at any more")

    def handlers(self) -> dict[int, Served]:
        """Return how each request is served: about one message or queue; others, which wait for a
        turn, and whose bodies are documents; and those by which tools change something."""
        at_leader, offsets = self._shared.at_leader, self._offsets

        def change(run: Handler) -> Handler:
            return at_leader(self._changes.everywhere(run))

        send = Served(self._sends.send, self._sends.begin, has_document=False)
        light: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self._pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: self._pulls.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.fetch,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.commit,
            RequestCode.END_TRANSACTION: at_leader(self.transactions.end_transaction),
            RequestCode.SEND_REPLY_MESSAGE: self._relays.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._relays.reply,
            RequestCode.CONSUMER_SEND_MSG_BACK: at_leader(
                self._messages.send_back, is_repeatable=False
            ),
            RequestCode.POP_MESSAGE: at_leader(self._pops.pop),
            RequestCode.ACK_MESSAGE: at_leader(self._pops.ack),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: at_leader(self._pops.change_invisible),
        }
        heavy: dict[int, Handler] = {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: at_leader(offsets.by_time),
            RequestCode.GET_MAX_OFFSET: at_leader(offsets.end_of_queue),
            RequestCode.GET_MIN_OFFSET: at_leader(offsets.end_of_queue),
            RequestCode.GET_EARLIEST_MSG_STORETIME: at_leader(offsets.earliest_time),
            RequestCode.HEART_BEAT: self.groups.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.groups.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: at_leader(self.groups.members),
            RequestCode.LOCK_BATCH_MQ: at_leader(self.locks.lock),
            RequestCode.UNLOCK_BATCH_MQ: at_leader(self.locks.unlock),
            RequestCode.VIEW_MESSAGE_BY_ID: at_leader(self._messages.by_position),
            RequestCode.QUERY_MESSAGE: at_leader(self._messages.by_key),
            RequestCode.CHECK_CLIENT_CONFIG: self.groups.check_config,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._routes.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._routes.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._routes.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._routes.topics_of_cluster,
            RequestCode.GET_KV_CONFIG: at_leader(self._routes.value_of_key),
            RequestCode.GET_KVLIST_BY_NAMESPACE: at_leader(self._routes.values_of_namespace),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._topics.system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._topics.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._topics.none,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topics.none,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topics.none,
            RequestCode.GET_ALL_TOPIC_CONFIG: at_leader(self._topics.all),
            RequestCode.GET_TOPIC_CONFIG: at_leader(self._topics.describe),
            RequestCode.GET_TOPIC_STATS_INFO: at_leader(self._topics.stats),
            RequestCode.QUERY_CONSUME_QUEUE: at_leader(self._topics.queue_units),
            RequestCode.CLEAN_UNUSED_TOPIC: self._topics.clean,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._topics.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._topics.clean,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: at_leader(self._group_admin.all),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: at_leader(self._group_admin.describe),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._group_admin.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._group_admin.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._group_admin.all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._group_admin.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: at_leader(self._group_admin.topics_of_group),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._group_admin.subscription,
            RequestCode.GET_CONSUME_STATS: at_leader(self._group_admin.progress),
            RequestCode.GET_BROKER_CONSUME_STATS: at_leader(self._group_admin.all_progress),
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._relays.running_info,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._node.runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self._node.stats,
            RequestCode.GET_BROKER_HA_STATUS: self._node.ha_status,
            RequestCode.GET_BROKER_CONFIG: self._node.config,
            RequestCode.GET_NAMESRV_CONFIG: self._node.config,
            RequestCode.QUERY_ASSIGNMENT: self._pops.assignment,
        }
        administration: dict[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: change(self._routes.change_key),
            RequestCode.DELETE_KV_CONFIG: change(self._routes.change_key),
            RequestCode.UPDATE_AND_CREATE_TOPIC: change(self._topics.put),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: change(self._topics.put_all),
            RequestCode.DELETE_TOPIC_IN_BROKER: change(self._topics.delete),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._topics.forget,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: change(self._group_admin.put),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: change(self._group_admin.put_all),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: change(self._group_admin.delete),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: change(self._group_admin.reset),
            RequestCode.CLONE_GROUP_OFFSET: change(self._group_admin.clone),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._relays.consume,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: change(self._routes.change_permission),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: change(self._routes.change_permission),
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._pops.set_mode,
        }
        handlers = {
            RequestCode.SEND_MESSAGE: send,
            RequestCode.SEND_MESSAGE_V2: send,
            RequestCode.SEND_BATCH_MESSAGE: send,
            **{code: Served(run, has_document=False) for code, run in light.items()},
            **{code: Served(self._in_turn(run)) for code, run in heavy.items()},
            **{
                code: Served(self._in_turn(run), is_administration=True)
                for code, run in administration.items()
            },
            GREETING: Served(self._greet),
            REPORT: Served(self.groups.reports.take),
            APPLIED: Served(self._changes.take),
        }
        assert handlers.keys().isdisjoint(REFUSED), "a code is served and refused"
        return handlers | dict.fromkeys(REFUSED, Served(self._in_turn(_refuse)))

    async def start(self) -> None:
        """Serve from now on."""
        await self._shared.resolve()
        reports = self.groups.reports.run()
        for work in (self.places.watch(), self._look(), self.isolation.watch(), reports):
            self._tasks.run(work)
        self._calls.open(self.handlers(), self._on_closed)

    async def stop(self) -> None:
        """Release everything that is held for clients."""
        self.groups.stop()
        self.transactions.stop()
        self._tasks.cancel()
        await self.forwarder.stop()

    def _in_turn(self, handler: Handler) -> Handler:
        turn = self._shared.context.turn

        async def handle(request: Request) -> Answer:
            await turn.next()
            while not request.connection.connection.is_taken:
                await request.connection.connection.writable()
                await turn.next()
            return await handler(request)

        return handle

    async def _greet(self, request: Request) -> Answer:
        """Take a connection for one of a node, once it has answered the challenge. Raises
        RefusedError for a wrong answer."""
        connection, given = request.connection, request.command.ext.get(PROOF)
        challenge, connection.challenge = connection.challenge, b""
        if given is None:
            connection.challenge = secrets.token_bytes(CHALLENGE_SIZE_BYTES)
            return Answer(ext={CHALLENGE: connection.challenge.hex()})
        try:
            is_node = self._proofs.is_answer(bytes.fromhex(given), challenge)
        except ValueError:
            is_node = False
        if not is_node:
            text = "this does not answer the challenge of this connection; compare secret_file"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        connection.become_node()
        return Answer()

    def _on_closed(self, connection: RemotingConnection) -> None:
        account = connection.connection.account
        self._offsets.known.on_closed(connection)
        steps = chain(
            self.groups.clients.on_closed(connection),
            self.locks.on_closed(account),
            self.transactions.on_closed(account),
        )
        self._shared.context.turn.later(account.address.what, steps)

    async def _look(self) -> None:
        """Take silent clients out and samples of counters, at intervals, and look for a name that
        had no address."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.groups.clients.expire(self._shared.context.turn)
            self.locks.expire()
            self.transactions.look()
            await self.unique_keys.expire(self._shared.context.turn)
            await self._node.sample()
            await self._shared.resolve()


async def _refuse(request: Request) -> Answer:
    raise NotServedError(REFUSED[request.command.code])
