"""The producer: batches, order, receipts, back-pressure, and how it ends."""

import asyncio
import pickle
from typing import Any

import pytest

import quorumlog
from quorumlog import OutgoingMessage, errors
from quorumlog.cluster.retry import Deadline
from quorumlog.pb import log_pb2
from quorumlog.produce.outgoing_messages import BATCH_SIZE_BYTES_LIMIT, HELD_SIZE_BYTES
from quorumlog.records.batch import key_queue
from store.record.message import message_id
from tests.patience import eventually
from tests.quorumlog.fake_cluster import Node, connect, fake_cluster, producing


async def test_a_receipt_says_all_about_a_message() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        first = await producer.send("orders", b"one", queue_id=2)
        second = await producer.send("orders", "zwei", queue_id=2, key="k", tag="t")
        assert (first.queue_id, first.queue_offset, first.index) == (2, 0, 0)
        assert (second.queue_offset, second.index, second.term) == (1, 1, 1)
        assert first.durability is quorumlog.Durability.QUORUM_DISK
        assert (first.synced_by, first.attempts, first.is_duplicate) == ((1, 2), 1, False)
        assert first.commit_us == 123
        assert first.duration_ms > 0
        assert first.sent_unix_ms > 1_600_000_000_000
        assert first.store_unix_ms == 1_700_000_000_001
        assert first.message_id == message_id(("127.0.0.1", 8081), 48)
        message = await client.get_message(second.message_id)
        assert (message.body, message.key, message.tag) == (b"zwei", "k", "t")
        assert message.log_position == second.log_position
        assert second.to_dict()["durability"] == "quorum_disk"


