"""Members of groups: heartbeats, departures, and who shares a group's queues.

Owns how heartbeats are read. Every node registers the clients that reach it; the list of a group's
members is the leader's, so that all members share out the queues by the same list.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

from node.remoting.calls.shared import Shared
from node.remoting.clients import (
    TOPICS_OF_GROUP_MAX,
    Clients,
    ConsumerGroup,
    Member,
    Subscription,
)
from node.remoting.conversation import Request
from node.remoting.protocol.answers import Answer, RefusedError
from node.remoting.protocol.codes import RequestCode, ResponseCode
from node.remoting.protocol.command import Command
from node.remoting.protocol.fields import text_of

CLIENT_ID_LENGTH_MAX: Final = 255
TOLD_AFTER_S: Final = 0.05
"""Members of a group are told of its changes so much later: many come and go at once."""
_SQL: Final = "SQL92"


def document_of(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a body. Raises RefusedError."""
    try:
        document = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        text = f"a body that is no JSON: {error}"
        raise RefusedError(ResponseCode.INVALID_PARAMETER, text) from None
    if type(document) is not dict:
        raise RefusedError(ResponseCode.INVALID_PARAMETER, "a body that is no JSON object")
    return document


def json_body(document: object) -> bytes:
    """Return the bytes of a JSON body, without blanks: some clients cut it at commas."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


class GroupCalls:
    """Answers the requests about members. One per gateway."""

    def __init__(self, shared: Shared, on_consumer: Callable[[str], None]) -> None:
        """`on_consumer` is called with each group that a consumer belongs to."""
        self._shared = shared
        self._on_consumer = on_consumer
        self.clients: Final = Clients(self._on_changed)
        self._to_tell: dict[str, asyncio.TimerHandle] = {}

    async def heartbeat(self, request: Request) -> Answer:
        """Register a client in all groups that it names."""
        command = request.command
        document = document_of(command.body)
        client_id = _text(document, "clientID")
        if not 1 <= len(client_id) <= CLIENT_ID_LENGTH_MAX:
            text = f"clientID must have 1 to {CLIENT_ID_LENGTH_MAX} characters"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        member = Member(
            client_id,
            request.connection,
            command.language,
            command.version,
            time.monotonic(),
        )
        for row in _rows(document, "producerDataSet"):
            self.clients.put_producer(self._group(_text(row, "groupName")), member)
        for row in _rows(document, "consumerDataSet"):
            group = self._group(_text(row, "groupName"))
            told = ConsumerGroup(
                _text(row, "consumeType"),
                _text(row, "messageModel"),
                _text(row, "consumeFromWhere"),
            )
            topics = {
                one.topic: one for one in map(_subscription, _rows(row, "subscriptionDataSet"))
            }
            if len(topics) > TOPICS_OF_GROUP_MAX:
                text = f"{len(topics)} topics of a group, the limit is {TOPICS_OF_GROUP_MAX}"
                raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
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

    # --- Telling members ---

    def _on_changed(self, group: str) -> None:
        if group not in self._to_tell:
            loop = asyncio.get_running_loop()
            self._to_tell[group] = loop.call_later(TOLD_AFTER_S, self._tell, group)

    def _tell(self, group: str) -> None:
        """Tell the members of a group that they share out its queues anew."""
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


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return value if type(value) is str else ""


def _rows(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = document.get(name)
    if rows is None:
        return []
    if type(rows) is not list or not all(type(row) is dict for row in rows):
        raise RefusedError(ResponseCode.INVALID_PARAMETER, f"{name} is no list of objects")
    return rows


def _subscription(row: dict[str, Any]) -> Subscription:
    version = row.get("subVersion", 0)
    return Subscription(
        _text(row, "topic"),
        _text(row, "subString"),
        _text(row, "expressionType") == _SQL,
        version if type(version) is int else 0,
        row,
    )
