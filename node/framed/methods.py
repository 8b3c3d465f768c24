"""The table of framed methods: the part of the broker that answers each.

Owns the table. An answer has two parts, the message without records and the records themselves,
which go out without being copied into a message. Appends and tails are not in it: an append is no
coroutine, and a tail has many answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from node.broker import Broker
from node.errors.common import AppendTimeoutError, NodeError, ReadTimeoutError
from node.framed.header import Method
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, FetchOffsetsRequest, HeartbeatRequest
from quorumlog.pb.log_pb2 import PullRequest, RouteRequest
from quorumlog.pb.pop_pb2 import AckRequest, ReceiveRequest, ReceiveResponse

NO_BODY: Final = b""

Answer = tuple[Message, bytes]
"""A response without its records, and the records."""


class FramedMethod(NamedTuple):
    """One method with one answer."""

    request: type[Message]
    call: Callable[[Any], Awaitable[Answer]]
    late: Callable[[int], NodeError]
    """The error after the client's deadline, in ms."""


def read_late(timeout_ms: int) -> NodeError:
    """Return the error of a call that only reads and was not answered in time."""
    return ReadTimeoutError("there was no answer", timeout_ms)


def methods_of(broker: Broker) -> Mapping[int, FramedMethod]:
    """Return the methods by number."""

    async def receive(request: ReceiveRequest) -> Answer:
        response: ReceiveResponse = await broker.pop.receive(request)
        records = response.records
        response.ClearField("records")
        return response, records

    groups, pop = broker.groups, broker.pop
    return {
        Method.PULL: FramedMethod(PullRequest, broker.pulls.pull, read_late),
        Method.COMMIT_OFFSETS: FramedMethod(
            CommitOffsetsRequest, _bare(groups.commit_offsets), AppendTimeoutError
        ),
        Method.FETCH_OFFSETS: FramedMethod(
            FetchOffsetsRequest, _bare(groups.fetch_offsets), read_late
        ),
        Method.ACK: FramedMethod(AckRequest, _bare(pop.ack), AppendTimeoutError),
        Method.HEARTBEAT: FramedMethod(HeartbeatRequest, _bare(groups.heartbeat), read_late),
        Method.ROUTE: FramedMethod(RouteRequest, _bare(broker.route), read_late),
        Method.RECEIVE: FramedMethod(ReceiveRequest, receive, AppendTimeoutError),
    }


def _bare(call: Callable[[Any], Awaitable[Message]]) -> Callable[[Any], Awaitable[Answer]]:
    """Return a method whose answers have no records."""

    async def answer(request: Message) -> Answer:
        return await call(request), NO_BODY

    return answer
