"""The name server over gRPC: what one failed question does to the others."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from node.nameserver.errors import ChangeUnknownError, NoQuorumError
from node.nameserver.remote import RemoteDirectory
from quorumlog.pb import nameserver_pb2 as pb
from quorumlog.pb import nameserver_pb2_grpc

LEADER = "127.0.0.1:1"
DEADLINE_S = 30.0


class Server(nameserver_pb2_grpc.NameServerServiceServicer):
    """Answers polls; holds commands until it may go on, or says nothing at all to anybody."""

    def __init__(self) -> None:
        self.holds, self.is_mute = asyncio.Event(), False
        self.may_answer = asyncio.Event()
        self.asked_count = 0

    async def Report(  # noqa: N802 - gRPC's name.
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportResponse:
        self.asked_count += 1
        if request.command and not self.may_answer.is_set():
            self.holds.set()
            await self.may_answer.wait()
        elif self.is_mute:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no leader")
        result = b'[true, "", "", {}]'
        return pb.ReportResponse(leader=LEADER, result=result if request.command else b"")


async def started(server: Server) -> tuple[grpc.aio.Server, str]:
    found = grpc.aio.server()
    cast(Any, nameserver_pb2_grpc).add_NameServerServiceServicer_to_server(server, found)
    port = found.add_insecure_port("127.0.0.1:0")
    await found.start()
    return found, f"127.0.0.1:{port}"


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def test_a_question_that_fails_ends_no_other_one() -> None:
    """They share a connection. The one that was held must get its answer."""

    async def work() -> None:
        server = Server()
        grpc_server, address = await started(server)
        remote = RemoteDirectory([address], "g0", 100)
        try:
            held = asyncio.create_task(remote.change({"op": "x"}, timeout_ms=20_000))
            await server.holds.wait()
            server.is_mute = True
            with pytest.raises(NoQuorumError):
                await remote._ask(None, 5_000)
            assert remote.failure_count == 1
            server.may_answer.set()
            assert (await held).is_accepted
            server.is_mute = False
            assert (await remote.change({"op": "y"})).is_accepted, "the next one is new"
            assert remote.leader == LEADER
        finally:
            await remote.close()
            await grpc_server.stop(None)

    run(work())


def test_polling_goes_on_whatever_fails_beside_it() -> None:
    """A broker that asks no more is unknown for ever."""

    async def work() -> None:
        server = Server()
        grpc_server, address = await started(server)
        remote = RemoteDirectory([address, address], "g0", 10)
        poll = asyncio.create_task(remote.run())
        try:
            for _ in range(20):
                with pytest.raises(ChangeUnknownError):
                    await remote.change({"op": "x"}, timeout_ms=30)
            server.may_answer.set()
            before = server.asked_count
            while server.asked_count < before + 3 or remote.leader != LEADER:
                assert not poll.done(), "it ended"
                await asyncio.sleep(0.01)
        finally:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await remote.close()
            await grpc_server.stop(None)

    run(work())
