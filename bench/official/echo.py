"""A server that acknowledges without storing: the client's own ceiling.

Owns the minimum that lets the client start and send. Run it as a process; it prints its port.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from node.rocketmq.forwarder import SERVICE
from node.rocketmq.protocol.client_settings import answer
from node.rocketmq.protocol.endpoints import endpoints_of
from node.rocketmq.protocol.statuses import OK
from quorumlog.pb import rocketmq_pb2 as pb

_BODY_SIZE_BYTES_MAX = 4_000_000


class Echo:
    """Answers every call like a leader that has stored the message."""

    def __init__(self) -> None:
        self.address = ""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the methods that a producer calls."""
        unary = {
            "QueryRoute": self._route,
            "Heartbeat": lambda _: pb.HeartbeatResponse(status=OK),
            "SendMessage": self._send,
            "NotifyClientTermination": lambda _: pb.NotifyClientTerminationResponse(status=OK),
        }
        handlers = {name: _unary(name, run) for name, run in unary.items()}
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(self._telemetry, None, None)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _route(self, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        broker = pb.Broker(name="echo", endpoints=endpoints_of(self.address))
        queue = pb.MessageQueue(
            topic=request.topic,
            permission=pb.Permission.READ_WRITE,
            broker=broker,
            accept_message_types=[pb.MessageType.NORMAL],
        )
        return pb.QueryRouteResponse(status=OK, message_queues=[queue])

    @staticmethod
    def _send(request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        entries = [
            pb.SendResultEntry(status=OK, message_id=m.system_properties.message_id)
            for m in request.messages
        ]
        return pb.SendMessageResponse(status=OK, entries=entries)

    @staticmethod
    async def _telemetry(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for data in requests:
            own_settings = pb.TelemetryCommand.FromString(data).settings
            settings = answer(
                own_settings,
                body_size_bytes_max=_BODY_SIZE_BYTES_MAX,
                attempt_count=1,
                is_fifo=False,
            )
            yield pb.TelemetryCommand(status=OK, settings=settings).SerializeToString()


def _unary(name: str, run: Any) -> grpc.RpcMethodHandler:
    parse = getattr(pb, f"{name}Request").FromString

    async def call(data: bytes, _: Any) -> bytes:
        answer: bytes = run(parse(data)).SerializeToString()
        return answer

    return grpc.unary_unary_rpc_method_handler(call, None, None)


async def main() -> None:
    """Serve until the input ends."""
    echo = Echo()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((echo.handler(),))
    echo.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    print(echo.address, flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, input_ended)
    await server.stop(0)


def input_ended() -> None:
    """Wait for the end of the input: the parent process has ended."""
    import sys

    sys.stdin.read()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