async def test_messages_of_one_turn_share_a_batch_and_keep_their_order() -> None:
    async with producing() as (cluster, producer):
        receipts = await asyncio.gather(
            *(producer.send("orders", b"%d" % i, queue_id=i % 2) for i in range(100))
        )
        assert len(cluster.entries) == 1
        assert cluster.bodies() == [b"%d" % i for i in range(100)]
        assert [r.queue_offset for r in receipts] == [i // 2 for i in range(100)]
        positions = [r.log_position for r in receipts]
        assert positions == sorted(set(positions))
        stats = producer.stats()
        assert (stats.acked_count, stats.batches_acked) == (100, 1)
        assert stats.held_size_bytes == 0


async def test_batches_are_bounded_and_several_are_in_flight() -> None:
    async with producing(batch_count_max=10, batch_size_bytes_max=2_000) as (cluster, producer):
        for i in range(95):
            producer.send_nowait("orders", b"%02d" % i)
        producer.send_nowait("orders", b"x" * 3_000)
        producer.send_nowait("orders", b"last")
        await producer.flush()
        counts = [entry.request.record_count for entry in cluster.entries]
        assert counts == [*[10] * 9, 5, 1, 1]
        assert cluster.bodies()[:95] == [b"%02d" % i for i in range(95)]


@pytest.mark.parametrize(("delay", "grown_size_bytes"), [(None, 0), (1, HELD_SIZE_BYTES)])
async def test_batches_are_as_small_as_the_nodes_want_them_and_leave_room_to_grow(
    delay: int | None, grown_size_bytes: int
) -> None:
    async with producing(1) as (cluster, producer):
        limit = cluster.batch_size_bytes_max = 10_000
        await producer.send("orders", b"the route is known")
        for _ in range(50):
            producer.send_nowait("orders", bytes(500), delay=delay)
        await producer.flush()
        requests = [entry.request for entry in cluster.entries[1:]]
        assert sum(request.record_count for request in requests) == 50
        for request in requests:
            assert len(request.records) + grown_size_bytes * request.record_count <= limit


async def test_queues_are_chosen_by_key_by_hand_or_in_turn() -> None:
    async with producing() as (_, producer):
        keyed = await asyncio.gather(
            *(producer.send("orders", b"", key=f"key-{i}") for i in range(20))
        )
        assert [r.queue_id for r in keyed] == [key_queue(f"key-{i}", 4) for i in range(20)]
        in_turn = [(await producer.send("orders", b"")).queue_id for _ in range(8)]
        assert sorted(in_turn[:4]) == sorted(in_turn[4:]) == [0, 1, 2, 3]


async def test_an_atomic_batch_is_one_entry_and_may_mix_topics() -> None:
    async with producing() as (cluster, producer):
        cluster.topics["audit"] = 1
        receipts = await producer.send_batch(
            "orders",
            [b"a", "b", OutgoingMessage(b"c", topic="audit", tag="t", queue_id=0)],
            queue_id=3,
        )
        assert [(r.topic, r.queue_id, r.queue_offset) for r in receipts] == [
            ("orders", 3, 0),
            ("orders", 3, 1),
            ("audit", 0, 0),
        ]
        assert len({r.index for r in receipts}) == 1
        assert receipts[1:] == [receipts[1], receipts[-1]]
        assert [receipts[i].queue_offset for i in (1, 0, 2, 1)] == [1, 0, 0, 1]
        assert pickle.loads(pickle.dumps(receipts)) == list(receipts)
        with pytest.raises(IndexError):
            receipts[3]
        with pytest.raises(errors.UnknownTopicError) as caught:
            await producer.send_batch("orders", [b"d", OutgoingMessage(b"e", topic="none")])
        assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        with pytest.raises(errors.TooLargeError):
            await producer.send_batch("orders", [bytes(1 << 20)] * 5)
        assert await producer.send_batch("orders", []) == []
        assert (await producer.send("orders", b"f")).index == 1
        assert cluster.bodies() == [b"a", b"b", b"c", b"f"]


async def test_an_unknown_topic_fails_its_own_messages_only() -> None:
    async with producing() as (cluster, producer):
        wanted = [producer.send_nowait("orders", b"1"), producer.send_nowait("none", b"2")]
        wanted += [producer.send_nowait("orders", b"3")]
        results = await asyncio.gather(*(d.receipt() for d in wanted), return_exceptions=True)
        assert isinstance(results[1], errors.UnknownTopicError)
        assert cluster.bodies() == [b"1", b"3"]
        stored = [r for r in results if isinstance(r, quorumlog.Receipt)]
        assert [r.queue_offset for r in stored] == [0, 1]
        assert producer.stats().failed_count == 1
        cluster.topics["none"] = 3
        assert (await producer.send("none", b"4", key="x")).queue_id == key_queue("x", 3)
        await producer.close()


async def test_a_bad_message_is_refused_at_once() -> None:
    async with producing() as (cluster, producer):
        for topic, code in (("", "client.bad_topic"), ("a b", "client.bad_topic")):
            with pytest.raises(errors.InvalidRequestError) as caught:
                producer.send_nowait(topic, b"")
            assert caught.value.code == code
        with pytest.raises(errors.InvalidRequestError):
            producer.send_nowait("orders", b"", properties={"a": ""})
        with pytest.raises(errors.TooLargeError):
            producer.send_nowait("orders", bytes(5 << 20))
        with pytest.raises(errors.TooLargeError):
            producer.send_nowait("orders", b"", properties={"a": "x" * 40_000})
        with pytest.raises(errors.NotFoundError):
            await producer.send("orders", b"", queue_id=9)
        assert cluster.entries == []


async def test_the_buffer_is_bounded() -> None:
    options = {"buffer_size_bytes_max": 5_000, "batch_size_bytes_max": 1_000}
    async with producing(**options) as (cluster, producer):
        cluster.append_delay_s = 0.01
        for _ in range(10):
            producer.send_nowait("orders", bytes(400))
        with pytest.raises(errors.BusyError) as caught:
            producer.send_nowait("orders", bytes(400))
        assert (caught.value.code, caught.value.retryable) == ("client.busy", True)
        held = []
        for i in range(50):
            await producer.enqueue("orders", b"%02d" % i + bytes(398))
            held.append(producer.stats().held_size_bytes)
        assert max(held) <= 5_000
        # In line: whoever waits longest is first.
        await asyncio.gather(*(producer.send("orders", b"x%02d" % i) for i in range(50)))
        bodies = [body for body in cluster.bodies() if body.startswith(b"x")]
        assert bodies == sorted(bodies)


async def test_callers_that_wait_for_room_keep_their_order_when_two_are_woken_at_once() -> None:
    async with producing(buffer_size_bytes_max=1_000, batch_count_max=1) as (cluster, producer):
        for node in cluster.nodes.values():
            node.gate.clear()
        for _ in range(3):
            producer.send_nowait("orders", bytes(200))
        left = 1_000 - producer.stats().held_size_bytes
        got: list[int] = []

        async def hand_over(number: int, size_bytes: int) -> None:
            await producer.enqueue("orders", bytes(size_bytes))
            got.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):  # Each has room only once the others are gone.
                group.create_task(hand_over(number, 700))
            await asyncio.sleep(0)
            assert left < 700
            for batch in list(producer._unfinished):  # Two in one turn: room, but too little.
                if len(producer._unfinished) == 1:
                    await turns()
                    late = asyncio.create_task(hand_over(3, 10))
                    await turns()
                    assert got == [], "a small one does not overtake those that wait"
                batch.fail(errors.BusyError("a test"))
            for _ in range(3):
                await turns()
                for batch in list(producer._unfinished):
                    batch.fail(errors.BusyError("a test"))
            await late
        assert got == [0, 1, 2, 3]
        with pytest.raises(
            errors.BusyError, match="a test"
        ):  # Else the program ends with a warning.
            await producer.flush()
        await producer.abort()
        for node in cluster.nodes.values():
            node.gate.set()


