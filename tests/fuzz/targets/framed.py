"""Targets of the framed port: the node's half with its calls, and the client's half.

The calls of the node run on a broker that answers at once, so every frame of a request has an
answer before the next one arrives.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final, cast

from google.protobuf.message import DecodeError, Message

from node.errors.common import AppendTimeoutError, BadRequestError
from node.framed.calls import Answer, CallConversation, FramedCalls, FramedMethod
from node.framed.connection import FramedConnection
from node.framed.frames import Frame, FramedParser, FrameFault
from node.framed.header import HEADER, KIND, Method, encode_response
from node.framed.limits import FramedLimits
from node.runtime.accounts import Accounts
from node.services.calls import ServedCalls
from quorumlog.cluster.framed import frames as client_frames
from quorumlog.errors import from_pb
from quorumlog.pb import common_pb2, consumer_pb2, log_pb2, pop_pb2
from tests.fuzz.structure import message, text
from tests.fuzz.target import KIB, FuzzTarget, claim, same_however_cut

_LIMITS: Final = FramedLimits()
_PATIENCE_S: Final = 60
_REQUESTS: Final[dict[int, type[Message]]] = {
    Method.PULL: log_pb2.PullRequest,
    Method.COMMIT_OFFSETS: consumer_pb2.CommitOffsetsRequest,
    Method.FETCH_OFFSETS: consumer_pb2.FetchOffsetsRequest,
    Method.ACK: pop_pb2.AckRequest,
    Method.HEARTBEAT: consumer_pb2.HeartbeatRequest,
    Method.ROUTE: log_pb2.RouteRequest,
    Method.RECEIVE: pop_pb2.ReceiveRequest,
}


def _frames(data: bytes) -> list[Frame]:
    def parse(pieces: Iterator[bytes], frames: list[Frame]) -> None:
        scratch = bytearray(8 * KIB)
        parser = FramedParser(memoryview(scratch), (KIND,), _LIMITS)
        for piece in pieces:
            for at in range(0, len(piece), len(scratch)):
                part = piece[at : at + len(scratch)]
                scratch[: len(part)] = part
                frame = parser.take(len(part))
                while frame is not None:
                    frames.append(frame)
                    frame = parser.next_frame()
        claim(parser.rest_size_bytes <= len(data), "more is kept than has arrived")

    return same_however_cut(data, parse, (FrameFault,))


class _Connection:
    """Takes the answers of a conversation."""

    def __init__(self) -> None:
        self.account = Accounts().open("127.0.0.1")
        self.is_taken = True
        self.sent = b""

    def queue(self, data: bytes) -> bool:
        self.sent += data
        return True

    write = queue

    def write_body(self, head: bytes, body: bytes) -> bool:
        self.sent += head + body
        return True

    async def writable(self) -> None:
        pass

    def give_up(self, calls: "Iterable[asyncio.Future[Any]]") -> None:
        for call in calls:
            call.cancel()

    def hold(self, _why: int) -> None: ...
    def release(self, _why: int) -> None: ...


async def _answered(_request: Message) -> Answer:
    return log_pb2.PullResponse(), b"records"


def _append(
    request: log_pb2.AppendRequest, records: bytes, _caller: object
) -> "asyncio.Future[Any]":
    answer: asyncio.Future[Any] = _LOOP.create_future()
    if not records:
        raise BadRequestError("records", "some", "none")
    answer.set_result(log_pb2.AppendResponse(index=len(records)))
    return answer


async def _tail(_request: log_pb2.TailRequest) -> Any:
    yield log_pb2.PullResponse(), b"records"


_LOOP: Final = asyncio.new_event_loop()


async def _ended(conversation: CallConversation) -> None:
    """Wait for all calls. The node rests by the clock, so turns of the loop do not bound it."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while conversation.call_count:
        claim(time.monotonic() < deadline_s, f"{conversation.call_count} calls never ended")
        await asyncio.sleep(0)


def _node(data: bytes) -> None:
    frames = _frames(data)
    if frames:
        _LOOP.run_until_complete(_converse(frames))


