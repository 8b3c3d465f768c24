"""Topics for tools: made, changed, deleted, listed and described.

Owns the documents. Tools ask each broker name and put the answers together, so a name answers for
its own queues, and what they order arrives once for each name: a count of queues is per name, and
the topic gets as many for all names together. Tools also read a route, change a permission in it
and write all of it back, some with the counts of the first name for every name: so a count that the
route shows for any name leaves the queues of the topic as they are. So does a permission that the
route shows at this very name, which may take no messages; any other is the topic's.
"""

from typing import Any, Final

from node.rocketmq.remoting.calls.json_bodies import (
    data_version,
    json_answer,
    list_of,
    number_in,
    rows_of,
    table_of,
    text_in,
)
from node.rocketmq.remoting.calls.node_admin import NodeAdmin
from node.rocketmq.remoting.calls.routes import RouteCalls
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, QUEUE_ID_MAX, int_of, text_of
from node.state.state import PERMISSION_ALL, SYSTEM_TOPICS
from node.state.tables.topic_types import ATTRIBUTE, MIXED, TopicSettings
from node.users.calling import require
from node.users.rules import Action, ResourceKind
from quorumlog.pb.admin_pb2 import CreateTopicRequest, DeleteTopicRequest
from store.format import CONSUME_QUEUE_UNIT
from store.record.topic_names import is_of_group, is_reserved

_QUEUE_COUNT_MAX: Final = 65_536
_PERMISSION_MAX: Final = 7
"""Read, write, and the one by which RocketMQ takes a topic as a pattern for others."""
_UNIT_COUNT_MAX: Final = 1_024
_UNSPECIFIED: Final = "UNSPECIFIED"
_FIXED_ATTRIBUTES: Final = {"cleanup.policy": "DELETE", "queue.type": "SimpleCQ"}
"""Attributes of RocketMQ that have one value here."""


