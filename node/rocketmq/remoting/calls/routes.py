"""The requests to a name server of RocketMQ: routes, and its key-value configuration.

Owns the documents. Routes are answered from this node's memory, and by the leader for a topic that
this node does not know; keys and their values are in the replicated state, read and changed on the
leader. Each broker name has the broker id 0 and one address; what each name owns of a topic is its
share of every group's queues. Source: protocol sections 5 and 16.3.
"""

import re
from typing import Any, Final

from node.rocketmq.cluster import Share
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.remoting.calls.json_bodies import json_answer
from node.rocketmq.remoting.calls.send import AUTO_QUEUE_COUNT_MAX
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.places import NamedPlace
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import VALUE_LENGTH_MAX, bool_of, text_of
from node.runtime.json_text import dump_json
from node.state.state import PERMISSION_ALL, PERMISSION_WRITE
from node.state.tables.key_values import KeyValuesTable
from node.state.tables.topic_types import MIXED
from node.users.rules import ResourceKind
from quorumlog.pb.state_pb2 import Command
from store.record.topic_names import retry_topic

AUTO_TOPIC: Final = "TBW102"
"""The topic whose route a producer takes for a topic that does not exist yet."""
_INHERIT: Final = 1
"""Permission to make topics like this one."""
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""With the name of the cluster before it: the topic to which consumers send their replies."""
_CLOSED: Final = "CLOSED_BROKER_NAMES"
"""Namespace of the keys by which all nodes know the broker names that take no messages."""
_ADDRESSES: Final = re.compile(rb'"brokerAddrs":\{[^}]*\}')
_NUMBER: Final = re.compile(rb'"(\d+)":')
STANDARD_JSON_VERSION: Final = 401
"""Clients from this version on read standard JSON; older ones want numbers as keys."""


class RouteCalls(Calls):
    """Answers the requests of a name server. One per gateway."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._cluster = shared.cluster
        self._cluster_name = shared.context.identity.cluster_id

    async def route(self, request: Request) -> Answer:
        """Return the route of a topic."""
        try:
            return await self._route(request)
        except RefusedError:
            if self._cluster.leads_here():
                raise
        return await self._shared.ask_leader(request, self._route)  # This replica may lag.

    async def _route(self, request: Request) -> Answer:
        command = request.command
        topic = text_of(command.ext, "topic")
        places = self.places(topic)
        if not places:
            text = "no node of the group has told its address yet; try again"
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, text)
        brokers = [self._broker_of(place) for _, place in places]
        queues = [self._queues(share, place) for share, place in places]
        body = dump_json({"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues})
        is_standard = command.version >= STANDARD_JSON_VERSION
        if not is_standard and not bool_of(command.ext, "acceptStandardJsonOnly"):
            body = _ADDRESSES.sub(lambda row: _NUMBER.sub(rb"\1:", row[0]), body)
        return Answer(body=body)

    def places(self, topic: str) -> list[tuple[Share, NamedPlace]]:
        """Return the broker names of each group that has queues of a topic. Raises RefusedError."""
        try:
            shares = self._shares(topic)
        except CallRefusedError as error:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, error.message) from None
        brokers = self._shared.places.brokers
        places_of_shares = [
            (share, place) for share in shares for place in brokers(share.group, share.places)
        ]
        return [row for row in places_of_shares if row[1].name == topic] or places_of_shares

    def _shares(self, topic: str) -> list[Share]:
        count, permission = self._names.count, PERMISSION_ALL
        owner = self._shared.places.group_of(topic)
        if owner is not None:  # Tools send to it, to try that broker.
            return [Share(owner, count, permission, MIXED, self._cluster.groups()[owner])]
        if topic == AUTO_TOPIC and self._shared.settings.rocketmq_auto_topics:
            count, permission = count * AUTO_QUEUE_COUNT_MAX, PERMISSION_ALL | _INHERIT
        elif self._shared.is_unmade(topic):
            count = 1
        elif topic != f"{self._cluster_name}{REPLY_SUFFIX}":  # Never stored: any node passes them.
            return self._cluster.shares(topic)
        return [
            Share(group, count, permission, MIXED, nodes)
            for group, nodes in self._cluster.groups().items()
        ]

    def _broker_of(self, place: NamedPlace) -> dict[str, Any]:
        return {
            "brokerAddrs": {"0": place.address},
            "brokerName": place.name,
            "cluster": self._cluster_name,
            "enableActingMaster": False,
        }

    def _queues(self, share: Share, place: NamedPlace) -> dict[str, Any]:
        names = self._shared.places.names_of(share.group)
        own_count = names.queue_count(place.number, share.queue_count)
        return {
            "brokerName": place.name,
            "perm": self.shown_permission(place.name, share.permission),
            "readQueueNums": own_count,
            "topicSysFlag": 0,
            # A name without a queue of its own takes messages for the queues of others.
            "writeQueueNums": max(1, own_count),
        }

    def shown_permission(self, name: str, permission: int) -> int:
        """Return the permission that a route shows at a broker name of a topic with this one."""
        is_closed = self._context.state.table(KeyValuesTable).has(_CLOSED, name)
        return permission & ~PERMISSION_WRITE if is_closed else permission

    def shown_counts(self, topic: str) -> set[int]:
        """Return the counts of queues that a route shows of a topic, over all broker names."""
        return {self._queues(*row)["writeQueueNums"] for row in self.places(topic)}

    async def cluster_info(self, request: Request) -> Answer:
        """Return all broker names with their addresses."""
        table = {
            place.name: self._broker_of(place)
            for group, nodes in self._cluster.groups().items()
            for place in self._shared.places.brokers(group, nodes)
        }
        clusters = {self._cluster_name: list(table)}
        return json_answer(brokerAddrTable=table, clusterAddrTable=clusters)

    def own_topics(self) -> set[str]:
        """Return the names that tools treat as topics, and that are the cluster's."""
        names = {
            name
            for group in self._cluster.groups()
            for name in self._shared.places.names_of(group).all
        }
        return {self._cluster_name, *names}

    async def topics(self, _request: Request) -> Answer:
        """Return the names of all topics."""
        return json_answer(topicList=await self._topic_names())

    async def _topic_names(self) -> list[str]:
        """Return the topics of the cluster, and the retry topic of each group that has offsets, or
        members here: tools find groups by it, made or not."""
        groups = {*self._context.state.groups, *self._shared.clients.consumers}
        names = sorted({*self._cluster.topic_names(), *map(retry_topic, groups)})
        return await self._shared.shown(ResourceKind.TOPIC, names)

    async def topics_of_cluster(self, request: Request) -> Answer:
        """Return the names of the topics of a cluster: none unless it is this one."""
        is_own = request.command.ext.get("cluster", self._cluster_name) == self._cluster_name
        return json_answer(topicList=await self._topic_names() if is_own else [])

    # --- Broker names that take no messages, because a person said so ---

    async def change_permission(self, request: Request) -> Answer:
        """Have routes say that a broker name takes no messages, or takes them again."""
        is_wiped = request.command.code == RequestCode.WIPE_WRITE_PERM_OF_BROKER
        name = text_of(request.command.ext, "brokerName")
        if self._shared.places.group_of(name) is None:
            text = f"no broker is named {name[:200]!r}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        put = Command.PutKeyValue(namespace=_CLOSED, key=name)
        if is_wiped:
            put.value = "takes no messages"
        await self._broker.own_appends.submit(Command(put_key_value=put))
        field = "wipeTopicCount" if is_wiped else "addTopicCount"
        return Answer(ext={field: str(len(self._context.state.topics))})

    # --- Keys and values ---

    async def change_key(self, request: Request) -> Answer:
        """Put or delete a key."""
        ext = request.command.ext
        put = Command.PutKeyValue(namespace=text_of(ext, "namespace"), key=text_of(ext, "key"))
        if request.command.code == RequestCode.PUT_KV_CONFIG:
            put.value = text_of(ext, "value", length_max=VALUE_LENGTH_MAX)
        await self._broker.own_appends.submit(Command(put_key_value=put))
        return Answer()

    async def value_of_key(self, request: Request) -> Answer:
        """Return the value of a key."""
        ext = request.command.ext
        namespace, key = text_of(ext, "namespace"), text_of(ext, "key")
        value = self._values(namespace).get(key)
        if value is None:
            text = f"No config item, Namespace: {namespace} Key: {key}"
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, text)
        return Answer(ext={"value": value})

    async def values_of_namespace(self, request: Request) -> Answer:
        """Return all values of a namespace."""
        namespace = text_of(request.command.ext, "namespace")
        values = self._values(namespace)
        if not values:
            text = f"No config item, Namespace: {namespace}"
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, text)
        return json_answer(table=values)

    def _values(self, namespace: str) -> dict[str, str]:
        self._context.check_leads()
        return self._context.state.table(KeyValuesTable).values(namespace)
