"""A single message on the straight way: what it costs, and that it is like the general way."""

import asyncio
import cProfile
import pstats
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

import quorumlog
from quorumlog import errors
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.produce.append_stream import Sender
from store.record.message import decode_message
from tests.loopback import HOST
from tests.patience import eventually
from tests.quorumlog.fake_cluster import (
    BREAK_AFTER,
    BREAK_BEFORE,
    FakeCluster,
    error,
    fake_cluster,
    port_of,
    threaded_cluster,
)
from tests.quorumlog.fake_frames import RESPONSE, ROUTE, Context, frame
from tests.seeds import examples

CALLS_MAX = 80
"""The budget of issue 20: calls of the interpreter for one message, from send to receipt."""
SENT_COUNT = 200


def test_a_single_message_costs_few_calls_from_send_to_receipt() -> None:
    async def call_count() -> float:
        async with quorumlog.connect(cluster.bootstrap) as client:
            producer = client.producer()
            for _ in range(3):  # The way there: leader, topic, connection.
                await producer.send("orders", b"warm")
            profile = cProfile.Profile()
            profile.enable()
            for _ in range(SENT_COUNT):
                await producer.send("orders", b"counted")
            profile.disable()
        stats: Any = pstats.Stats(profile)
        return float(stats.total_calls) / SENT_COUNT

    with threaded_cluster(1) as cluster:  # Calls of other threads are not counted.
        assert uvloop.run(call_count()) <= CALLS_MAX


# The same script over both ways.

Step = tuple[str, dict[str, Any]]

ACTIONS: dict[str, Any] = {
    "stored": None,
    "broken before": BREAK_BEFORE,
    "broken after": BREAK_AFTER,
    "busy": error("node.busy", retryable=True),
    "not leader": error("node.not_leader", retryable=True, leader_id=1),
    "refused": error("node.bad_request"),
    "refused topic": error("node.topic_not_writable"),
    "in the log": error("node.internal", outcome=common_pb2.OUTCOME_APPLIED),
    "in doubt": error("node.not_applied", retryable=True, outcome=common_pb2.OUTCOME_UNKNOWN),
    "unknown producer": error("node.unknown_producer"),
    "out of sequence": error("node.out_of_sequence", retryable=True),
}
OPTIONS: list[dict[str, Any]] = [
    {"queue_id": 1},
    {"key": "k1"},
    {"key": "k1", "tag": "t", "properties": {"a": "b"}, "flag": 5},
    {"message_group": "m"},
    {"queue_id": 9},  # There are four.
    {"topic": "bills"},
    {"topic": "none"},
]
STEPS = st.lists(st.tuples(st.sampled_from(list(ACTIONS)), st.sampled_from(OPTIONS)), max_size=12)


@asynccontextmanager
async def producing(
    *, is_straight: bool, is_idempotent: bool
) -> AsyncIterator[tuple[FakeCluster, quorumlog.Producer]]:
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise the first queue of each producer is drawn.
        patch.setattr("quorumlog.produce.append_stream.secrets.randbelow", lambda _: 0)
        if not is_straight:
            patch.setattr(Sender, "clear_route", lambda *_: None)
        async with fake_cluster(1) as cluster, quorumlog.connect(cluster.bootstrap) as client:
            cluster.topics["bills"] = 2
            yield cluster, client.producer(idempotent=is_idempotent)


