"""The producer under faults: what is acknowledged is stored once, and nothing fails silently."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.cluster.retry import Backoff
from quorumlog.errors import Outcome
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.produce.append_stream import OUT_OF_SEQUENCE_MAX
from quorumlog.produce.delivery import Batch
from store.record.message import decode_message
from tests.patience import PATIENCE_S, eventually
from tests.quorumlog.fake_cluster import (
    BREAK_AFTER,
    BREAK_BEFORE,
    HANG_AFTER,
    FakeCluster,
    Node,
    abort,
    connect,
    decode_all,
    error,
    fake_cluster,
    producing,
)

UNKNOWN = common_pb2.OUTCOME_UNKNOWN


async def send_all(producer: quorumlog.Producer, count: int) -> list[Any]:
    deliveries = [await producer.enqueue("orders", b"%04d" % i, queue_id=0) for i in range(count)]
    return await asyncio.gather(*(d.receipt() for d in deliveries), return_exceptions=True)


def check_once_and_in_order(cluster: FakeCluster, count: int) -> None:
    assert cluster.bodies() == [b"%04d" % i for i in range(count)]


@pytest.mark.parametrize(
    ("action", "duplicates"), [(BREAK_BEFORE, False), (BREAK_AFTER, True)], ids=["before", "after"]
)
async def test_a_connection_that_breaks_is_no_loss_and_no_duplicate(
    action: str, duplicates: bool
) -> None:
    async with producing(batch_count_max=5) as (cluster, producer):
        cluster.script.extend([None, None, action])
        receipts = await send_all(producer, 50)
        check_once_and_in_order(cluster, 50)
        assert [r.queue_offset for r in receipts] == list(range(50))
        assert receipts[0].attempts == 1
        assert receipts[10].attempts == 2
        assert receipts[10].is_duplicate is duplicates
        assert producer.stats().retried_batches >= 1


async def test_a_new_leader_is_found_by_its_hint() -> None:
    async with producing(batch_count_max=3) as (cluster, producer):
        await producer.send("orders", b"0000", queue_id=0)
        cluster.elect(2)
        results = await asyncio.gather(
            *(producer.send("orders", b"%04d" % i, queue_id=0) for i in range(1, 40))
        )
        check_once_and_in_order(cluster, 40)
        assert {r.term for r in results} == {2}
        assert producer.stats().leader_changes == 1
        assert cluster.nodes[3].requests_total == 0


async def test_a_leader_that_dies_is_replaced_and_nothing_is_lost_or_doubled() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer(batch_count_max=4)
        cluster.append_delay_s = 0.002
        sending = asyncio.create_task(send_all(producer, 200))
        await eventually(lambda: len(cluster.entries) >= 10)
        # The others go on naming the dead one for a while, as before an election.
        cluster.leader_id = 1
        await cluster.nodes[1].stop()
        await eventually(lambda: client.stats().questions > 10)
        assert not sending.done()
        cluster.elect(3)
        results = await sending
        check_once_and_in_order(cluster, 200)
        assert all(isinstance(r, quorumlog.Receipt) for r in results)


async def test_a_node_that_comes_back_is_found_soon() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"0000", queue_id=0)
        node = cluster.nodes[1]
        await node.stop()
        sending = asyncio.create_task(producer.send("orders", b"0001", queue_id=0))
        await eventually(lambda: client.stats().questions > 5)
        await node.start()
        before = client.stats().questions
        await sending
        assert client.stats().questions - before < 10, "it was asked, and did not answer"
        check_once_and_in_order(cluster, 2)


async def test_a_connection_that_is_closed_while_nothing_is_sent_is_made_again() -> None:
    """So is that of a leader that was removed. Its sender ended, and nobody was told."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"0000", queue_id=0)
        await client._cluster.home.router.channels.keep_only(set())
        await producer.send("orders", b"0001", queue_id=0)
        check_once_and_in_order(cluster, 2)


