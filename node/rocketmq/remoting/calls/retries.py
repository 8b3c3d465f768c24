"""Messages that a consumer gives back: to its retry topic, or to the dead letters.

Owns the way from a position of the log to the message. What becomes of it is the broker's: the same
pauses and limits as for consumers of other protocols.
"""

from typing import Final

from node.broker.read.visibility import visible_at
from node.broker.records.delayed import level_delay_ms
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer
from node.rocketmq.remoting.protocol.fields import INT32_MAX, int_of, text_of
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage

_DEAD: Final = -1


class RetryCalls(Calls):
    """Answers the request that gives a message back. One per gateway."""

    async def send_back(self, request: Request) -> Answer:
        """Have a message delivered again after a pause, or make it a dead letter."""
        ext = request.command.ext
        group = text_of(ext, "group")
        level = int_of(ext, "delayLevel", 0, lo=_DEAD, hi=INT32_MAX)
        self._context.check_leads()
        message = visible_at(self._context, int_of(ext, "offset"), group).message
        given = RetryMessage(
            topic=message.topic,
            queue_id=message.queue_id,
            offset=message.queue_offset,
            delay_ms=level_delay_ms(level) if level > 0 else 0,
            is_dead=level == _DEAD,
        )
        limit = int_of(ext, "maxReconsumeTimes", -1, lo=-1, hi=INT32_MAX)
        retry = RetryLaterRequest(
            group=group,
            messages=[given],
            attempt_count_max=limit + 1,  # 0: the group's.
        )
        await self._broker.retry.retry_later(retry)
        return Answer()