async def _converse(frames: list[Frame]) -> None:
    fatal: list[BaseException] = []
    shared = FramedCalls(ServedCalls(fatal.append), Accounts(), _LIMITS)
    shared.refusal, shared.append_nowait, shared.tail = None, _append, _tail
    shared.parked_appends = ()
    shared.methods = {
        number: FramedMethod(kind, _answered, AppendTimeoutError)
        for number, kind in _REQUESTS.items()
    }
    connection = _Connection()
    conversation = CallConversation(shared, cast(FramedConnection, connection))
    expected: list[int] = []
    try:
        for _, header, body in frames:
            conversation.on_frame(KIND, header, body)
            _, flags, _, opaque, _ = HEADER.unpack_from(header)
            if not flags:
                expected.append(opaque)
            await _ended(conversation)
        answers = client_frames.FrameReader().frames(connection.sent)
        for _, flags, _, error, _ in answers:
            if flags & client_frames.ERROR:
                code = common_pb2.Error.FromString(error).code
                claim(code != "node.internal", "an unexpected error")
        ends = [opaque for _, flags, opaque, _, _ in answers if not flags & client_frames.MORE]
        claim(sorted(ends) == sorted(expected), f"calls {expected}, answers {ends}")
    finally:
        conversation.on_closed()
        await _ended(conversation)
    claim(not fatal, f"fatal: {fatal}")


def _request_frame(random: Random, opaque: int) -> bytes:
    method = random.choice(list(Method))
    body = b""
    kind = _REQUESTS.get(method, log_pb2.TailRequest)
    request: Message = message(random, kind)
    if method is Method.APPEND:
        append = message(random, log_pb2.AppendRequest)
        append.ClearField("records")
        request, body = append, random.randbytes(random.choice((0, 20)))
    header = HEADER.pack(method, 0, 0, opaque, random.choice((0, 5, 9_000)))
    header += request.SerializeToString()
    length = 4 + len(header) + len(body)
    return length.to_bytes(4, "big") + (KIND << 24 | len(header)).to_bytes(4, "big") + header + body


def _node_examples(random: Random) -> list[bytes]:
    cancel = HEADER.pack(Method.PULL, 8, 0, 1, 0)
    cancel = (4 + len(cancel)).to_bytes(4, "big") + (KIND << 24 | 12).to_bytes(4, "big") + cancel
    found = []
    for count in (1, 2, 4):
        found.append(b"".join(_request_frame(random, opaque) for opaque in range(count)) + cancel)
    return found


# The client's half.

_CALLS: Final = (*client_frames.FRAMED_METHODS.values(), client_frames.ROUTE)


def _client(data: bytes) -> None:
    def parse(pieces: Iterator[bytes], frames: list[client_frames.Answer]) -> None:
        reader = client_frames.FrameReader()
        for piece in pieces:
            frames += reader.frames(piece)
            claim(len(reader.partial) <= len(data), "more is kept than has arrived")

    if not data:
        return
    call = _CALLS[data[0] % len(_CALLS)]
    for _, flags, _, header, body in _client_frames(data[1:], parse):
        if flags & client_frames.ERROR:
            error = from_pb(common_pb2.Error.FromString(header))
            claim(len(str(error)) <= len(data), "a text that grew")
        else:
            client_frames.answer_of_frame(call, header, body)


def _client_frames(data: bytes, parse: Any) -> list[client_frames.Answer]:
    """Frames in front of a bad one are lost with it, so only whole streams are compared."""
    errors = (client_frames.FrameError,)
    try:
        parse(iter((data,)), [])
    except errors:
        return []
    return same_however_cut(data, parse, errors)


def _client_examples(random: Random) -> list[bytes]:
    found = []
    for at, call in enumerate(_CALLS):
        answer = message(random, call.answer)
        body = random.randbytes(9) if call.returns_records else b""
        head = encode_response(call.number, 0, 7, answer.SerializeToString(), len(body))
        error = common_pb2.Error(code="node.busy", message=text(random), outcome="OUTCOME_UNKNOWN")
        failed = encode_response(call.number, client_frames.ERROR, 8, error.SerializeToString())
        found.append(bytes((at,)) + head + body + failed)
    return found


TARGETS: Final = (
    FuzzTarget(
        "framed-node",
        "each request has one answer, in frames that the client reads, or the connection is closed",
        _node,
        ("node.framed.frames", "node.framed.calls", "node.framed.header"),
        _node_examples,
        (FrameFault,),
        memory_base_bytes=2 << 20,
    ),
    FuzzTarget(
        "framed-client",
        "answers are the same however the stream is cut, and bad ones close the connection",
        _client,
        ("quorumlog.cluster.framed.frames", "quorumlog.errors"),
        _client_examples,
        (client_frames.FrameError, DecodeError),
    ),
)
