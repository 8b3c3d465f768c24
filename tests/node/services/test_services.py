"""gRPC calls against a real server: errors and their trailer, bad input, limits, health."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from node.config.types import Address
from node.errors.common import NodeError, NotLeaderError
from node.errors.delay import DelayTooLongError
from node.errors.translation import ERROR_TRAILER
from node.runtime.accounts import Accounts
from node.services.append_stream import WINDOW_COUNT_MAX, AppendStream
from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from node.services.calls import BothStreams, ServedCalls, ServerStream, Unary
from node.services.server import GrpcServer, PortTakenError
from quorumlog.cluster.channels import stub
from quorumlog.pb import common_pb2, log_pb2
from store.errors import StoreFullError, SyncFailedError
from tests.patience import eventually

LOG_SERVICE = log_pb2.DESCRIPTOR.services_by_name["LogService"]
ROUTE = "LogService/Route"


class Served:
    """A server whose methods a test gives, and a client of it."""

    def __init__(self) -> None:
        self.fatal: list[BaseException] = []
        self.calls = ServedCalls(self.fatal.append)
        self.methods: dict[str, Unary | ServerStream | BothStreams] = dict.fromkeys(
            LOG_SERVICE.methods_by_name, _not_given
        )
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        """Serve, and connect."""
        self.server = GrpcServer(Accounts())
        self.port = self.server.bind(Address("127.0.0.1", 0))
        await self.server.start({LOG_SERVICE: self.calls.handler(LOG_SERVICE, self.methods)})
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as self.channel:
                yield stub(self.channel, log_pb2.DESCRIPTOR)
        finally:
            await self.server.stop(0)


def _must_not_die(error: BaseException) -> None:
    raise AssertionError("nothing here is fatal") from error


async def _not_given(_request: object) -> object:
    raise NotImplementedError("the test does not need it")


def raising(error: BaseException) -> Unary:
    """A method that fails."""

    async def method(_request: object) -> object:
        raise error

    return method


async def refused(call: Awaitable[object], status: str) -> common_pb2.Error:
    """The typed error of a call that ends with a status, whose text is that of the error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode[status]
    (trailer,) = [value for key, value in caught.value.trailing_metadata() if key == ERROR_TRAILER]
    error = common_pb2.Error.FromString(trailer)
    assert caught.value.details() == error.message
    return error


def naming(numbers: Iterable[int], error: NodeError) -> NodeError:
    """The error of a batch in which these records are at fault."""
    error.faulty_records = tuple(numbers)
    return error


NOT_APPLIED = common_pb2.OUTCOME_NOT_APPLIED
FAULTY = naming(range(1_000), DelayTooLongError(2, 1))
LEADER: dict[str, Any] = {"leader_id": 2, "leader_address": "127.0.0.1:4711", "retryable": True}


@pytest.mark.parametrize(
    ("error", "status", "code", "fields"),
    [
        (NotLeaderError(2, "127.0.0.1:4711"), "UNAVAILABLE", "node.not_leader", LEADER),
        (
            StoreFullError("log", 4096, 512), "RESOURCE_EXHAUSTED", "store.full",
            {"retryable": True, "retry_after_ms": 50},
        ),
        (FAULTY, "INVALID_ARGUMENT", "node.delay_too_long", {"faulty_records": range(1_000)}),
        (KeyError("x"), "INTERNAL", "node.internal", {"outcome": common_pb2.OUTCOME_UNKNOWN}),
    ],
)  # fmt: skip
async def test_an_error_is_a_status_and_a_typed_trailer(
    error: Exception, status: str, code: str, fields: dict[str, Any]
) -> None:
    expected = common_pb2.Error(code=code, **{"outcome": NOT_APPLIED, **fields})
    served = Served()
    served.methods["Route"] = raising(error)
    async with served.running() as stub:
        error_pb = await refused(stub.Route(log_pb2.RouteRequest()), status)
        assert error_pb.message
        error_pb.message = ""
        assert error_pb == expected
        assert served.calls.counters.failed[ROUTE, expected.code] == 1
        # The client may have the status before the server has left the call.
        await eventually(lambda: served.calls.counters.open_count == 0, "the call is left")
        assert served.fatal == []
    error.__traceback__ = None  # It outlives the test, and would keep the server.