async def test_a_stream_that_is_refused_before_its_first_batch_left_fails_that_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch waits for the queues of its topic until the stream is over, in each attempt."""

    async def refuse(_node: Node, _requests: Any, context: Any) -> AsyncIterator[Any]:
        await abort(context, error("node.unauthenticated"))
        yield

    async def know_no_topic(node: Node, request: Any, context: Any) -> Any:
        if request.topics:
            await asyncio.Event().wait()
        return await route(node, request, context)

    route = Node.Route
    monkeypatch.setattr(Node, "Route", know_no_topic)
    monkeypatch.setattr(Node, "AppendStream", refuse)
    async with fake_cluster() as cluster, connect(cluster, transport="grpc") as client:
        with pytest.raises(errors.PermissionDeniedError) as raised:
            await client.producer().send("orders", b"0000")
        assert raised.value.outcome is Outcome.NOT_APPLIED
        assert not cluster.entries


async def test_a_refusal_that_passes_is_waited_for_in_order() -> None:
    async with producing(batch_count_max=2) as (cluster, producer):
        busy = error("node.busy", retryable=True, retry_after_ms=5)
        full = error("store.full", retryable=True)
        lost = error("node.outcome_unknown", retryable=True, outcome=UNKNOWN)
        cluster.script.extend([apply_and_say_unknown, busy, None, None, full, lost, busy])
        receipts = await send_all(producer, 40)
        check_once_and_in_order(cluster, 40)
        assert receipts[0].is_duplicate
        duplicates_count = sum(receipt.is_duplicate for receipt in receipts)
        assert producer.stats().duplicates_count == duplicates_count
        assert producer.stats().failed_count == 0


async def test_without_idempotence_an_unknown_outcome_is_told_and_not_repeated() -> None:
    async with producing(idempotent=False, in_flight_max=1) as (cluster, producer):
        busy = error("node.busy", retryable=True)
        cluster.script.extend([busy, BREAK_AFTER])
        with pytest.raises(errors.OutcomeUnknownError) as caught:
            await producer.send("orders", b"0000", queue_id=0)
        assert (caught.value.outcome, caught.value.attempts) == (Outcome.UNKNOWN, 2)
        await producer.send("orders", b"0001", queue_id=0)
        check_once_and_in_order(cluster, 2)
        assert {e.request.producer_id for e in cluster.entries} == {0}


async def test_without_idempotence_a_batch_behind_a_refused_one_is_not_repeated_either() -> None:
    sent, refused = asyncio.Event(), asyncio.Event()

    async def refuse(*_: Any) -> Any:
        await sent.wait()
        return error("node.topic_not_writable")

    async def store_and_break(*_: Any) -> Any:
        await refused.wait()
        return BREAK_AFTER

    async with producing(idempotent=False, batch_count_max=1) as (cluster, producer):
        cluster.script.extend([refuse, store_and_break])
        first, second = (producer.send_nowait("orders", b"%d" % i, queue_id=0) for i in range(2))
        await eventually(lambda: producer.stats().in_flight_batches == 2)
        sent.set()
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        refused.set()
        with pytest.raises(errors.PermissionDeniedError):
            await first
        with pytest.raises(errors.OutcomeUnknownError):
            await second
        assert cluster.bodies() == [b"1"]


async def test_a_batch_refused_for_good_does_not_hold_up_or_reorder_the_rest() -> None:
    async with producing(batch_count_max=2) as (cluster, producer):
        cluster.script.extend([None, error("node.topic_not_writable")])
        results = await send_all(producer, 20)
        failed = [r for r in results if isinstance(r, errors.PermissionDeniedError)]
        assert len(failed) == 2
        assert [f.outcome for f in failed] == [Outcome.NOT_APPLIED] * 2
        assert cluster.bodies() == [b"%04d" % i for i in range(20) if i not in (2, 3)]
        assert len(cluster.producers) == 1  # Sequences went on without a gap.


async def test_batches_that_are_taken_apart_keep_their_order() -> None:
    """Two in a row were once put back the wrong way round."""

    async with producing(batch_count_max=2) as (cluster, producer):
        cluster.topics["audit"] = 1
        cluster.script.extend([error("node.topic_not_writable")] * 2)
        for i in range(20):
            topic = "audit" if i % 2 else "orders"
            await producer.enqueue(topic, b"%04d" % i, queue_id=0)
        await producer.close()
        for lo in (0, 1):
            stored = [b for b in cluster.bodies() if int(b) % 2 == lo]
            assert stored == [b"%04d" % i for i in range(lo, 20, 2)]
        assert len(cluster.producers) == 1


async def test_a_producer_that_was_forgotten_begins_anew() -> None:
    async with producing(batch_count_max=2) as (cluster, producer):
        await producer.send("orders", b"0000", queue_id=0)
        cluster.producers.clear()
        results = await asyncio.gather(
            *(producer.send("orders", b"%04d" % i, queue_id=0) for i in range(1, 10))
        )
        check_once_and_in_order(cluster, 10)
        assert all(r.attempts <= 3 for r in results)


async def test_a_forgotten_producer_does_not_repeat_what_may_be_stored() -> None:
    async def apply_forget_and_break(node: Any, request: Any) -> Any:
        node.cluster.append(request)
        node.cluster.producers.clear()
        return BREAK_BEFORE

    async with producing(batch_count_max=1, in_flight_max=1) as (cluster, producer):
        await producer.send("orders", b"0000", queue_id=0)
        cluster.script.append(apply_forget_and_break)
        with pytest.raises(errors.OutcomeUnknownError):
            await producer.send("orders", b"0001", queue_id=0)
        receipt = await producer.send("orders", b"0002", queue_id=0)
        assert receipt.attempts == 1, "under another name, which nobody has to forget first"
        check_once_and_in_order(cluster, 3)


def pauses_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instead of pausing, note how many pauses in a row there were before."""
    pauses: list[int] = []

    async def pause(self: Backoff, _: float = 0) -> None:
        pauses.append(self.count)
        self.count += 1

    monkeypatch.setattr("quorumlog.produce.append_stream.Backoff.pause", pause)
    return pauses