async def run_script(
    steps: list[Step], *, is_straight: bool, is_idempotent: bool
) -> tuple[list[Any], list[Any]]:
    """Send one message a step; return receipts and errors, and what the node got."""
    made = {"is_straight": is_straight, "is_idempotent": is_idempotent}
    async with producing(**made) as (cluster, producer):
        results: list[Any] = []
        got: list[Any] = []
        ids: dict[int, int] = {}

        async def note(request: log_pb2.AppendRequest) -> None:
            records = [decode_message(request.records)]
            rest = log_pb2.AppendRequest()
            rest.CopyFrom(request)
            rest.records, rest.timeout_ms = b"", 0
            rest.producer_id = ids.setdefault(request.producer_id, len(ids))
            got.append(
                (rest, [(m.topic, m.queue_id, m.body, m.properties, m.flag) for m in records])
            )

        def scripted(action: Any) -> Callable[[Any, Any], Awaitable[Any]]:
            async def act(_: Any, request: log_pb2.AppendRequest) -> Any:
                await note(request)
                return action

            return act

        await producer.send("orders", b"first", queue_id=0)  # From here on the way is straight.
        for number, (name, given_options) in enumerate(steps):
            options = dict(given_options)
            topic = options.pop("topic", "orders")
            cluster.script.extend([scripted(ACTIONS[name]), *[scripted(None)] * 8])
            try:
                receipt = await producer.send(topic, b"%d" % number, **options)
                fields = receipt.to_dict()
                del fields["sent_unix_ms"], fields["duration_ms"]
                results.append(fields)
            except errors.QuorumlogError as failed:
                results.append((type(failed), failed.code, failed.outcome, failed.attempts))
            cluster.script.clear()
        stats = producer.stats()
        counts = (stats.acked_count, stats.failed_count, stats.retried_batches, stats.batches_acked)
        return [*results, counts, stats.held_size_bytes], got


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None)
@given(steps=STEPS, is_idempotent=st.booleans())
def test_the_straight_way_has_the_results_of_the_general_one(
    steps: list[Step], is_idempotent: bool
) -> None:
    """Receipts, errors, counts, and every request that the node got are the same."""

    def run(is_straight: bool) -> tuple[list[Any], list[Any]]:
        return asyncio.run(run_script(steps, is_straight=is_straight, is_idempotent=is_idempotent))

    assert run(True) == run(False)


async def test_many_messages_at_once_share_a_batch_after_single_ones_as_well() -> None:
    async with fake_cluster(1) as cluster, quorumlog.connect(cluster.bootstrap) as client:
        producer = client.producer()
        for i in range(10):
            await producer.send("orders", b"%d" % i)
        for batches_max in (2, 3):  # The first of the many takes the straight way at first.
            await asyncio.gather(*(producer.send("orders", b"x") for _ in range(50)))
            assert len(cluster.entries) <= 10 + batches_max
        await producer.send("orders", b"x", delay=1)
        await producer.send("orders", b"x", broker_group="")
        assert producer.stats().held_size_bytes == 0


async def test_a_sender_that_goes_away_leaves_its_message_on_its_way() -> None:
    async with fake_cluster(1) as cluster, quorumlog.connect(cluster.bootstrap) as client:
        producer = client.producer()
        await producer.send("orders", b"0", queue_id=0)
        cluster.nodes[1].gate.clear()
        sending = asyncio.create_task(producer.send("orders", b"1", queue_id=0))
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        cluster.nodes[1].gate.set()
        await producer.flush()
        assert cluster.bodies() == [b"0", b"1"]
        assert producer.stats().acked_count == 2


async def test_answers_in_any_order_make_receipts_in_the_order_of_the_batches() -> None:
    """A node may answer appends as they become durable; each batch gets its own answer."""
    held: list[tuple[int, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = 0
        while size := await reader.read(4):
            request = await reader.readexactly(int.from_bytes(size, "big"))
            header = int.from_bytes(request[1:4], "big")
            (opaque,) = struct.unpack_from(">I", request, 8)
            if request[4] == ROUTE:
                route = await node.Route(log_pb2.RouteRequest(), Context())
                writer.write(frame(ROUTE, RESPONSE, opaque, route.SerializeToString()))
                continue
            append = log_pb2.AppendRequest.FromString(request[16 : 4 + header])
            answer = log_pb2.AppendResponse(record_count=append.record_count, position=opaque)
            answer.queues.add(topic="orders", queue_id=0, first_offset=first)
            first += append.record_count
            held.append((opaque, answer.SerializeToString()))
            if len(held) == 4:
                for at in (2, 1, 3, 0):
                    writer.write(frame(1, RESPONSE, *held[at]))
                held.clear()
        writer.close()

    async with fake_cluster(1) as cluster:
        node = cluster.nodes[1]
        server = await asyncio.start_server(serve, HOST, 0)
        port_of(cluster).port = server.sockets[0].getsockname()[1]
        async with quorumlog.connect(cluster.bootstrap) as client:
            producer = client.producer(batch_count_max=2, in_flight_max=4)
            deliveries = [producer.send_nowait("orders", b"x", queue_id=0) for _ in range(16)]
            receipts = [await delivery.receipt() for delivery in deliveries]
            assert [receipt.queue_offset for receipt in receipts] == list(range(16))
            assert {receipt.attempts for receipt in receipts} == {1}
        server.close()
