"""A call whose channel is closed under it fails, and does not look like the end of its caller."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from quorumlog.calls import Calls
from quorumlog.channels import Channels
from quorumlog.errors import Outcome, UnavailableError
from quorumlog.pb import log_pb2, log_pb2_grpc
from quorumlog.routing import Router


class _Holding(log_pb2_grpc.LogServiceServicer):
    """Answers nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Route(  # noqa: N802 - gRPC's name.
        self, request: log_pb2.RouteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> log_pb2.RouteResponse:
        self.asked.set()
        await asyncio.Event().wait()
        return log_pb2.RouteResponse()


def test_a_closed_channel_is_an_error_and_a_cancelled_caller_is_cancelled() -> None:
    async def work() -> None:
        holding, server, channels = _Holding(), grpc.aio.server(), Channels()
        cast(Any, log_pb2_grpc).add_LogServiceServicer_to_server(holding, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            calls, request = Calls(cast(Router, None)), log_pb2.RouteRequest()

            async def asking() -> asyncio.Task[Any]:
                holding.asked.clear()
                node = channels.get(address)
                task = asyncio.create_task(calls.once(node, "log", "Route", request, 30.0))
                await holding.asked.wait()
                return task

            task = await asking()
            await channels.keep_only(set())
            with pytest.raises(UnavailableError, match="closed") as caught:
                await task
            assert caught.value.outcome is Outcome.UNKNOWN
            assert caught.value.retryable

            task = await asking()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            await channels.close()
            await server.stop(None)

    asyncio.run(asyncio.wait_for(work(), 30.0))