@pytest.mark.parametrize("error", [AssertionError("offset 3 > 2"), SyncFailedError("log", 5)])
async def test_a_broken_invariant_is_handed_on_and_no_answer_says_it_is_well(
    error: Exception,
) -> None:
    served = Served()
    served.methods["Route"] = raising(error)
    async with served.running() as stub:
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Route(log_pb2.RouteRequest())
        assert served.fatal == [error]
    error.__traceback__ = None  # It outlives the test, and would keep the server.


async def test_bytes_that_are_no_request_are_a_bad_request() -> None:
    served = Served()
    async with served.running():
        call = served.channel.unary_unary("/quorumlog.v1.LogService/Pull")
        error = await refused(call(b"\xff\xff\xff"), "INVALID_ARGUMENT")
        assert error.code == "node.bad_request"
        assert "PullRequest" in error.message


async def test_a_request_over_the_limit_is_refused_and_the_largest_is_taken() -> None:
    async def append(request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        return log_pb2.AppendResponse(position=len(request.records))

    served = Served()
    served.methods["Append"] = append
    async with served.running() as stub:
        response = await stub.Append(log_pb2.AppendRequest(records=bytes(4 << 20)))
        assert response.position == 4 << 20
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Append(log_pb2.AppendRequest(records=bytes(REQUEST_SIZE_BYTES_MAX)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_before_the_node_serves_every_call_is_told_to_come_back() -> None:
    server, calls = GrpcServer(Accounts()), ServedCalls(_must_not_die)
    port = server.bind(Address("127.0.0.1", 0))
    await server.open([LOG_SERVICE])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        log = stub(channel, log_pb2.DESCRIPTOR)
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", LOG_SERVICE.full_name):
            response = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        stream = log.AppendStream()  # Nothing is sent on it.
        for call in (log.Route(log_pb2.RouteRequest()), stream.read()):
            error = await refused(call, "UNAVAILABLE")
            assert (error.code, error.retryable) == ("node.not_ready", True)
            assert error.outcome == common_pb2.OUTCOME_NOT_APPLIED
            assert "does not serve yet" in error.message

        async def route(_request: object) -> log_pb2.RouteResponse:
            return log_pb2.RouteResponse(node_id=7)

        methods = {**dict.fromkeys(LOG_SERVICE.methods_by_name, _not_given), "Route": route}
        await server.start({LOG_SERVICE: calls.handler(LOG_SERVICE, methods)})
        assert (await log.Route(log_pb2.RouteRequest())).node_id == 7
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/none/None")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)


async def test_a_stream_of_responses_ends_with_its_error() -> None:
    async def tail(request: log_pb2.TailRequest) -> AsyncIterator[log_pb2.PullResponse]:
        yield log_pb2.PullResponse(next_offset=request.offset + 1)
        raise NotLeaderError(3)

    served = Served()
    served.methods["Tail"] = tail
    async with served.running() as stub:
        call = stub.Tail(log_pb2.TailRequest(offset=7))
        assert (await call.read()).next_offset == 8
        error = await refused(call.read(), "UNAVAILABLE")
        assert (error.code, error.leader_id) == ("node.not_leader", 3)


# --- Append streams ---


def stream_method(served: Served, append: Any) -> BothStreams:
    """The method AppendStream over an append that a test gives."""

    def method(requests: AsyncIterator[Any]) -> AsyncIterator[log_pb2.AppendResponse]:
        stream = AppendStream(
            lambda request: asyncio.ensure_future(append(request)),
            lambda error: served.calls.failed("stream", error),
        )
        return stream.responses(requests)

    return method


async def test_a_stream_answers_in_order_whatever_ends_first_and_errors_take_their_place() -> None:
    served, turns = Served(), [asyncio.Event() for _ in range(5)]
    begun: list[int] = []

    async def append(request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        begun.append(request.sequence)
        await turns[request.sequence].wait()
        if request.sequence == 2:
            raise NotLeaderError(3)
        return log_pb2.AppendResponse(index=request.sequence)

    served.methods["AppendStream"] = stream_method(served, append)
    async with served.running() as stub:
        call = stub.AppendStream()
        for sequence in range(5):
            await call.write(log_pb2.AppendRequest(sequence=sequence, records=b"r"))
        for turn in reversed(turns):
            turn.set()
        responses = [await call.read() for _ in range(5)]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert begun == [0, 1, 2, 3, 4]
        assert [response.index for response in responses] == [0, 1, 0, 3, 4]
        codes = [response.error.code for response in responses]
        assert codes == ["", "", "node.not_leader", "", ""]
        assert served.calls.counters.failed["stream", "node.not_leader"] == 1


async def test_a_stream_reads_no_more_than_its_window() -> None:
    taken, release = 0, asyncio.Event()

    async def append(_request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        await release.wait()
        return log_pb2.AppendResponse()

    async def requests() -> AsyncIterator[log_pb2.AppendRequest]:
        nonlocal taken
        for _ in range(3 * WINDOW_COUNT_MAX):
            taken += 1
            yield log_pb2.AppendRequest(records=b"r")

    stream = AppendStream(lambda r: asyncio.ensure_future(append(r)), lambda _error: None)
    responses = stream.responses(requests())
    first = asyncio.ensure_future(anext(responses))
    for _ in range(10 * WINDOW_COUNT_MAX):
        await asyncio.sleep(0)
    assert taken == WINDOW_COUNT_MAX + 1
    release.set()
    await first
    assert sum([1 async for _ in responses]) == 3 * WINDOW_COUNT_MAX - 1


async def test_a_stream_takes_an_unreadable_request_in_its_turn() -> None:
    async def append(request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        return log_pb2.AppendResponse(index=request.sequence)

    served = Served()
    served.methods["AppendStream"] = stream_method(served, append)
    async with served.running():
        call = served.channel.stream_stream(
            "/quorumlog.v1.LogService/AppendStream",
            response_deserializer=log_pb2.AppendResponse.FromString,
        )()
        await call.write(b"\xff\xff\xff")
        await call.write(log_pb2.AppendRequest(sequence=1).SerializeToString())
        assert (await call.read()).error.code == "node.bad_request"
        assert (await call.read()).index == 1
        call.cancel()


async def test_a_client_that_goes_away_cancels_its_streams_and_their_appends() -> None:
    begun, ended = asyncio.Event(), list[str]()

    async def wait(name: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def append(_request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        await wait("append")
        raise AssertionError

    async def tail(_request: object) -> AsyncIterator[log_pb2.PullResponse]:
        yield log_pb2.PullResponse()
        await wait("tail")

    served = Served()
    served.methods.update(AppendStream=stream_method(served, append), Tail=tail)
    async with served.running() as stub:
        reading, writing = stub.Tail(log_pb2.TailRequest()), stub.AppendStream()
        await reading.read()
        await begun.wait()
        reading.cancel()
        await eventually(lambda: ended == ["tail"], "the end of the tail")
        begun.clear()
        await writing.write(log_pb2.AppendRequest(records=b"r"))
        await begun.wait()
        writing.cancel()
        await eventually(lambda: ended == ["tail", "append"], "the end of the append")


# --- The server ---


async def test_a_port_that_is_taken_is_said_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = GrpcServer(Accounts())
        with pytest.raises(PortTakenError, match="listen") as caught:
            server.bind(Address("127.0.0.1", taken.getsockname()[1]))
        assert caught.value.code == "node.port_taken"
        await server.stop(0)


async def test_health_follows_the_node_and_reflection_names_the_services() -> None:
    served = Served()
    async with served.running():
        health = health_pb2_grpc.HealthStub(served.channel)
        request = health_pb2.HealthCheckRequest(service="quorumlog.v1.LogService")
        status = health_pb2.HealthCheckResponse
        assert (await health.Check(request)).status == status.NOT_SERVING
        await served.server.set_serving(True)
        assert (await health.Check(request)).status == status.SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == status.SERVING

        reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {s.name for s in (await call.read()).list_services_response.service}
        assert "quorumlog.v1.LogService" in names
        call.cancel()