async def turns() -> None:
    """Let the loop run what is ready."""
    for _ in range(8):
        await asyncio.sleep(0)


async def test_the_buffer_takes_what_fits_exactly_and_any_message_when_it_is_empty() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        roomy = client.producer()
        roomy.send_nowait("orders", bytes(100))
        size_bytes = roomy.stats().held_size_bytes
        tight = client.producer(buffer_size_bytes_max=2 * size_bytes)
        for _ in range(2):
            tight.send_nowait("orders", bytes(100))
        with pytest.raises(errors.BusyError):
            tight.send_nowait("orders", b"")
        batch = asyncio.create_task(tight.send_batch("orders", [bytes(100)] * 2))
        await asyncio.sleep(0)
        assert tight.stats().held_size_bytes == 2 * size_bytes, "a batch waits for room, too"
        await batch
        assert tight.stats().held_size_bytes == 0
        await tight.send_nowait("orders", bytes(100 * size_bytes))


@pytest.mark.long
async def test_waiting_for_room_ends_with_the_deadline_or_a_cancellation() -> None:
    async with producing(buffer_size_bytes_max=1_000, timeout_ms=3_000) as (cluster, producer):
        for node in cluster.nodes.values():
            node.gate.clear()
        producer.send_nowait("orders", bytes(800))
        waiting = asyncio.create_task(producer.enqueue("orders", bytes(800)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.enqueue("orders", bytes(800))
        done = await asyncio.gather(waiting, return_exceptions=True)
        # The first message gave up at the same time, so there may have been room after all.
        assert isinstance(done[0], errors.BusyError | quorumlog.Delivery)
        await producer.abort()
        for node in cluster.nodes.values():
            node.gate.set()


async def test_close_flushes_and_reports_what_nobody_asked_about() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        for i in range(10):
            producer.send_nowait("orders", b"%d" % i)
        await producer.close()
        assert cluster.bodies() == [b"%d" % i for i in range(10)]
        with pytest.raises(errors.ClosedError):
            producer.send_nowait("orders", b"")
        await producer.close()

        producer = client.producer()
        receipt = producer.send_nowait("none", b"")
        with pytest.raises(errors.UnknownTopicError):
            await receipt
        await producer.flush()
        producer.send_nowait("none", b"")
        with pytest.raises(errors.UnknownTopicError):
            await producer.flush()
        await producer.flush()
        producer.send_nowait("none", b"")
        with pytest.raises(errors.UnknownTopicError):
            await producer.close()


async def test_abort_leaves_nobody_waiting() -> None:
    async with producing() as (cluster, producer):
        await producer.send("orders", b"0")
        cluster.nodes[1].gate.clear()
        sent = producer.send_nowait("orders", b"1")
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        waiting = [producer.send_nowait("orders", b"2")]
        waiting.append(producer.send_nowait("orders", b"3", timeout_ms=1_000))
        await producer.abort()
        with pytest.raises(errors.ClosedError, match="read back what was stored") as caught:
            sent.result()
        assert caught.value.outcome is errors.Outcome.UNKNOWN
        for delivery in waiting:
            with pytest.raises(errors.ClosedError, match="before it sent this message") as caught:
                delivery.result()
            assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        assert producer.stats().failed_count == 3
        cluster.nodes[1].gate.set()


async def test_cancelling_a_send_does_not_withdraw_it_or_hurt_others() -> None:
    async with producing() as (cluster, producer):
        cluster.append_delay_s = 0.02
        tasks = [asyncio.create_task(producer.send("orders", b"%d" % i)) for i in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert [type(r) for r in (results[0], results[2])] == [quorumlog.Receipt] * 2
        assert cluster.bodies() == [b"0", b"1", b"2"]


async def test_lingering_waits_for_more_and_flush_does_not() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer(linger_ms=10)
        await producer.send("orders", b"0")
        slow = client.producer(linger_ms=60_000)
        slow.send_nowait("orders", b"1")
        await client.producer().send("orders", b"beside it")  # There was time to send the first.
        slow.send_nowait("orders", b"2")
        await slow.flush()
        assert cluster.bodies() == [b"0", b"beside it", b"1", b"2"]
        assert len(cluster.entries) == 3


async def test_a_message_whose_claim_is_late_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the name was claimed is not known; what became of the message is."""

    async def never(self: Node, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Node, "ClaimProducer", never, raising=False)

    async with producing(1, name="billing", timeout_ms=300) as (cluster, producer):
        with pytest.raises(errors.DeadlineError, match="ClaimProducer") as caught:
            await producer.send("orders", b"1")
        assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        assert not cluster.bodies()


async def test_a_named_producer_tells_its_claim_in_the_groups_it_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def claim(self: Node, request: Any, context: Any) -> Any:
        return log_pb2.ClaimProducerResponse(number=7)

    monkeypatch.setattr(Node, "ClaimProducer", claim, raising=False)

    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.producer(name="billing")
        await client.producer().send("orders", b"0")  # The group is known now.
        home = client._cluster.home
        assert producer.incarnation_in(home) is None
        await producer.send("orders", b"1")
        claimed = log_pb2.ProducerIncarnation(name="billing", number=7)
        assert producer.incarnation_in(home) == claimed
        assert cluster.entries[-1].request.incarnation == claimed


@pytest.mark.parametrize("is_asked", [True, False])
async def test_a_flush_raises_for_the_message_that_failed_if_nobody_asked_about_that_one(
    is_asked: bool,
) -> None:
    """The others of its batch have arrived, so whether somebody asked about those is no matter."""

    async with producing() as (_, producer):
        good: list[quorumlog.Delivery] = []
        bad: list[quorumlog.Delivery] = []
        for queue_id in (0, 99, 1, 98, 0):
            some = bad if queue_id > 3 else good
            some.append(producer.send_nowait("orders", b"x", queue_id=queue_id))
        for delivery in bad if is_asked else good:
            await asyncio.gather(delivery.receipt(), return_exceptions=True)
        if not is_asked:
            with pytest.raises(errors.QuorumlogError, match="unknown_queue"):
                await producer.flush()
        await producer.flush()
        assert producer.stats().failed_count == len(bad)


async def test_a_producer_is_stuck_from_its_last_receipt_on() -> None:
    answered, held = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> None:
        await answered.wait()

    async def hold(*_: Any) -> None:
        await held.wait()

    async with producing(1, batch_count_max=1) as (cluster, producer):
        cluster.script.extend([wait, hold])
        first, second = (producer.send_nowait("orders", b"x", queue_id=0) for _ in range(2))
        await eventually(lambda: producer.stats().in_flight_batches == 2)
        answered.set()
        await first
        (backlog,) = producer._accumulator
        assert backlog.sender.stuck_ms > 0
        held.set()
        await second
        assert backlog.sender.stuck_ms == 0
        assert not producer._unfinished, "what is acknowledged is let go"
        assert producer.stats().held_size_bytes == 0


async def test_a_message_that_was_never_sent_says_that_no_leader_was_found() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        producer = client.producer(timeout_ms=200)
        cluster.leader_id = 0
        client._cluster.home.router.leader_failed(cluster.nodes[1].address)
        with pytest.raises(errors.DeadlineError, match="finding the leader was not done"):
            await producer.send("orders", b"x")


async def test_the_largest_message_of_a_batch_is_checked() -> None:
    """Where only the bodies differ, one of them is checked for all."""
    large = bytes(BATCH_SIZE_BYTES_LIMIT - 512)
    async with producing(1) as (_, producer):
        for bodies in ([b"", large], [large, b""]):
            with pytest.raises(errors.TooLargeError, match="the message has 4189"):
                await producer.send_batch("orders", bodies)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_the_wait_for_room_is_part_of_the_time_of_a_send(
    monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer, made = client.producer(buffer_size_bytes_max=1_000), list[Deadline]()
        producer.send_nowait("orders", bytes(900))

        def deadline(timeout_ms: float) -> Deadline:
            made.append(Deadline(timeout_ms))
            return made[-1]

        monkeypatch.setattr("quorumlog.produce.producer.Deadline", deadline)
        if is_batch:
            await producer.send_batch("orders", [bytes(900)])
        else:
            await producer.send("orders", bytes(900))
        assert len(made) == 1


async def test_a_message_group_chooses_the_queue_and_travels_along() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        count = (await client.route("orders")).topics["orders"].queue_count
        producer = client.producer()
        for name in ("a", "b", "customer 7", "\u00e9"):
            first = await producer.send("orders", b"1", message_group=name)
            two = await producer.send(
                "orders", b"2", message_group=name, key="k", properties={"x": "y"}
            )
            three = await (await producer.enqueue("orders", b"3", message_group=name)).receipt()
            four = await producer.send_nowait("orders", b"4", message_group=name).receipt()
            many = await producer.send_batch(
                "orders", [OutgoingMessage(b"5", properties={"__SHARDINGKEY": name}, key="other")]
            )
            receipts = [first, two, three, four, *many]
            assert {r.queue_id for r in receipts} == {key_queue(name, count)}
            message = await client.get_message(two.message_id)
            assert message.properties == {"KEYS": "k", "x": "y", "__SHARDINGKEY": name}
        named = await producer.send("orders", b"6", message_group="a", queue_id=3)
        assert named.queue_id == 3
        with pytest.raises(errors.InvalidRequestError):
            await producer.send("orders", b"7", message_group="")
