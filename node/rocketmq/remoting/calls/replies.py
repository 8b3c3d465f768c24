"""Replies: from the consumer of a request to the producer that waits for it.

Owns the way to the producer's connection. A reply is passed on and never stored: the requester
waits for it, and a late one is of no use.
"""

import time
from typing import Final

from node.rocketmq.remoting.calls.sent_messages import REPLY_TO, properties_of
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command

_ANSWER_S: Final = 3.0
"""Time for the requester to take a reply; the replier gives up after it."""
_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
}


class ReplyCalls(Calls):
    """Answers both requests that send a reply. One per gateway."""

    async def reply(self, request: Request) -> Answer:
        """Pass a reply on to the requester; refused when it is not connected to this node."""
        command = request.command
        is_short = command.code == RequestCode.SEND_REPLY_MESSAGE_V2
        fields = {
            name: command.ext[short if is_short else name]
            for name, short in _NAMES.items()
            if (short if is_short else name) in command.ext
        }
        properties = properties_of(fields.get("properties", ""))
        client_id = properties.get(REPLY_TO, "")
        member = self._shared.clients.producer(client_id)
        if member is None:
            text = f"the requester {client_id[:200]!r} is not connected to this node"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        now_ms = int(time.time() * 1000)
        properties["PUSH_REPLY_TIME"] = str(now_ms)
        told = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        ext = fields | {
            "properties": told,
            "bornHost": request.connection.remote,
            "storeHost": self._shared.own_address(self._shared.number_of(request)),
            "storeTimestamp": str(now_ms),
        }
        push = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=ext, body=command.body)
        try:
            answered = await member.connection.ask(lambda: push, _ANSWER_S)
        except (TimeoutError, ConnectionError) as error:
            text = f"the requester did not take the reply: {str(error) or 'no answer in time'}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text) from None
        if answered.code:
            text = f"the requester refused the reply: {answered.remark}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        return Answer(ext={"msgId": "", "queueId": fields.get("queueId", "0"), "queueOffset": "0"})