class TopicAdmin(Calls):
    """Answers the requests about topics. One per gateway."""

    def __init__(self, shared: Shared, routes: RouteCalls, node: NodeAdmin) -> None:
        super().__init__(shared)
        self._routes, self._node = routes, node

    async def put(self, request: Request) -> Answer:
        """Make a topic, or change it."""
        ext = request.command.ext
        count = max(
            int_of(ext, "readQueueNums", hi=_QUEUE_COUNT_MAX),
            int_of(ext, "writeQueueNums", hi=_QUEUE_COUNT_MAX),
        )
        permission = int_of(ext, "perm", PERMISSION_ALL, hi=INT32_MAX)
        pairs = (part.partition("=") for part in ext.get("attributes", "").split(",") if part)
        message_type = _type_in({name.strip(): value.strip() for name, _, value in pairs})
        return await self._put(request, text_of(ext, "topic"), count, permission, message_type)

    async def put_all(self, request: Request) -> Answer:
        """Make or change the topics of a list, in order."""
        rows = rows_of(list_of(request.command.body), "topicConfigList")
        for row in rows:
            for action in (Action.CREATE, Action.UPDATE):
                require(action, ResourceKind.TOPIC, text_in(row, "topicName"))
        for row in rows:
            count = max(
                number_in(row, "readQueueNums", _QUEUE_COUNT_MAX),
                number_in(row, "writeQueueNums", _QUEUE_COUNT_MAX),
            )
            attributes = row.get("attributes")
            message_type = _type_in(attributes if type(attributes) is dict else {})
            permission = number_in(row, "perm", _QUEUE_COUNT_MAX, PERMISSION_ALL)
            await self._put(request, text_in(row, "topicName"), count, permission, message_type)
        return Answer()

    async def _put(
        self, request: Request, topic: str, count: int, permission: int, message_type: str
    ) -> Answer:
        name = self._names.all[self._shared.number_of(request)]
        existing = self._context.state.topics.get(topic)
        if existing is not None and permission == self._routes.shown_permission(
            name, existing.permission
        ):
            permission = existing.permission
        if not permission & PERMISSION_ALL or permission > _PERMISSION_MAX:
            raise InvalidError(f"perm is {permission}; it is 2 (write), 4 (read) or 6")
        is_kept = existing is not None and max(1, count) in self._routes.shown_counts(topic)
        create = CreateTopicRequest(
            topic=topic,
            queue_count=0 if is_kept else count * self._names.count,  # 0: those that there are.
            permission=permission & PERMISSION_ALL,
            message_type=message_type,
        )
        await self._broker.topics.create_topic(create)
        return Answer()

    async def delete(self, request: Request) -> Answer:
        """Delete a topic; the first request does it for all broker names."""
        topic = text_of(request.command.ext, "topic")
        if (is_reserved(topic) and not is_of_group(topic)) or topic in SYSTEM_TOPICS:
            raise InvalidError(f"topic {topic[:200]!r} belongs to the system, and is not deleted")
        if topic in self._context.state.topics:
            await self._broker.topics.delete_topic(DeleteTopicRequest(topic=topic))
        return Answer()

    async def forget(self, request: Request) -> Answer:
        """Answer that a route is forgotten: it goes with its topic."""
        text_of(request.command.ext, "topic")
        return Answer()

    async def describe(self, request: Request) -> Answer:
        """Return the settings of a topic, with the queues of one broker name."""
        name = text_of(request.command.ext, "topic")
        described = self._shared.topic(name)
        number = self._shared.number_of(request)
        return json_answer(**self._row(name, described, number))

    async def all(self, request: Request) -> Answer:
        """Return the settings of all topics, with the queues of one broker name."""
        number, topics = self._shared.number_of(request), dict(self._context.state.topics)
        names = await self._shared.shown(ResourceKind.TOPIC, sorted(topics))
        encoded = await self._shared.encoded(
            request, names, lambda name: self._row(name, topics[name], number)
        )
        rows = dict(zip(names, encoded, strict=True))
        return json_answer(dataVersion=data_version(), topicConfigTable=rows)

    def _row(self, name: str, settings: TopicSettings, number: int) -> dict[str, Any]:
        count = self._names.queue_count(number, settings.queue_count)
        attributes = {} if settings.message_type == MIXED else {ATTRIBUTE: settings.message_type}
        return {
            "topicName": name,
            "readQueueNums": count,
            "writeQueueNums": max(1, count),
            "perm": settings.permission,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            "attributes": attributes,
        }

    async def system_topics(self, request: Request) -> Answer:
        """Return the names that belong to the cluster and not to its users."""
        own = {*self._routes.own_topics(), *SYSTEM_TOPICS}
        number = self._shared.number_of(request)
        address = self._shared.own_addresses[number]
        return json_answer(topicList=sorted(own), brokerAddr=address)

    async def none(self, _request: Request) -> Answer:
        """Return an empty list: there are no units here."""
        return json_answer(topicList=[])

    async def stats(self, request: Request) -> Answer:
        """Return where the queues of one broker name begin and end, and when they last grew."""
        number, topic = self._shared.number_of(request), text_of(request.command.ext, "topic")
        self._context.check_leads()
        queues = list(self._shared.queues_of(topic, number))
        pieces = await self._shared.pieces(
            request,
            queues,
            lambda row: self._shared.by_queue(topic, number, row[0], self._range(topic, row[1])),
        )
        per_s = self._node.put_per_s(request, topic)
        return json_answer(offsetTable=table_of(pieces), topicPutTps=per_s)

    async def queue_units(self, request: Request) -> Answer:
        """Return units of a queue: where each message is in the log, its size, and the hash of its
        tag; with what a group reads of the topic, as far as its members are connected here."""
        number, ext = self._shared.number_of(request), request.command.ext
        topic, shown = text_of(ext, "topic"), int_of(ext, "queueId", hi=QUEUE_ID_MAX)
        index, group = int_of(ext, "index"), text_of(ext, "consumerGroup", "")
        count = int_of(ext, "count", lo=1, hi=_UNIT_COUNT_MAX)
        if (shown, self._names.queue(number, shown)) not in self._shared.queues_of(topic, number):
            text = f"{self._names.all[number]} has no queue {shown} of {topic!r}; see topicRoute"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        self._context.check_leads()
        store, queue = self._context.store, self._names.queue(number, shown)
        lo, hi = store.queue_range(topic, queue)
        first = min(max(index, lo), hi)
        data = store.units(topic, queue, first, min(first + count, hi)) if first < hi else b""
        units = await self._shared.encoded(request, CONSUME_QUEUE_UNIT.iter_unpack(data), _unit)
        document: dict[str, Any] = {"minQueueIndex": lo, "maxQueueIndex": hi, "queueData": units}
        if group:
            read = self._shared.clients.newest(group).get(topic)
            document["filterData"] = "null" if read else f"{group}@{topic} is not online!"
            document["subscriptionData"] = read[0].document(read[1]) if read else None
        return json_answer(**document)

    async def clean(self, _request: Request) -> Answer:
        """Answer that nothing is left over: queues go with their topic, files when they expire."""
        return Answer()

    def _range(self, topic: str, queue: int) -> dict[str, int]:
        lo, hi = self._context.store.queue_range(topic, queue)
        last_ms = self._context.stored_ms(topic, queue, hi - 1) or 0
        return {"lastUpdateTimestamp": last_ms, "maxOffset": hi, "minOffset": lo}


def _unit(row: tuple[int, int, int]) -> dict[str, Any]:
    return {"physicOffset": row[0], "physicSize": row[1], "tagsCode": row[2], "eval": False}


def _type_in(attributes: dict[str, Any]) -> str:
    """Return the type in attributes as `+message.type`; empty: they have none. Raises RefusedError
    for attributes that topics do not have here."""
    values = {name.removeprefix("+"): value for name, value in attributes.items()}
    message_type = values.pop(ATTRIBUTE, MIXED if f"-{ATTRIBUTE}" in values else "")
    for name, value in values.items():
        if not name.startswith("-") and _FIXED_ATTRIBUTES.get(name) != value:
            text = f"topics here have no attribute {name[:100]}={str(value)[:100]}; leave it out"
            raise InvalidError(text)
    return MIXED if message_type == _UNSPECIFIED else str(message_type)