async def test_pauses_are_short_again_after_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = pauses_of(monkeypatch)
    async with producing() as (cluster, producer):
        busy = error("node.busy", retryable=True)
        cluster.script.extend([busy, busy, None] * 3)
        for i in range(3):
            await producer.send("orders", b"%04d" % i, queue_id=0)
        assert pauses == [0, 1] * 3
        check_once_and_in_order(cluster, 3)


async def test_a_final_refusal_costs_later_batches_no_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = pauses_of(monkeypatch)
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.script.append(error("node.topic_not_writable"))
        results = await send_all(client.producer(batch_count_max=1), 5)
        assert isinstance(results[0], errors.PermissionDeniedError)
        assert cluster.bodies() == [b"%04d" % i for i in range(1, 5)]
        assert pauses == []


async def test_many_refusals_that_pass_are_no_lost_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that may be stored keeps its name through them, and is found to be stored."""
    pauses = pauses_of(monkeypatch)
    async with fake_cluster() as cluster, connect(cluster) as client:
        busy = error("node.busy", retryable=True)
        cluster.script.extend([BREAK_AFTER, *[busy] * (2 * OUT_OF_SEQUENCE_MAX)])
        receipt = await client.producer().send("orders", b"0000", queue_id=0)
        assert receipt.is_duplicate
        assert len(pauses) >= 2 * OUT_OF_SEQUENCE_MAX
        check_once_and_in_order(cluster, 1)
        assert len(cluster.producers) == 1


async def test_an_order_that_is_lost_for_good_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_of(monkeypatch)
    names: list[tuple[int, int]] = []

    async def refuse(_: Any, request: log_pb2.AppendRequest) -> Any:
        names.append((request.producer_id, request.sequence))
        return error("node.out_of_sequence", retryable=True)

    async with producing() as (cluster, producer):
        cluster.script.extend([refuse] * (OUT_OF_SEQUENCE_MAX + 1))
        await producer.send("orders", b"0000", queue_id=0)
        check_once_and_in_order(cluster, 1)
        (entry,) = cluster.entries
        assert len(set(names)) == 1, "the batch keeps its name for some time"
        assert entry.request.producer_id != names[0][0]
        assert entry.request.sequence == 0


async def test_a_producer_that_broke_takes_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any) -> None:
        raise RuntimeError("a bug")

    async with producing(1) as (cluster, producer):
        await producer.send("orders", b"0")
        with monkeypatch.context() as patch:
            patch.setattr(Batch, "acknowledge", break_down)
            with pytest.raises(errors.InternalError, match="a bug"):
                await producer.send("orders", b"1")
        with pytest.raises(errors.InternalError, match="a bug"):
            await producer.send("orders", b"2")
        assert cluster.bodies() == [b"0", b"1"]


@pytest.mark.long
async def test_time_runs_out_with_the_truth_about_the_outcome() -> None:
    async with producing(timeout_ms=400) as (cluster, producer):
        cluster.script.append(HANG_AFTER)
        hasty = producer._options
        with pytest.raises(errors.OutcomeUnknownError) as unknown:
            await producer.send("orders", b"0000", queue_id=0)
        assert unknown.value.outcome is Outcome.UNKNOWN
        # A new identity: nothing of the old one is in the way.
        producer._options = replace(hasty, timeout_ms=1000 * PATIENCE_S)
        await producer.send("orders", b"0001", queue_id=0)
        check_once_and_in_order(cluster, 2)
        producer._options = hasty
        cluster.script.extend([error("node.busy", retryable=True)] * 1000)
        with pytest.raises(errors.DeadlineError) as late:
            await producer.send("orders", b"0002", queue_id=0)
        assert late.value.outcome is Outcome.NOT_APPLIED
        assert late.value.attempts > 1
        cluster.script.clear()
        await cluster.stop()
        with pytest.raises(errors.QuorumlogError):
            await producer.send("orders", b"0003", queue_id=0)
        check_once_and_in_order(cluster, 2)


async def elect(node: Any, request: Any) -> Any:
    node.cluster.elect(1 + node.cluster.term % 3)
    return None


async def hang_before(node: Any, request: Any) -> Any:
    await asyncio.Event().wait()


async def apply_and_say_unknown(node: Any, request: Any) -> Any:
    node.cluster.append(request)
    return error("node.outcome_unknown", retryable=True, outcome=UNKNOWN)


FAULTS = [
    BREAK_BEFORE,
    BREAK_AFTER,
    elect,
    apply_and_say_unknown,
    error("node.busy", retryable=True),
    error("node.not_applied", retryable=True),
    error("node.timeout", retryable=True, outcome=UNKNOWN),
    error("node.topic_not_writable"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_idempotent", "timeout_ms"), [(True, 10_000), (False, 10_000), (True, 150)]
)
@pytest.mark.parametrize("seed", range(5))
async def test_random_faults_leave_no_doubt_about_any_message(
    seed: int, is_idempotent: bool, timeout_ms: int
) -> None:
    dice = random.Random(seed)
    async with fake_cluster() as cluster, connect(cluster, timeout_ms=timeout_ms) as client:
        cluster.topics["audit"] = 1
        kinds = [None] * 20 + FAULTS
        if timeout_ms < 1_000:  # Then some run out of time, on either side of being stored.
            kinds += [HANG_AFTER, hang_before]
        cluster.script.extend(dice.choice(kinds) for _ in range(400))
        producer = client.producer(
            batch_count_max=3,
            in_flight_max=4 if is_idempotent else 1,
            idempotent=is_idempotent,
        )
        sent = []
        for i in range(500):
            topic = "audit" if dice.random() < 0.2 else "orders"
            delivery = await producer.enqueue(topic, b"%04d" % i, queue_id=0)
            sent.append((b"%04d" % i, delivery))
            if dice.random() < 0.1:
                await asyncio.gather(delivery.receipt(), return_exceptions=True)
        await asyncio.gather(*(d.receipt() for _, d in sent), return_exceptions=True)
        counts = Counter(cluster.bodies())
        acked = {}
        for body, delivery in sent:
            (result,) = await asyncio.gather(delivery.receipt(), return_exceptions=True)
            if isinstance(result, quorumlog.Receipt):
                acked[body] = result
                assert counts[body] == 1, f"{body!r} was acknowledged"
                continue
            assert isinstance(result, errors.QuorumlogError), result
            most = 1 if result.outcome is Outcome.UNKNOWN else 0
            assert counts[body] <= most, f"{body!r} failed: {result!r}"
        stored = [body for body in cluster.bodies() if body in acked]
        for topic in ("orders", "audit"):
            ours = [body for body in stored if acked[body].topic == topic]
            assert ours == sorted(ours)
            for body in ours:
                record = cluster.queues[topic, 0][acked[body].queue_offset]
                assert decode_message(record).body == body
                assert decode_message(record).position == acked[body].log_position
        assert len(acked) > 100
        assert producer.stats().held_size_bytes == 0


async def test_many_batches_that_end_at_once_are_walked_once() -> None:
    class Counted(deque[Any]):
        step_count = 0

        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                Counted.step_count += 1
                yield batch

    async with producing() as (cluster, producer):
        for node in cluster.nodes.values():
            node.gate.clear()
        sends = [asyncio.create_task(producer.send_batch("orders", [b""])) for _ in range(500)]
        (backlog,) = producer._accumulator
        await eventually(lambda: backlog.sender.load == 500)
        backlog.sender.waiting = Counted(backlog.sender.waiting)
        backlog.sender._give_up_waiting(errors.ClosedError("a test"))
        assert Counted.step_count <= 2 * 500
        for node in cluster.nodes.values():
            node.gate.set()
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(error, errors.ClosedError) for error in done) >= 490


async def test_plain_and_delayed_messages_in_turn_make_few_batches() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        async with client.producer() as producer:
            for number in range(400):
                wish: dict[str, Any] = {"delay": 60} if number % 2 else {}
                await producer.enqueue("orders", b"%d" % number, queue_id=0, **wish)
            await producer.flush()
            assert producer.stats().batches_acked <= 40
        for entry in cluster.entries:
            kinds = {"TIMER_DELAY_MS" in m.properties for m in decode_all(entry.request.records)}
            assert kinds == {entry.request.has_delayed}
        bodies = [int(message.body) async for message in client.consume("orders", until="end")]
    assert [*filter(lambda n: n % 2, bodies)] == [*range(1, 400, 2)]
    assert [*filter(lambda n: not n % 2, bodies)] == [*range(0, 400, 2)]
