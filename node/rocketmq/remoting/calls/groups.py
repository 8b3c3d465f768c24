"""Members of groups: heartbeats, departures, and who shares a group's queues.

Owns how heartbeats are read. Every node registers the clients that reach it; the list of a group's
members is the leader's, so that all members share out the queues by the same list.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from json import JSONDecoder
from typing import Any, Final

import structlog

from node.broker.groups.member import MemberKind
from node.broker.read.filters import SqlFilter
from node.rocketmq.clients import GatewayClients
from node.rocketmq.protocol.names import EXPRESSION_LENGTH_MAX
from node.rocketmq.remoting.calls.json_bodies import (
    DOCUMENT_SIZE_BYTES_MAX,
    document_of,
    json_answer,
    list_of,
    rows_of,
    text_in,
)
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.clients import (
    CLIENT_ID_LENGTH_MAX,
    GROUPS_OF_CLIENT_MAX,
    TOPICS_OF_GROUP_MAX,
    Clients,
    Consumption,
    Member,
    Subscription,
    is_sql,
    owner_of,
)
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.member_reports import MemberReports
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import INT64_MAX, text_of
from node.runtime.accounts import Account
from node.runtime.clock import unix_ms
from node.users.calling import calling, require
from node.users.rules import Action, ResourceKind

_ANSWER_S: Final = 1.0
_SUBSCRIPTIONS: Final = re.compile(rb'"subscriptionSet"\s*:\s*')
_DECODER: Final = JSONDecoder()
_log: Final = structlog.get_logger(component="remoting")
TOLD_AFTER_S: Final = 0.05
"""Members of a group are told of its changes so much later: many come and go at once."""
TOLD_MEMBER_S: Final = 0.001
"""And so much later for each: however often a large group changes, its members get 1,000
notices a second at most."""


class GroupCalls(Calls):
    """Answers the requests about members. One per gateway."""

    def __init__(
        self,
        shared: Shared,
        on_producer: Callable[[str, Account], None],
        on_left: Callable[[str, str], None],
        others: GatewayClients,
    ) -> None:
        """`on_producer` is called with each group that a heartbeat produces for, and the account of
        its caller, `on_left` with group and client id of a consumer that left. `others` are the
        members of the other protocol."""
        super().__init__(shared)
        self._members = shared.broker.group_members
        self._on_producer = on_producer
        shared.clients = self.clients = Clients(lambda _: self.reports.wake(), on_left)
        self._to_tell: dict[str, asyncio.TimerHandle] = {}
        self._asked = set[tuple[str, str]]()
        """Groups and client ids of clients that are being asked what they read."""
        shared.reports = self.reports = MemberReports(
            self._context,
            self._members,
            shared.cluster,
            shared.forwarder,
            (self.clients, others),
            self.on_changed,
        )

    async def heartbeat(self, request: Request) -> Answer:
        """Register a client in all groups that it names."""
        command = request.command
        document = list_of(command.body)
        client_id = text_in(document, "clientID")
        if not 1 <= len(client_id) <= CLIENT_ID_LENGTH_MAX:
            raise InvalidError(f"clientID must have 1 to {CLIENT_ID_LENGTH_MAX} characters")
        rows = rows_of(document, "producerDataSet", GROUPS_OF_CLIENT_MAX)
        producers = [self._group(text_in(row, "groupName")) for row in rows]
        consumers = {}
        rows = rows_of(document, "consumerDataSet", GROUPS_OF_CLIENT_MAX)
        async for row in self._context.turn.over(rows):
            consumers[self._group(text_in(row, "groupName"))] = Consumption(
                text_in(row, "consumeType"),
                text_in(row, "messageModel"),
                text_in(row, "consumeFromWhere"),
                *_subscriptions(row, "subscriptionDataSet"),
            )
        for group, consumption in consumers.items():
            require(Action.SUB, ResourceKind.GROUP, group)
            for topic in consumption.subscriptions:
                require(Action.SUB, ResourceKind.TOPIC, topic)
        if request.connection.connection.is_ended:
            return Answer()  # It left meanwhile.
        client = Member(
            client_id,
            request.connection,
            request.account,
            command.language,
            command.version,
            time.monotonic(),
            unix_ms(),
            user=calling(),
        )
        self.clients.put(client, producers, consumers)
        request.connection.client_id = client_id
        await self.reports.flush()
        for group in producers:
            self._on_producer(group, request.account)
        return Answer()

    async def renew(self, group: str, client_id: str) -> None:
        """Ask a client here what it reads, as a heartbeat says it: clients leave one out while they
        send another, and send the next after 30 s. Without an answer nothing changes."""
        member = self.clients.consumer(group, client_id)
        if member is None or (group, client_id) in self._asked:
            return
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext)
        self._asked.add((group, client_id))
        try:
            answered = await member.connection.ask(lambda: question, _ANSWER_S)
            versions, subscriptions = _subscriptions(_running(answered.body), "subscriptionSet")
        except (TimeoutError, ConnectionError, RefusedError) as error:
            _log.debug("a client does not say what it reads", client=client_id, reason=str(error))
            return
        finally:
            self._asked.remove((group, client_id))
        member = self.clients.consumer(group, client_id)  # A heartbeat may have come meanwhile.
        own_versions = {} if member is None else member.consumption.versions
        if member is not None and any(own_versions.get(t, -1) < n for t, n in versions.items()):
            new = member.consumption._replace(versions=versions, subscriptions=subscriptions)
            self.clients.put(member, (), {group: new})

    async def unregister(self, request: Request) -> Answer:
        """Take a client of the caller out of one group."""
        ext = request.command.ext
        client_id, caller = text_of(ext, "clientID"), owner_of(request.account, calling())
        for is_consumer, field in ((False, "producerGroup"), (True, "consumerGroup")):
            group = text_of(ext, field, "")
            if group:
                self.clients.leave(is_consumer, group, client_id, caller)
        return Answer()

    async def members(self, request: Request) -> Answer:
        """Return the members that share the queues of a consumer group, of every protocol. Raises
        GroupKindError if the group is read by pop."""
        group = text_of(request.command.ext, "consumerGroup")
        now_ms = self._context.clock_ms()
        members = self._members.sharing(group, now_ms)
        members = members or sorted(self._members.clients_of(group, now_ms))
        if not members:
            text = f"no consumer of group {group[:200]!r} is connected"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        return json_answer(consumerIdList=members)

    async def check_config(self, request: Request) -> Answer:
        """Accept the subscription of a consumer that starts, or say what is wrong with it."""
        row = document_of(request.command.body).get("subscriptionData")
        if type(row) is dict:
            subscription = _subscription(row)
            if subscription.is_sql:
                SqlFilter(subscription.expression)
        return Answer()

    def _group(self, name: str) -> str:
        self._context.check_name("group", name)
        return name

    # --- Notices ---

    def on_changed(self, group: str) -> None:
        """Notify the members of a group here, soon: the leader says that this node does."""
        group_members = self.clients.consumers.get(group)
        if group_members is not None:
            group_members.changed_s = time.monotonic()
        if group_members is not None and group not in self._to_tell:
            seconds = TOLD_AFTER_S + len(group_members.members) * TOLD_MEMBER_S
            later, steps = self._context.turn.later, self._tell(group)
            self._to_tell[group] = asyncio.get_running_loop().call_later(seconds, later, "", steps)

    def _tell(self, group: str) -> Iterator[None]:
        """Notify the members of a group, in steps: they share out its queues again."""
        del self._to_tell[group]  # What changes from here on leads to notices again.
        group_members = self.clients.consumers.get(group)
        for member in [] if group_members is None else list(group_members.connected()):
            if member.kind is MemberKind.BROADCASTING:
                continue
            command = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group})
            member.connection.tell(command)
            yield

    def stop(self) -> None:
        """Tell no more."""
        for timer in self._to_tell.values():
            timer.cancel()


def _running(body: bytes) -> dict[str, Any]:
    """Return what a consumer tells of its subscriptions. Queues are keys of the other tables, which
    is no JSON. Raises RefusedError."""
    match = _SUBSCRIPTIONS.search(body)
    text = body[match.end() : match.end() + DOCUMENT_SIZE_BYTES_MAX] if match is not None else b""
    try:
        rows, _ = _DECODER.raw_decode(text.decode("utf-8", "ignore"))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"no subscriptions: {error}") from None
    return {"subscriptionSet": rows}


def _subscriptions(
    row: dict[str, Any], name: str
) -> tuple[dict[str, int], dict[str, Subscription]]:
    versions, subscriptions = dict[str, int](), dict[str, Subscription]()
    for one in rows_of(row, name, TOPICS_OF_GROUP_MAX):
        subscription, version = _subscription(one), one.get("subVersion", 0)
        is_number = type(version) is int and 0 <= version <= INT64_MAX
        versions[subscription.topic] = version if is_number else 0
        subscriptions[subscription.topic] = subscription
    return versions, subscriptions


def _subscription(row: dict[str, Any]) -> Subscription:
    return Subscription(
        text_in(row, "topic"),
        text_in(row, "subString", EXPRESSION_LENGTH_MAX),
        is_sql(text_in(row, "expressionType")),
    )
