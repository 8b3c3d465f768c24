"""The name server over gRPC: what one failed question does to the others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from node.errors.nameserver import ChangeUnknownError, NoQuorumError, UnprovenReportError
from node.errors.translation import ERROR_TRAILER, to_pb
from node.nameserver.directory.proofs import Challenges, Prover
from node.nameserver.remote import RemoteDirectory
from quorumlog.pb import nameserver_pb2 as pb
from tests import services
from tests.patience import eventually

LEADER = "127.0.0.1:1"
SECRET = b"0123456789abcdef"


class Server:
    """Answers polls; holds commands until it may go on, or says nothing at all to anybody."""

    def __init__(self) -> None:
        self.holds, self.is_mute = asyncio.Event(), False
        self.may_answer = asyncio.Event()
        self.asked_count = 0
        self.challenges: Challenges | None = None
        self.said: list[pb.ReportRequest] = []

    async def Report(  # noqa: N802 - gRPC's name.
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportResponse:
        self.asked_count += 1
        if request.command and not self.may_answer.is_set():
            self.holds.set()
            await self.may_answer.wait()
        elif self.is_mute:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no leader")
        challenges, challenge = self.challenges, b""
        if challenges is not None:
            challenge = challenges.current()
            try:
                if request.command:
                    challenges.check(request)
            except UnprovenReportError as error:
                trailer = (ERROR_TRAILER, to_pb(error).SerializeToString())
                context.set_trailing_metadata((trailer,))
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        self.said += [request] if request.command else []
        result = b'{"is_accepted": true}' if request.command else b""
        return pb.ReportResponse(leader=LEADER, result=result, challenge=challenge)


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Callable[..., RemoteDirectory]]:
    """A server that runs, and what makes directories which ask it; all of them end with it."""
    grpc_server = grpc.aio.server()
    services.add(grpc_server, pb.DESCRIPTOR, server)
    address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    await grpc_server.start()
    made = list[RemoteDirectory]()

    def remote_to(period_ms: int = 100, *, count: int = 1, **options: Any) -> RemoteDirectory:
        made.append(RemoteDirectory([address] * count, "g0", period_ms, **options))
        return made[-1]

    try:
        yield remote_to
    finally:
        for remote in made:
            await remote.close()
        await grpc_server.stop(None)


async def test_a_question_that_fails_ends_no_other_one() -> None:
    """They share a connection. The one that was held must get its answer."""

    server = Server()
    async with served(server) as remote_to:
        remote = remote_to()
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


async def test_polling_goes_on_whatever_fails_beside_it() -> None:
    """A broker that asks no more is unknown for ever."""

    server = Server()
    async with served(server) as remote_to:
        remote = remote_to(10, count=2)
        poll = asyncio.create_task(remote.run())
        for _ in range(20):
            with pytest.raises(ChangeUnknownError):
                await remote.change({"op": "x"}, timeout_ms=30)
        server.may_answer.set()
        before = server.asked_count

        def goes_on() -> bool:
            assert not poll.done(), "it ended"
            return server.asked_count >= before + 3 and remote.leader == LEADER

        await eventually(goes_on)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)


async def test_reports_are_proven_also_after_a_server_restart() -> None:
    server = Server()
    server.may_answer.set()
    server.challenges = Challenges(SECRET, "c")
    async with served(server) as remote_to:
        remote = remote_to(prover=Prover(SECRET, "c"))
        stranger, silent = remote_to(prover=Prover(b"another", "c")), remote_to()
        assert (await remote.change({"op": "x"})).is_accepted
        server.challenges = Challenges(SECRET, "c")  # Its old challenges are nobody's now.
        assert (await remote.change({"op": "y"})).is_accepted
        assert [one.command for one in server.said] == [b'{"op": "x"}', b'{"op": "y"}']
        for other in (stranger, silent):
            response = await other.change({"op": "z"})
            assert (response.is_accepted, response.reason) == (False, "unproven")
            assert "the same secret_file" in response.detail
        assert len(server.said) == 2
