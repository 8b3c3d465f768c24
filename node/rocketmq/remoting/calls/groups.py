"""Members of groups: heartbeats, departures, and who shares a group's queues.

Owns how heartbeats are read. Every node registers the clients that reach it; the list of a group's
members is the leader's, so that all members share out the queues by the same list.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from node.rocketmq.remoting.calls.json_bodies import (
    document_of,
    json_body,
    list_of,
    rows_of,
    text_in,
)
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.clients import (
    CLIENT_ID_LENGTH_MAX,
    GROUPS_OF_CLIENT_MAX,
    TOPICS_OF_GROUP_MAX,
    Clients,
    ConsumerGroup,
    Member,
    Subscription,
)
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import text_of
from node.runtime.clock import unix_ms

TOLD_AFTER_S: Final = 0.05
"""Members of a group are told of its changes so much later: many come and go at once."""
_SQL: Final = "SQL92"


class GroupCalls:
    """Answers the requests about members. One per gateway."""

    def __init__(
        self,
        shared: Shared,
        on_consumer: Callable[[str], None],
        on_producer: Callable[[str], None],
        on_left: Callable[[str, str], None],
    ) -> None:
        """`on_consumer` and `on_producer` are called with each group of a heartbeat, `on_left` with
        group and client id of a consumer that left."""
        self._shared = shared
        self._on_consumer, self._on_producer = on_consumer, on_producer
        self.clients: Final = Clients(self._on_changed, on_left)
        self._to_tell: dict[str, asyncio.TimerHandle] = {}

    async def heartbeat(self, request: Request) -> Answer:
        """Register a client in all groups that it names."""
        command = request.command
        document = list_of(command.body)
        client_id = text_in(document, "clientID")
        if not 1 <= len(client_id) <= CLIENT_ID_LENGTH_MAX:
            text = f"clientID must have 1 to {CLIENT_ID_LENGTH_MAX} characters"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        member = Member(
            client_id,
            request.connection,
            command.language,
            command.version,
            time.monotonic(),
            unix_ms(),
        )
        for row in rows_of(document, "producerDataSet", GROUPS_OF_CLIENT_MAX):
            group = self._group(text_in(row, "groupName"))
            self.clients.put_producer(group, member)
            self._on_producer(group)
        consumers = rows_of(document, "consumerDataSet", GROUPS_OF_CLIENT_MAX)
        async for row in self._shared.context.turn.over(consumers):
            group = self._group(text_in(row, "groupName"))
            told = ConsumerGroup(
                text_in(row, "consumeType"),
                text_in(row, "messageModel"),
                text_in(row, "consumeFromWhere"),
            )
            subscriptions = rows_of(row, "subscriptionDataSet", TOPICS_OF_GROUP_MAX)
            topics = {one.topic: one for one in map(_subscription, subscriptions)}
            self.clients.put_consumer(group, member, told, topics)
            self._on_consumer(group)
        return Answer()

    async def unregister(self, request: Request) -> Answer:
        """Take a client out of one group."""
        ext = request.command.ext
        client_id = text_of(ext, "clientID")
        for is_consumer, field in ((False, "producerGroup"), (True, "consumerGroup")):
            group = ext.get(field)
            if group:
                self.clients.remove(is_consumer, group, client_id)
        return Answer()

    async def members(self, request: Request) -> Answer:
        """Return the members of a consumer group, as the leader knows them."""
        return await self._shared.forwarder.answer(
            request, 0, lambda: self._members(request), is_repeatable=True
        )

    async def _members(self, request: Request) -> Answer:
        group = text_of(request.command.ext, "consumerGroup")
        known = self.clients.consumers.get(group)
        if known is None:
            text = f"no consumer of group {group[:200]!r} is connected"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        return Answer(body=json_body({"consumerIdList": sorted(known.members)}))

    async def check_config(self, request: Request) -> Answer:
        """Accept the subscription of a consumer that starts, or say what is wrong with it."""
        row = document_of(request.command.body).get("subscriptionData")
        if type(row) is dict:
            found = _subscription(row)
            if found.is_sql:
                self._shared.check_sql(found.expression)
        return Answer()

    def _group(self, name: str) -> str:
        self._shared.context.check_name("group", name)
        return name

    # --- Notices ---

    def _on_changed(self, group: str) -> None:
        if group not in self._to_tell:
            loop = asyncio.get_running_loop()
            self._to_tell[group] = loop.call_later(TOLD_AFTER_S, self._tell, group)

    def _tell(self, group: str) -> None:
        """Notify the members of a group: they share out its queues again."""
        self._to_tell.pop(group, None)
        known = self.clients.consumers.get(group)
        if known is None or known.message_model == "BROADCASTING":
            return
        for member in known.members.values():
            command = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group})
            member.connection.tell(command)

    def stop(self) -> None:
        """Tell no more."""
        for timer in self._to_tell.values():
            timer.cancel()
        self._to_tell.clear()


def _subscription(row: dict[str, Any]) -> Subscription:
    version = row.get("subVersion", 0)
    return Subscription(
        text_in(row, "topic"),
        text_in(row, "subString"),
        text_in(row, "expressionType") == _SQL,
        version if type(version) is int else 0,
        row,
    )
