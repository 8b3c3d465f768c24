"""Single messages: by position, by key, and those that a consumer gives back.

Owns which of a group's messages a broker name answers for: tools ask every name of a route and put
the answers together. What becomes of a message that is given back is the broker's: the same pauses
and limits as for consumers of other protocols.
"""

from contextlib import ExitStack
from typing import Final

from node.broker.read.visibility import visible_at
from node.broker.records.delayed import level_delay_ms, split_records
from node.rocketmq.remoting.calls.pulls import seen_by_clients
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT32_MAX, VALUE_LENGTH_MAX, int_of, text_of
from node.runtime.accounts import Kind
from quorumlog.pb.common_pb2 import CONSISTENCY_LEADER
from quorumlog.pb.log_pb2 import QueryByKeyRequest
from quorumlog.pb.retry_pb2 import RetryLaterRequest, RetryMessage
from store import format as fmt
from store.record.check import store_timestamp

_COUNT_MAX: Final = 64
_SIZE_BYTES_MAX: Final = 4 << 20
"""Messages of one answer, but for the first one of any size: 64 of the largest have 256 MiB."""
_CALL_COUNT_MAX: Final = 16
"""Calls of the broker for one query; each goes on where the one before stopped."""
_DEAD: Final = -1


class MessageCalls(Calls):
    """Answers the requests about single messages. One per gateway."""

    async def by_position(self, request: Request) -> Answer:
        """Return the message at a position, which is in a message id."""
        self._context.check_leads()
        record = visible_at(self._context, int_of(request.command.ext, "offset"))
        number, shown = self._names.shown(record.message.queue_id)
        return Answer(body=seen_by_clients(record.record, shown, self._shared.routed_host(number)))

    async def by_key(self, request: Request) -> Answer:
        """Return the messages of a topic with a key, the newest first, of one broker name."""
        ext, number = request.command.ext, self._shared.number_of(request)
        count_max = min(int_of(ext, "maxNum", _COUNT_MAX, hi=INT32_MAX) or _COUNT_MAX, _COUNT_MAX)
        key_request = QueryByKeyRequest(
            topic=text_of(ext, "topic"),
            key=text_of(ext, "key", length_max=VALUE_LENGTH_MAX),
            lo_unix_ms=int_of(ext, "beginTimestamp", 0),
            hi_unix_ms=int_of(ext, "endTimestamp", 0),
            consistency=CONSISTENCY_LEADER,
        )
        records: list[bytes] = []
        left_size_bytes = _SIZE_BYTES_MAX
        with ExitStack() as held:
            charge = request.account.charge(Kind.DOCUMENTS)
            held.callback(charge.release)
            for _ in range(_CALL_COUNT_MAX):
                response = await self._broker.queries.find_by_key(key_request)
                for record in reversed(self._own(response.records, number)):
                    left_size_bytes -= len(record)
                    if records and (left_size_bytes < 0 or len(records) >= count_max):
                        left_size_bytes = -1
                        break
                    records.append(record)
                is_full = left_size_bytes < 0 or len(records) >= count_max
                if is_full or not response.HasField("next_position"):
                    break
                charge.resize(_SIZE_BYTES_MAX - left_size_bytes)
                key_request.next_position = response.next_position
        newest_ms = store_timestamp(records[0]) if records else 0
        ext_of_answer = {
            "indexLastUpdateTimestamp": str(newest_ms),
            "indexLastUpdatePhyoffset": "0",
        }
        if not records:
            text = "no message of this broker name has the key"
            return Answer(ResponseCode.QUERY_NOT_FOUND, ext_of_answer, remark=text)
        return Answer(ext=ext_of_answer, body=b"".join(records))

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

    def _own(self, records: bytes, number: int) -> "list[bytes]":
        own, host = [], self._shared.routed_host(number)
        for record in split_records(records):
            queue = fmt.INT32.unpack_from(record, fmt.QUEUE_ID_AT)[0]
            of_number, shown = self._names.shown(queue)
            if of_number == number:
                own.append(seen_by_clients(record, shown, host))
        return own
