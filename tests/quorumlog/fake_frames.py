"""The framed port of a fake node: frames of the real layout, answered by the fake's gRPC methods.

Owns a second, simple reading of the layout (docs/framed.md); must not share code with the client or
with the server.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

from quorumlog.errors import ERROR_TRAILER
from quorumlog.pb import common_pb2, consumer_pb2, log_pb2, pop_pb2
from tests.loopback import HOST
from tests.patience import end

METHODS: dict[int, tuple[str, Any]] = {
    1: ("AppendStream", log_pb2.AppendRequest),
    2: ("Pull", log_pb2.PullRequest),
    4: ("CommitOffsets", consumer_pb2.CommitOffsetsRequest),
    5: ("FetchOffsets", consumer_pb2.FetchOffsetsRequest),
    6: ("Ack", pop_pb2.AckRequest),
    7: ("Heartbeat", consumer_pb2.HeartbeatRequest),
    8: ("Route", log_pb2.RouteRequest),
    9: ("Receive", pop_pb2.ReceiveRequest),
}
ROUTE = 8
RESPONSE, ERROR, CANCEL = 1, 2, 8


class BrokenError(Exception):
    """The script says that the connection breaks."""


class RefusedError(Exception):
    """A call failed with an error as nodes send it."""


class Context:
    """Stands for the context of a gRPC call."""

    async def abort(self, status: Any, details: str, trailers: Any = ()) -> None:
        for key, value in trailers:
            if key == ERROR_TRAILER:
                raise RefusedError(value)
        raise BrokenError(details)


def frame(method: int, flags: int, opaque: int, message: bytes, body: bytes = b"") -> bytes:
    """Return one frame of a node."""
    header = struct.pack(">BBHII", method, flags, 0, opaque, 0) + message
    length = 4 + len(header) + len(body)
    return struct.pack(">IB", length, 0x51) + len(header).to_bytes(3, "big") + header + body


class FakeFramedPort:
    """Serves a node's methods as frames."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.port = 0
        self.requests: list[tuple[int, int]] = []  # Method and opaque of each but routes.
        self.routes_total = 0
        self.says: dict[str, Any] = {}  # Fields of routes that it answers otherwise.
        self.refusal: common_pb2.Error | None = None  # Its answer to routes.
        self.connections: set[FakeConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut all connections at once."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            for connection in list(self.connections):
                connection.cut()
            await asyncio.gather(*(c.ended.wait() for c in list(self.connections)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)
            connection.ended.set()


class FakeConnection:
    """One connection. Appends of one producer are answered in order, as those of a stream are."""

    def __init__(self, port: FakeFramedPort, reader: Any, writer: Any) -> None:
        self.ended = asyncio.Event()
        self._port, self._node = port, port.node
        self._reader, self._writer = reader, writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[int, FakeStream] = {}  # By producer id.

    def cut(self) -> None:
        self._writer.transport.abort()

    async def serve(self) -> None:
        try:
            while True:
                await self._take()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            tasks = [*self._tasks, *(stream.task for stream in self._streams.values())]
            await end(*tasks)
            self.cut()

    async def _take(self) -> None:
        length, kind = struct.unpack(">IB", await self._reader.readexactly(5))
        rest = await self._reader.readexactly(length - 1)
        size = int.from_bytes(rest[:3], "big")
        method, flags, reserved, opaque, _ = struct.unpack_from(">BBHII", rest, 3)
        assert (kind, reserved) == (0x51, 0), (kind, reserved)
        message, body = rest[15 : 3 + size], rest[3 + size :]
        if flags & CANCEL:
            assert not message + body, "a cancel has neither"
            self._cancel(opaque)
            return
        if method == ROUTE:
            self._port.routes_total += 1
        else:
            self._port.requests.append((method, opaque))
        name, kind_of = METHODS[method]
        request = kind_of.FromString(message)
        assert method == 1 or not body, "only appends have records"
        if method == 1:
            assert not request.records, "the records are the body"
            request.records = body
            stream = self._streams.get(request.producer_id)
            if stream is None:
                stream = FakeStream(self._node, self._writer)
                self._streams[request.producer_id] = stream
            stream.opaques.append(opaque)
            stream.requests.put_nowait(request)
            return
        task = asyncio.create_task(self._answer(method, name, opaque, request), name=str(opaque))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, opaque: int) -> None:
        for producer_id, stream in list(self._streams.items()):
            if opaque in stream.opaques:  # It is over.
                stream.task.cancel()
                del self._streams[producer_id]
        for task in self._tasks:
            if task.get_name() == str(opaque):
                task.cancel()

    async def _answer(self, method: int, name: str, opaque: int, request: Any) -> None:
        try:
            if method == ROUTE:
                answer = await self._route(request)
            else:
                answer = await getattr(self._node, name)(request, Context())
        except RefusedError as error:
            self._writer.write(frame(method, RESPONSE | ERROR, opaque, error.args[0]))
            return
        except BrokenError:
            self.cut()
            return
        body = b""
        if "records" in answer.DESCRIPTOR.fields_by_name:
            body = answer.records
            answer.ClearField("records")
        self._writer.write(frame(method, RESPONSE, opaque, answer.SerializeToString(), body))

    async def _route(self, request: Any) -> Any:
        if self._port.refusal is not None:
            raise RefusedError(self._port.refusal.SerializeToString())
        answer = await self._node.Route(request, Context())
        for name, value in self._port.says.items():
            setattr(answer, name, value)
        return answer


class FakeStream:
    """The appends of one producer on one connection, through the stream of the fake node."""

    def __init__(self, node: Any, writer: Any) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.opaques: list[int] = []  # Of the appends without an answer.
        self.task = asyncio.create_task(self._answer(node, writer))

    async def _requests(self) -> AsyncIterator[Any]:
        while True:
            yield await self.requests.get()

    async def _answer(self, node: Any, writer: Any) -> None:
        try:
            async for response in node.AppendStream(self._requests(), Context()):
                opaque = self.opaques.pop(0)
                if response.HasField("error"):
                    error: common_pb2.Error = response.error
                    answer = frame(1, RESPONSE | ERROR, opaque, error.SerializeToString())
                else:
                    answer = frame(1, RESPONSE, opaque, response.SerializeToString())
                writer.write(answer)
        except BrokenError:
            writer.transport.abort()
