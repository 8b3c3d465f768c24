"""Framed calls against a real broker: order, answers, errors, cancels, deadlines, the window."""

import asyncio
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf.message import Message

from node.config.limits import Limits
from node.framed.frames import Reason
from node.framed.limits import FramedLimits
from node.runtime.accounts import Kind, Limit
from quorumlog.pb import common_pb2, consumer_pb2, log_pb2, pop_pb2
from quorumlog.pb.log_pb2 import AppendRequest, PullRequest, TailRequest
from tests.node.delayed import delayed
from tests.node.framed.clients import (
    ACK,
    APPEND,
    AUTHENTICATE,
    CANCEL,
    COMMIT,
    ERROR,
    FETCH,
    HEARTBEAT,
    MORE,
    PULL,
    RECEIVE,
    RESPONSE,
    ROUTE,
    TAIL,
    AsyncFramedClient,
    frame,
    request,
)
from tests.node.framed.servers import Served, append, put, served
from tests.patience import eventually
from tests.store.records import batch, messages, numbers

pytestmark = pytest.mark.parametrize("loop", ["uvloop"])
UNKNOWN, NOT_APPLIED = common_pb2.OUTCOME_UNKNOWN, common_pb2.OUTCOME_NOT_APPLIED


def pull(opaque: int, *, timeout_ms: int = 0, **fields: Any) -> bytes:
    message = PullRequest(**{"topic": "orders", **fields}).SerializeToString()
    return request(PULL, opaque, message, timeout_ms=timeout_ms)


# --- Appends ---


