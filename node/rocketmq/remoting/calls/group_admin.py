"""Consumer groups for tools: settings, progress, members, and offsets that are moved.

Owns the documents. Progress and offsets are those of one broker name's queues, everything else is
the group's.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from orjson import Fragment

from node.broker.groups.settings import settings_of
from node.errors.common import UnknownQueueError
from node.rocketmq.remoting.calls.json_bodies import (
    data_version,
    document_of,
    json_answer,
    list_of,
    number_in,
    rows_of,
    table_of,
    text_in,
)
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.clients import Member
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT64_MAX, bool_of, int_of, text_of
from node.runtime.json_text import dump_json
from node.state.checkpoint_tables import group_row
from node.state.retry_policy import retry_delays_of
from node.state.state import INTERNAL_TOPICS
from node.state.tables.group_settings import SubscriptionSettings, to_json, to_pb
from node.state.tables.topic_types import Offsets
from node.users.calling import may, require
from node.users.rules import Action, ResourceKind
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import DeleteGroupRequest
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, GroupOffset
from quorumlog.pb.retry_pb2 import SetGroupSettingsRequest

_STATS: Final = b'{"consumeTps":0.0,"offsetTable":{'
"""How the progress of a group in a topic begins, in that of all groups."""
RETRY_COUNT_MAX: Final = 1_000_000


class _QueueRow(NamedTuple):
    group: str
    topic: str
    shown: int
    queue: int
    stored: Offsets
    """All offsets of the group."""


class GroupAdmin(Calls):
    """Answers the requests about groups. One per gateway."""

    # --- Settings ---

    async def put(self, request: Request) -> Answer:
        """Make a group, or change its settings."""
        return await self._put_rows([document_of(request.command.body)])

    async def put_all(self, request: Request) -> Answer:
        """Make or change the groups of a list."""
        return await self._put_rows(rows_of(list_of(request.command.body), "groupConfigList"))

    async def _put_rows(self, rows: list[dict[str, Any]]) -> Answer:
        for row in rows:
            require(Action.UPDATE, ResourceKind.GROUP, text_in(row, "groupName"))
        for row in rows:
            name, settings = text_in(row, "groupName"), _settings_in(row)
            put = SetGroupSettingsRequest(group=name, settings=settings)
            await self._broker.group_settings.set_group_settings(put)
        return Answer()

    async def delete(self, request: Request) -> Answer:
        """Forget the settings of a group, and itself with its offsets if these are to go, too; one
        that does not exist is gone already."""
        ext = request.command.ext
        group = text_of(ext, "groupName")
        if group in self._context.state.groups:
            if bool_of(ext, "cleanOffset"):
                await self._broker.groups.delete_group(DeleteGroupRequest(group=group))
            else:
                put = SetGroupSettingsRequest(group=group, settings=to_pb(SubscriptionSettings()))
                await self._broker.group_settings.set_group_settings(put)
        return Answer()

    async def describe(self, request: Request) -> Answer:
        """Return the settings of a group."""
        group = text_of(request.command.ext, "group")
        self._check_group(group)
        return json_answer(**self._row(group))

    def _check_group(self, group: str) -> None:
        """Raise RefusedError for a group that has neither offsets nor settings nor members."""
        members, now_ms = self._broker.group_members, self._context.clock_ms()
        registers = self._context.state.groups, self._shared.clients.consumers
        if not any(group in table for table in registers) and not members.clients_of(group, now_ms):
            text = (
                f"there is no group {group[:200]!r}; check the name, or make it with "
                f"updateSubGroup or 'qlog group set'"
            )
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)

    async def all(self, request: Request) -> Answer:
        """Return the settings of all groups."""
        known = sorted({*self._context.state.groups, *self._shared.clients.consumers})
        names = await self._shared.shown(ResourceKind.GROUP, known)
        rows = await self._shared.encoded(request, names, self._row)
        return json_answer(
            subscriptionGroupTable=dict(zip(names, rows, strict=True)),
            forbiddenTable={},
            dataVersion=data_version(),
        )

    def _row(self, group: str) -> dict[str, Any]:
        return group_row(group, to_json(settings_of(self._context, group)))

    # --- Members ---

    async def consumers(self, request: Request) -> Answer:
        """Return the consumers of a group that are connected to this node."""
        group = text_of(request.command.ext, "consumerGroup")
        members = self._shared.clients.members((True, group))
        if not members:
            text = f"the consumer group[{group[:200]}] not online"
            raise RefusedError(ResponseCode.CONSUMER_NOT_ONLINE, text)
        connections = await self._shared.encoded(request, members.values(), _connection)
        subscriptions = self._shared.clients.newest(group)
        newest = next(reversed(members.values())).consumption
        rows = await self._shared.encoded(
            request, subscriptions.values(), lambda row: row[0].document(row[1])
        )
        return json_answer(
            connectionSet=connections,
            consumeFromWhere=newest.consume_from,
            consumeType=newest.consume_type,
            messageModel=newest.message_model,
            subscriptionTable=dict(zip(subscriptions, rows, strict=True)),
        )

    async def producers(self, request: Request) -> Answer:
        """Return the producers of a group that are connected to this node."""
        group = text_of(request.command.ext, "producerGroup")
        members = self._shared.clients.members((False, group))
        if not members:
            text = f"the producer group[{group[:200]}] not exist"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        connections = await self._shared.encoded(request, members.values(), _connection)
        return json_answer(connectionSet=connections)

    async def all_producers(self, request: Request) -> Answer:
        """Return all producers that are connected to this node, by group."""
        producers = self._shared.clients.producers
        rows = [
            (group, member)
            for group in await self._shared.shown(ResourceKind.GROUP, producers)
            if group in producers
            for member in producers[group].connected()
        ]
        encoded = await self._shared.encoded(request, rows, lambda row: _producer(row[1]))
        data: dict[str, list[Fragment]] = {}
        for (group, _), one in zip(rows, encoded, strict=True):
            data.setdefault(group, []).append(one)
        return json_answer(data=data)

    async def groups_of_topic(self, request: Request) -> Answer:
        """Return the groups that read a topic, or did."""
        topic = text_of(request.command.ext, "topic")
        turn, consumers = self._context.turn, [*self._shared.clients.consumers.items()]
        online = {group async for group, one in turn.over(consumers) if one.readers(topic)}
        stored = (g for g, table in self._context.state.groups.items() if topic in table)
        groups = await self._shared.shown(ResourceKind.GROUP, sorted(online.union(stored)))
        return json_answer(groupList=groups)

    async def topics_of_group(self, request: Request) -> Answer:
        """Return the topics of which a group has offsets."""
        stored = self._context.state.groups.get(text_of(request.command.ext, "group"), {})
        address = self._shared.own_addresses[self._shared.number_of(request)]
        topics = await self._shared.shown(ResourceKind.TOPIC, sorted(stored))
        return json_answer(brokerAddr=address, topicList=topics)

    async def subscription(self, request: Request) -> Answer:
        """Return what a group subscribes to of a topic."""
        ext = request.command.ext
        group, topic = text_of(ext, "group"), ext.get("topic", "")
        newest = self._shared.clients.newest(group).get(topic)
        document: dict[str, Any] = {"group": group, "topic": topic}
        if newest is not None:
            document |= {"subscriptionData": newest[0].document(newest[1])}
        return json_answer(**document)

    # --- Progress ---

    async def progress(self, request: Request) -> Answer:
        """Return how far a group is in the queues of one broker name."""
        number, ext = self._shared.number_of(request), request.command.ext
        self._context.check_leads()
        rows = self._rows([text_of(ext, "consumerGroup")], ext.get("topic", ""), number)

        def entry(row: _QueueRow) -> bytes:
            return self._shared.by_queue(row.topic, number, row.shown, self._queue_progress(row))

        table = table_of(await self._shared.pieces(request, rows, entry))
        return json_answer(consumeTps=0.0, offsetTable=table)

    def _rows(self, groups: list[str], topic: str, number: int) -> Iterator[_QueueRow]:
        """Yield the queues of a broker name that groups read, of one topic; empty: of all."""
        state = self._context.state
        for group in groups:
            stored = state.groups.get(group, {})
            for name in self._topics(group, stored, topic):
                if state.topic(name) is None or not may(Action.GET, ResourceKind.TOPIC, name):
                    continue  # Deleted meanwhile, or not for the caller.
                for shown, queue in self._shared.queues_of(name, number):
                    yield _QueueRow(group, name, shown, queue, stored)

    async def all_progress(self, request: Request) -> Answer:
        """Return how far all groups are in the queues of one broker name."""
        number = self._shared.number_of(request)
        self._context.check_leads()
        is_order = bool_of(request.command.ext, "isOrder")  # No topic here is set as ordered.
        known = [] if is_order else sorted(self._context.state.groups)
        groups = await self._shared.shown(ResourceKind.GROUP, known)
        diff, at = 0, ("", "")

        def entry(row: _QueueRow) -> bytes:
            nonlocal at, diff
            progress = self._queue_progress(row)
            diff += progress["brokerOffset"] - progress["consumerOffset"]
            before, at = at, (row.group, row.topic)
            if before == at:
                start = b","
            elif before[0] == row.group:
                start = b"}},%b" % _STATS
            else:
                end = b"}}]}," if before[0] else b""
                start = b"%b{%b:[%b" % (end, dump_json(row.group), _STATS)
            return start + self._shared.by_queue(row.topic, number, row.shown, progress)

        made = await self._shared.pieces(request, self._rows(groups, "", number), entry)
        return json_answer(
            brokerAddr=self._shared.own_addresses[number],
            consumeStatsList=Fragment(b"[%b%b]" % (b"".join(made), b"}}]}" if made else b"")),
            totalDiff=diff,
            totalInflightDiff=0,
        )

    def _topics(self, group: str, stored: Offsets, only: str) -> list[str]:
        topics = {only} if only else {*stored, *self._shared.clients.newest(group)}
        state = self._context.state
        return sorted(topic for topic in topics - INTERNAL_TOPICS if state.topic(topic) is not None)

    def _queue_progress(self, row: _QueueRow) -> dict[str, int]:
        lo, hi = self._context.store.queue_range(row.topic, row.queue)
        offset = row.stored.get(row.topic, {}).get(row.queue, lo)
        return {
            "brokerOffset": hi,
            "consumerOffset": offset,
            "pullOffset": offset,
            "lastTimestamp": self._context.stored_ms(row.topic, row.queue, offset - 1) or 0,
        }

    # --- Offsets that are moved ---

    async def reset(self, request: Request) -> Answer:
        """Move a group in the queues of one broker name, to a time or to an offset. Making the
        group would hide that its name is mistyped."""
        ext, number = request.command.ext, self._shared.number_of(request)
        topic, group = text_of(ext, "topic"), text_of(ext, "group")
        queues = [*self._shared.queues_of(topic, number)]
        self._check_group(group)
        only, to_offset = int_of(ext, "queueId", -1, lo=-1), int_of(ext, "offset", -1, lo=-1)
        if only >= len(queues):
            raise UnknownQueueError(topic, only, len(queues))
        unix_ms = int_of(ext, "timestamp", lo=-INT64_MAX)
        speaking = self._broker.group_members.speaking(group, self._context.clock_ms())
        if speaking:
            text = (
                f"group {group[:200]!r} has members of QuorumLog's own clients, {speaking[0]!r} "
                f"among them, which hear of it with a heartbeat; stop them first, then run 'qlog "
                f"group reset'"
            )
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        only_back = ext.get("isForce", "").lower() == "false"
        stored = self._context.state.groups.get(group, {}).get(topic, {})
        entries, rows = [], []
        turn = self._context.turn
        async for shown, queue in turn.over(queues):
            if only in (-1, shown):
                offset = to_offset if to_offset >= 0 else await self._at(topic, queue, unix_ms)
                if to_offset < 0 and only_back:
                    offset = min(offset, stored.get(queue, offset))
                entries.append(self._shared.by_queue(topic, number, shown, offset))
                rows.append(GroupOffset(topic=topic, queue_id=queue, offset=offset))
        if rows:
            await self._broker.groups.commit_offsets(
                CommitOffsetsRequest(group=group, offsets=rows)
            )
        return json_answer(offsetTable=table_of(entries))

    async def clone(self, request: Request) -> Answer:
        """Have a group without members begin where another is, in the queues of one broker name:
        of a topic, or of all topics that both may read. Raises UnknownGroupError."""
        ext, number = request.command.ext, self._shared.number_of(request)
        source, group = text_of(ext, "srcGroup"), text_of(ext, "destGroup")
        only = text_of(ext, "topic", "").strip()
        stored = self._context.state.groups.get(source)
        if not stored or (only and only not in stored):
            of_topic = f" of topic {only!r}" if only else ""
            text = f"group {source[:200]!r} has no offsets{of_topic} to copy; see consumerProgress"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        rows = []
        async for topic in self._context.turn.over(self._topics(source, stored, only)):
            for queue, offset in stored.get(topic, {}).items():
                if self._names.shown(queue)[0] == number:
                    rows.append(GroupOffset(topic=topic, queue_id=queue, offset=offset))
        limit = self._context.limits.queue_offsets_count_max
        for at in range(0, len(rows), limit):
            put = CommitOffsetsRequest(
                group=group, offsets=rows[at : at + limit], must_be_empty=True
            )
            await self._broker.groups.commit_offsets(put)
        return Answer()

    async def _at(self, topic: str, queue: int, unix_ms: int) -> int:
        """Return the first offset at a time or later; the end for a negative time."""
        lo, hi = self._context.store.queue_range(topic, queue)
        if unix_ms < 0 or lo == hi:
            return hi
        return await self._offset_at(topic, queue, unix_ms)


def _connection(member: Member) -> dict[str, Any]:
    return {
        "clientId": member.client_id,
        "clientAddr": member.connection.remote,
        "language": member.language,
        "version": member.version,
    }


def _producer(member: Member) -> dict[str, Any]:
    return {
        "clientId": member.client_id,
        "remoteIP": f"/{member.connection.remote}",
        "language": member.language,
        "version": member.version,
        "lastUpdateTimestamp": member.last_seen_unix_ms,
    }


def _settings_in(row: dict[str, Any]) -> common_pb2.GroupSettings:
    settings = common_pb2.GroupSettings()
    for name, field in (
        ("consumeEnable", "is_consume_enabled"),
        ("consumeBroadcastEnable", "is_broadcast_enabled"),
        ("consumeMessageOrderly", "is_orderly"),
    ):
        switch = row.get(name)
        if switch is None:
            continue
        if type(switch) is not bool:
            raise InvalidError(f"{name} is {str(switch)[:40]}; it is true or false")
        setattr(settings, field, switch)
    if row.get("retryMaxTimes") is not None:
        settings.retry_count_max = number_in(row, "retryMaxTimes", RETRY_COUNT_MAX)
    try:
        delays = retry_delays_of(row.get("groupRetryPolicy"))
    except ValueError as error:
        raise InvalidError(str(error)) from None
    if delays is not None:
        settings.retry_delays.delay_ms.extend(delays)
    return settings
