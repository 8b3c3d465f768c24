"""Questions of tools that a client answers: what it does, and whether it can process a message.

Owns the way to the client and back: its answer is passed on as it is.
"""

from collections.abc import Callable
from typing import Final

from node.broker.read.visibility import visible_at
from node.rocketmq.remoting.calls.pulls import seen_by_clients
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.clients import Member
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import text_of
from store.errors import RecordFormatError
from store.record.message import parse_message_id
from store.record.topic_names import dead_letter_topic, retry_topic

_ANSWER_S: Final = 10.0


class RelayCalls(Calls):
    """Answers the requests that are passed on to a client. One per gateway."""

    async def running_info(self, request: Request) -> Answer:
        """Return what a consumer tells of itself."""
        member = self._member(request, is_any=False)
        code, ext = request.command.code, request.command.ext
        return await self._asked(member, lambda: Command(code, ext=dict(ext)))

    async def consume(self, request: Request) -> Answer:
        """Have a consumer process one message now: one that its group reads, or came back to it."""
        ext = request.command.ext
        member = self._member(request, is_any=True)
        group = text_of(ext, "consumerGroup")
        self._context.check_local()
        try:
            position = parse_message_id(text_of(ext, "msgId"))[1]
        except RecordFormatError as error:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        topic = visible_at(self._context, position, group)[0].topic
        own = {retry_topic(group), dead_letter_topic(group)}
        if topic not in own | self._shared.clients.consumers[group].subscriptions.keys():
            text = f"group {group[:200]!r} does not subscribe to {topic!r}"
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