async def test_an_append_is_refused_with_the_error_of_grpc(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        it.node.driver.lose(leader_id=2)
        client.send(append(1, 0, 1))
        error = (await client.read()).error
        assert (error.code, error.retryable) == ("node.not_leader", True)
        assert (error.outcome, error.leader_id) == (NOT_APPLIED, 2)
        assert error.leader_address == "host2:8082"
        it.node.driver.lead()
        await put(client, 1, 0, 1)
        client.send(request(APPEND, 1, AppendRequest(record_count=1).SerializeToString(), b"junk"))
        error = (await client.read()).error
        assert (error.code, error.outcome) == ("store.record_format", NOT_APPLIED)
        client.send(request(APPEND, 1, AppendRequest(record_count=1).SerializeToString()))
        assert (await client.read()).error.code == "node.bad_request"
        bad = bytearray(batch(1, 2))
        bad[bad.index(b"." * 8)] = ord("!")
        message = AppendRequest(record_count=4).SerializeToString()
        error = (await client.call(APPEND, 1, message, (batch(0, 1) + bad) * 2)).error
        assert (error.code, error.outcome) == ("store.record_format", NOT_APPLIED)
        assert list(error.faulty_records) == [1, 3]
        assert it.append_count == 1


async def test_batches_of_features_find_their_records(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        late = delayed(0, DELAY="3")
        message = AppendRequest(record_count=1, has_delayed=True).SerializeToString()
        receipt = (await client.call(APPEND, 1, message, late)).append()
        assert receipt.due_unix_ms[0] > 0
        half = log_pb2.AppendRequest(record_count=1)
        half.transaction.producer_group = "producers"
        receipt = (await client.call(APPEND, 2, half.SerializeToString(), batch(0, 1))).append()
        assert receipt.record_count == 1
        offsets = AppendRequest(record_count=1)
        offsets.consumed.group = "g"
        offsets.consumed.offsets.add(topic="orders", queue_id=0, expected=-1, offset=0)
        response = await client.call(APPEND, 3, offsets.SerializeToString(), batch(0, 1))
        assert response.append().record_count == 1


async def test_a_client_that_is_gone_leaves_its_batch_in_the_log(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        client.send(append(1, 0, 2))
        await eventually(lambda: it.append_count == 1, "the append")
        client.close()
        await eventually(lambda: it.server.connections.count == 0, "the end")
        it.node.driver.release()
        await eventually(lambda: it.call_count == 0, "the end of the append")
        other = await it.client()
        other.send(pull(1))
        assert numbers((await other.read()).body) == [0, 1]


async def test_appends_of_one_address_leave_others_room_to_wait(tmp_path: Path) -> None:
    limits = replace(Limits(), in_flight_count_max=1, parked_append_count_max=4)
    async with served(tmp_path, limits_of_broker=limits) as it:
        it.node.driver.is_holding = True
        many = await it.client(local_addr=("127.0.0.2", 0))
        # One under way, one that waits before it is known that any do, half of the four, one more.
        many.send(b"".join(append(n, n, n + 1) for n in range(5)))
        error = (await many.read()).error
        assert "waiting appends of 127.0.0.2" in error.message
        other = await it.client()
        other.send(append(9, 5, 6))
        await eventually(lambda: len(it.node.broker.produce.parked) == 4, "the one of the other")
        it.node.driver.release()
        assert (await other.read()).append().record_count == 1


async def test_answers_of_one_turn_are_one_write(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        client.send(b"".join(append(n, n, n + 1) for n in range(50)))
        await eventually(lambda: it.append_count == 50, "the appends")
        (connection,) = it.server.connections.all
        transport: Any = connection._transport
        connection._transport = Mock(wraps=transport)
        it.node.driver.release()
        for _ in range(50):
            (await client.read()).append()
        # The last one is alone, and may leave at once.
        assert connection._transport.write.call_count <= 2
        connection._transport = transport


# --- Other methods ---


async def test_every_method_answers(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()

        async def call(method: int, sent: Message, kind: Any) -> tuple[Any, bytes]:
            response = await client.call(method, method, sent.SerializeToString())
            assert response.flags == RESPONSE, common_pb2.Error.FromString(response.message)
            return kind.FromString(response.message), response.body

        await put(client, 1, 0, 3)
        route, body = await call(
            ROUTE, log_pb2.RouteRequest(topics=["orders"]), log_pb2.RouteResponse
        )
        assert (route.framed_address, route.topics[0].queue_count, body) == (":4711", 4, b"")
        beat = consumer_pb2.HeartbeatRequest(group="g", client_id="c", topics=["orders"])
        answer, _ = await call(HEARTBEAT, beat, consumer_pb2.HeartbeatResponse)
        assert list(answer.client_ids) == ["c"]
        commit = consumer_pb2.CommitOffsetsRequest(group="g")
        commit.offsets.add(topic="orders", queue_id=0, offset=2)
        await call(COMMIT, commit, consumer_pb2.CommitOffsetsResponse)
        request = consumer_pb2.FetchOffsetsRequest(group="g")
        answer, _ = await call(FETCH, request, consumer_pb2.FetchOffsetsResponse)
        assert [(row.topic, row.offset) for row in answer.offsets] == [("orders", 2)]
        receive = pop_pb2.ReceiveRequest(group="p", topic="orders", queue_id=0, max_count=2)
        taken, body = await call(RECEIVE, receive, pop_pb2.ReceiveResponse)
        assert (taken.records, numbers(body)) == (b"", [0, 1])
        handles = [one.handle for one in taken.deliveries]
        ack = pop_pb2.AckRequest(group="p", topic="orders", handles=handles)
        await call(ACK, ack, pop_pb2.AckResponse)


async def test_appends_return_receipts_and_a_pull_has_their_records_and_entries(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        client.send(append(1, 0, 2) + append(2, 2, 3))
        receipts = [(await client.read()).append() for _ in range(2)]
        assert {receipt.durability for receipt in receipts} == {common_pb2.DURABILITY_QUORUM_MEMORY}
        assert not receipts[0].HasField("error")
        (queue,) = receipts[1].queues
        assert (queue.topic, queue.first_offset, queue.count) == ("orders", 2, 1)
        client.send(pull(3, with_entries=True))
        answer = await client.read()
        response = answer.pull()
        assert (response.records, response.record_count, response.next_offset) == (b"", 3, 3)
        assert numbers(answer.body) == [0, 1, 2]
        assert list(response.entry_first_records) == [0, 2]
        assert list(response.entry_indexes) == [receipt.index for receipt in receipts]


@pytest.mark.parametrize("body", [b"x", batch(5, 6), bytes(100_000)], ids=["x", "records", "large"])
@pytest.mark.parametrize("timeout_ms", [0, 20_000])
async def test_a_body_where_none_belongs_is_refused_and_nothing_is_done(
    tmp_path: Path, body: bytes, timeout_ms: int
) -> None:
    commit = consumer_pb2.CommitOffsetsRequest(group="g")
    commit.offsets.add(topic="orders", queue_id=0, offset=1)
    beat = consumer_pb2.HeartbeatRequest(group="g", client_id="c", topics=["orders"])
    requests: dict[int, Message] = {
        PULL: PullRequest(topic="orders"),
        TAIL: TailRequest(topic="orders"),
        COMMIT: commit,
        FETCH: consumer_pb2.FetchOffsetsRequest(group="g"),
        ACK: pop_pb2.AckRequest(group="p", topic="orders", handles=["no handle"]),
        HEARTBEAT: beat,
        ROUTE: log_pb2.RouteRequest(topics=["orders"]),
        RECEIVE: pop_pb2.ReceiveRequest(group="p", topic="orders", queue_id=0, max_count=2),
    }
    async with served(tmp_path) as it:
        client = await it.client()
        await put(client, 1, 0, 3)
        appends = it.append_count
        for method, sent in requests.items():
            for message in (sent.SerializeToString(), b"\xff" * 20):
                response = await client.call(method, 7, message, body, timeout_ms=timeout_ms)
                assert (response.error.code, response.body) == ("node.bad_request", b"")
                assert (response.error.outcome, response.error.retryable) == (NOT_APPLIED, False)
                assert f"body is {len(body)} bytes, expected none" in response.error.message
        assert (it.append_count, it.closed) == (appends, {})
        assert it.failed == {"node.bad_request": 2 * len(requests)}
        fetch = consumer_pb2.FetchOffsetsRequest(group="g")
        assert not (await it.node.broker.groups.fetch_offsets(fetch)).offsets


async def test_calls_that_make_no_sense_are_refused_and_the_connection_lives_on(
    tmp_path: Path,
) -> None:
    deep = b""
    for _ in range(150):  # A group within a group, in a field that no message has.
        deep = b"\xbb\x06" + deep + b"\xbc\x06"
    async with served(tmp_path) as it:
        client = await it.client()
        for method in range(APPEND, AUTHENTICATE + 1):
            for message in (b"\xff" * 20, b"\x0a\xff", deep):
                error = (await client.call(method, 1, message)).error
                assert (error.code, error.outcome) == ("node.bad_request", NOT_APPLIED)
        for method in (0, AUTHENTICATE + 1, 255):
            error = (await client.call(method, 1, b"\xff" * 9, b"body")).error
            assert (error.code, error.outcome) == ("node.unimplemented", NOT_APPLIED)
            assert str(method) in error.message
        await put(client, 1, 0, 1)


async def test_a_tail_goes_on_until_it_is_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        await put(client, 1, 0, 2)
        client.send(request(TAIL, 7, TailRequest(topic="orders").SerializeToString()))
        first = await client.read()
        assert (first.method, first.flags, first.opaque) == (TAIL, RESPONSE | MORE, 7)
        assert numbers(first.body) == [0, 1]
        assert first.pull().record_count == 2
        client.send(append(8, 2, 3))
        frames_by_method = {one.method: one for one in [await client.read(), await client.read()]}
        assert numbers(frames_by_method[TAIL].body) == [2]
        client.send(request(TAIL, 7, flags=CANCEL))
        await eventually(lambda: it.call_count == 0, "the end of the tail")
        await put(client, 7, 3, 4)  # The opaque is free, and no answer to the tail comes.


async def test_a_tail_ends_with_an_error_without_more(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        client.send(request(TAIL, 7, TailRequest(topic="nothing").SerializeToString()))
        assert (await client.read()).error.code == "node.unknown_topic"
        client.send(request(TAIL, 7, TailRequest(topic="orders").SerializeToString()))
        await eventually(lambda: it.node.broker.parked.readers.used == 1, "the tail")
        it.node.driver.lose()
        assert (await client.read()).error.code == "node.not_leader"


# --- Cancels and deadlines ---


async def test_a_cancelled_call_has_no_answer_and_frees_its_opaque(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        it.node.driver.is_holding = True
        client.send(pull(1, wait_ms=20_000) + append(2, 0, 1))
        await eventually(lambda: it.append_count == 1, "the append")
        client.send(request(PULL, 1, flags=CANCEL) + request(APPEND, 2, flags=CANCEL))
        client.send(request(ROUTE, 1) + append(2, 1, 2))
        assert (await client.read()).method == ROUTE
        it.node.driver.release()
        response = await client.read()
        assert response.append().queues[0].first_offset == 1  # The first batch stays.
        client.send(request(ROUTE, 3))
        assert (await client.read()).opaque == 3


async def test_an_append_that_fails_as_it_is_cancelled_ends_no_process(tmp_path: Path) -> None:
    """Its error has no reader, and the loop must not take it for a defect: nodes end by those."""
    async with served(tmp_path) as it:
        it.node.driver.lose()
        client, other = await it.client(), await it.client()
        client.send((append(1, 0, 1) + request(APPEND, 1, flags=CANCEL)) * 50)
        other.send((append(1, 0, 1) + request(APPEND, 1, flags=CANCEL)) * 50 + b"\xff" * 8)
        assert await other.read_to_the_end() == b""
        client.send(request(ROUTE, 2))
        assert (await client.read()).method == ROUTE
        it.node.driver.lead()
        it.node.driver.is_holding = True
        client.send(append(3, 0, 1))
        await appended(it, 1)
        it.node.driver.decide(0)
        client.close()
        await eventually(lambda: it.call_count == 0, "the end of all")
        gc.collect()


async def test_calls_end_at_the_deadline_of_their_client(tmp_path: Path) -> None:
    tail = TailRequest(topic="orders").SerializeToString()
    commit = consumer_pb2.CommitOffsetsRequest(group="g")
    commit.offsets.add(topic="orders", queue_id=0, offset=0)
    async with served(tmp_path) as it:
        client = await it.client()
        client.send(pull(1, wait_ms=20_000, timeout_ms=15))
        client.send(request(TAIL, 2, tail, timeout_ms=20))
        for _ in range(2):
            error = (await client.read()).error
            assert (error.code, error.outcome) == ("node.read_timeout", NOT_APPLIED)
        it.node.driver.is_holding = True
        client.send(request(COMMIT, 1, commit.SerializeToString(), timeout_ms=20))
        error = (await client.read()).error
        assert (error.code, error.outcome) == ("node.timeout", UNKNOWN)
        client.send(append(1, 0, 1, timeout_ms=20))
        error = (await client.read()).error
        assert (error.code, error.outcome, error.retryable) == ("node.timeout", UNKNOWN, True)
        assert "20 ms" in error.message
        client.send(append(1, 0, 1, timeout_ms=20_000) + append(2, 0, 1, timeout_ms=15))
        assert (await client.read()).opaque == 2
        it.node.driver.release()
        assert (await client.read()).opaque == 1


# --- Faults: the node sends nothing more, closes and counts ---

ORDERS = AppendRequest(record_count=1).SerializeToString()
FAULTS = {
    Reason.HEADER: [
        frame(0x51, b""),
        frame(0x51, b"\x01" * 11),
        request(APPEND, 1, ORDERS, batch(0, 1), reserved=1),
        request(APPEND, 1, ORDERS, batch(0, 1), reserved=0x8000),
    ],
    Reason.FLAGS: [
        request(APPEND, 1, ORDERS, batch(0, 1), flags=RESPONSE),
        request(APPEND, 1, ORDERS, batch(0, 1), flags=ERROR),
        request(APPEND, 1, ORDERS, batch(0, 1), flags=MORE),
        request(APPEND, 1, ORDERS, batch(0, 1), flags=16),
        request(APPEND, 1, flags=CANCEL | RESPONSE),
        request(APPEND, 1, b"x", flags=CANCEL),
        request(APPEND, 1, b"", b"x", flags=CANCEL),
    ],
    Reason.RECORDS: [
        request(APPEND, 1, AppendRequest(record_count=1, records=batch(0, 1)).SerializeToString()),
        request(
            APPEND,
            1,
            AppendRequest(record_count=1, records=batch(0, 1)).SerializeToString(),
            batch(0, 1),
        ),
    ],
    Reason.LENGTH: [b"\x00\x00\x00\x03\x51\x00\x00\x00", b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n"],
    Reason.ROCKETMQ: [frame(0, b'{"code":105}'), frame(1, b"\x00" * 21)],
    Reason.KIND: [frame(2, b"x"), frame(0xFF, b"x")],
}


@pytest.mark.parametrize(
    ("reason", "data"), [(reason, data) for reason, all_ in FAULTS.items() for data in all_]
)
async def test_a_fault_closes_the_connection_and_does_nothing(
    tmp_path: Path, reason: Reason, data: bytes
) -> None:
    async with served(tmp_path) as it:
        client, other = await it.client(), await it.client()
        client.send(data + append(2, 5, 6))
        assert await client.read_to_the_end() == b""
        assert it.closed == {reason: 1}
        assert it.append_count == 0
        await put(other, 1, 0, 1)


async def test_an_opaque_under_way_is_not_used_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.node.driver.is_holding = True
        for first in (append(1, 0, 1), pull(1, wait_ms=20_000, offset=9)):
            client = await it.client()
            client.send(first + append(1, 1, 2))
            assert await client.read_to_the_end() == b""
        assert it.closed == {Reason.OPAQUE: 2}
        assert it.append_count == 1
        it.node.driver.release()


async def test_calls_before_a_fault_are_carried_out(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        client.send(append(1, 0, 1) + request(APPEND, 2, reserved=1))
        await client.read_to_the_end()
        await eventually(lambda: it.node.broker.produce.records_total == 1, "the append")


# --- Limits ---


async def appended(it: Served, count: int) -> None:
    await eventually(lambda: it.append_count == count, f"{count} appends")


async def append_all(client: AsyncFramedClient, count: int) -> None:
    client.send(b"".join(append(n, n, n + 1) for n in range(count)))


@pytest.mark.parametrize("is_by_size", [True, False])
async def test_the_node_stops_reading_above_the_window(tmp_path: Path, is_by_size: bool) -> None:
    size_bytes = len(batch(0, 1))
    limits = (
        FramedLimits(window_size_bytes_max=4 * size_bytes)
        if is_by_size
        else FramedLimits(window_count_max=4)
    )
    async with served(tmp_path, limits=limits) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        await append_all(client, 30)
        await eventually(lambda: it.append_count == 4, "a full window")
        (connection,) = it.server.connections.all
        assert connection.is_held()
        for count in (5, 6, 7):
            it.node.driver.commit(1)
            assert (await client.read()).append().record_count == 1
            await appended(it, count)
        it.node.driver.release()
        for _ in range(27):
            (await client.read()).append()
        assert not connection.is_held()
        assert it.append_count == 30


async def test_a_batch_larger_than_the_window_is_taken(tmp_path: Path) -> None:
    async with served(tmp_path, limits=FramedLimits(window_size_bytes_max=1)) as it:
        client = await it.client()
        await append_all(client, 5)
        for _ in range(5):
            (await client.read()).append()


async def test_calls_of_a_connection_and_of_the_port_are_limited(tmp_path: Path) -> None:
    held = {Kind.CALLS: Limit("calls under way", 16, connection_part=3)}
    async with served(tmp_path, held=held) as it:
        first, second = await it.client(), await it.client()
        first.send(b"".join(pull(n, wait_ms=20_000) for n in range(7)))
        busy = [await first.read() for _ in range(2)]
        assert {response.opaque for response in busy} == {5, 6}
        assert [response.error.code for response in busy] == ["node.busy"] * 2
        assert "calls under way of one connection" in busy[0].error.message
        second.send(b"".join(pull(n, wait_ms=20_000) for n in range(4)))
        response = await second.read()
        assert (response.opaque, response.error.code) == (3, "node.busy")
        assert it.call_count == 8
        first.send(append(50, 0, 1))
        assert (await first.read()).error.code == "node.busy"
        first.send(request(PULL, 0, flags=CANCEL))
        await eventually(lambda: it.call_count == 7, "a free call")
        first.send(append(50, 0, 1))
        answers = [await first.read() for _ in range(5)]
        assert {answer.opaque for answer in answers} == {1, 2, 3, 4, 50}


async def test_frames_of_one_turn_are_limited(tmp_path: Path) -> None:
    """Frames of one turn are limited, and the rest of them waits without being read again."""
    async with served(tmp_path, limits=FramedLimits(turn_frame_count_max=3)) as it:
        client = await it.client()
        client.send(request(ROUTE, 1, flags=CANCEL) * 500 + append(1, 0, 1))
        assert (await client.read()).append().record_count == 1
        client.send(b"".join(append(n, n, n + 1) for n in range(100)))
        receipts = {r.opaque: r.append() for r in [await client.read() for _ in range(100)]}
        assert [receipts[n].queues[0].first_offset for n in range(100)] == list(range(1, 101))


# --- Start and stop ---


async def test_a_node_that_does_not_serve_yet_says_so(tmp_path: Path) -> None:
    async with served(tmp_path, is_open=False) as it:
        client = await it.client()
        for n, method in enumerate((APPEND, PULL, TAIL, ROUTE, 77)):
            error = (await client.call(method, n)).error
            assert (error.code, error.retryable) == ("node.not_ready", True)
        it.server.calls.open(it.node.broker)
        await put(client, 1, 0, 1)


async def test_a_stop_lets_calls_end_and_refuses_new_ones(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        client.send(append(1, 0, 1))
        await eventually(lambda: it.append_count == 1, "the append")
        stopping = asyncio.create_task(it.server.stop(20_000))
        await eventually(lambda: not it.server._listeners, "the stop")
        with pytest.raises(ConnectionRefusedError):
            await it.client()
        client.send(append(2, 1, 2))
        assert (await client.read()).error.code == "node.shutting_down"
        it.node.driver.release()
        assert (await client.read()).append().record_count == 1
        await stopping
        assert await client.read_to_the_end() == b""
        assert it.append_count == 1


async def test_a_stop_without_grace_ends_all_calls(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.node.driver.is_holding = True
        client = await it.client()
        client.send(append(1, 0, 1) + pull(2, wait_ms=20_000))
        await eventually(lambda: it.call_count == 2, "the calls")
        await it.server.stop(0)
        assert await client.read_to_the_end() == b""
        await it.server.stop(0)
        it.node.driver.release()


async def test_an_append_that_meets_a_defect_is_told_so(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()

        def fail(_request: object, _records: object, _caller: object) -> Any:
            raise KeyError("x")

        it.server.calls.append_nowait = fail
        client.send(append(1, 0, 1))
        error = (await client.read()).error
        assert (error.code, error.outcome) == ("node.internal", UNKNOWN)
        it.server.calls.served.counters.failed.clear()
        it.server.calls.open(it.node.broker)
        client.send(append(1, 0, 1))
        receipt = (await client.read()).append()
        assert len(messages(batch(0, 1))) == receipt.record_count
