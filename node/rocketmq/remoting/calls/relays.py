"""What the node passes on to a client: questions of tools, and replies to a producer that waits.

Owns the way to the client and back: its answer to a question is passed on as it is. A reply is
never stored: the requester waits for it, and a late one is of no use.
"""

import time
from collections.abc import Callable
from typing import Final

from node.broker.read.visibility import visible_at
from node.rocketmq.remoting.calls.pulls import seen_by_clients
from node.rocketmq.remoting.calls.routes import REPLY_SUFFIX
from node.rocketmq.remoting.calls.sent_messages import REPLY_TO, SHORT_NAMES, properties_of
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.clients import CLIENT_ID_LENGTH_MAX, Member
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import text_of
from node.users.calling import calling, require
from node.users.rules import Action, Need, ResourceKind
from store.errors import RecordFormatError
from store.record.message import parse_message_id
from store.record.topic_names import dead_letter_topic, retry_topic

_ANSWER_S: Final = 10.0
_REPLY_S: Final = 3.0
"""Time for the requester to take a reply; the replier gives up after it."""
_RELAYED: Final = ("consumerGroup", "clientId", "msgId", "jstackEnable")
"""What a consumer reads of a question: it is not made to take more than that of others."""


class RelayCalls(Calls):
    """Answers the requests that are passed on to a client. One per gateway."""

    async def running_info(self, request: Request) -> Answer:
        """Return what a consumer tells of itself."""
        member = self._member(request, is_any=False)
        code, ext = request.command.code, _relayed(request.command.ext)
        return await self._asked(member, lambda: Command(code, ext=ext))

    async def consume(self, request: Request) -> Answer:
        """Have a consumer process one message now: one that its group reads, or came back to it."""
        ext = _relayed(request.command.ext)
        member = self._member(request, is_any=True)
        group = text_of(ext, "consumerGroup")
        self._context.check_local()
        try:
            position = parse_message_id(text_of(ext, "msgId"))[1]
        except RecordFormatError as error:
            raise InvalidError(str(error)) from None
        topic = visible_at(self._context, position, group)[0].topic
        own = {retry_topic(group), dead_letter_topic(group)}
        if topic not in own and topic not in member.consumption.subscriptions:
            text = f"{member.client_id!r} of group {group[:200]!r} does not subscribe to {topic!r}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)

        def told() -> Command:
            # Read when the consumer takes it: until then only the request is held.
            message, record = visible_at(self._context, position, group)
            number, shown = self._names.shown(message.queue_id)
            body = seen_by_clients(record, shown, self._shared.own_host(number))
            name = {"brokerName": self._names.all[number]}
            return Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext | name, body=body)

        return await self._asked(member, told)

    def _member(self, request: Request, *, is_any: bool) -> Member:
        ext = request.command.ext
        group, client_id = text_of(ext, "consumerGroup"), ext.get("clientId", "")
        members = self._shared.clients.members((True, group))
        if is_any and not client_id and members:
            return next(iter(members.values()))
        if client_id not in members:
            text = f"The Consumer <{group[:200]}> <{client_id[:200]}> not online"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        return members[client_id]

    async def reply(self, request: Request) -> Answer:
        """Pass a reply on to the requester; refused when it is not connected to this node. Which
        topic a reply names is the client's word: the rights are those to the one of replies, Pub of
        the replier and Sub of the requester, as if the reply were stored there."""
        command, topic = request.command, self._context.identity.cluster_id + REPLY_SUFFIX
        require(Action.PUB, ResourceKind.TOPIC, topic)
        is_short = command.code == RequestCode.SEND_REPLY_MESSAGE_V2
        fields = {
            name: command.ext[short if is_short else name]
            for name, short in SHORT_NAMES.items()
            if (short if is_short else name) in command.ext and name != "maxReconsumeTimes"
        }
        properties = properties_of(fields.get("properties", ""))
        client_id = properties.get(REPLY_TO, "")
        member = self._shared.clients.producer(client_id)
        need = Need(Action.SUB, ResourceKind.TOPIC, topic)
        if member is None or not (member.user is None or member.user.may(need)):
            text = f"the requester {client_id[:200]!r} is not connected to this node"
            if calling() is not None:  # One text, so that it does not tell who is connected.
                text += f", or its user lacks {need}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        now_ms = int(time.time() * 1000)
        properties["PUSH_REPLY_TIME"] = str(now_ms)
        property_text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        ext = fields | {
            "properties": property_text,
            "bornHost": request.connection.remote,
            "storeHost": self._shared.own_addresses[self._shared.number_of(request)],
            "storeTimestamp": str(now_ms),
        }
        push = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=ext, body=command.body)
        try:
            answered = await member.connection.ask(lambda: push, _REPLY_S)
        except (TimeoutError, ConnectionError) as error:
            text = f"the requester did not take the reply: {str(error) or 'no answer in time'}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text) from None
        if answered.code:
            text = f"the requester refused the reply: {answered.remark}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        return Answer(ext={"msgId": "", "queueId": fields.get("queueId", "0"), "queueOffset": "0"})

    @staticmethod
    async def _asked(member: Member, make: Callable[[], Command]) -> Answer:
        try:
            answered = await member.connection.ask(make, _ANSWER_S)
        except TimeoutError:
            text = f"{member.client_id} did not answer within {_ANSWER_S:.0f} s"
            raise RefusedError(ResponseCode.CONSUME_MSG_TIMEOUT, text) from None
        except ConnectionError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return Answer(answered.code, answered.ext, answered.body, answered.remark)


def _relayed(ext: dict[str, str]) -> dict[str, str]:
    return {
        name: ext[name]
        for name in _RELAYED
        if name in ext and len(ext[name]) <= CLIENT_ID_LENGTH_MAX
    }
