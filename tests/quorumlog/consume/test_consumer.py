"""The pull consumer and single reads: positions, ends, order, filters, and leaders that change."""

import asyncio
import datetime
from functools import partial
from typing import Any

import pytest

import quorumlog
from quorumlog import Message, Queue, errors
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.prefetch import Fetcher, FetchOptions, Inbox
from quorumlog.consume.reads import PullOptions, ReadFreshness
from quorumlog.pb import log_pb2
from quorumlog.records.message import MessageBatch
from quorumlog.records.options import Consistency
from store.record.message import encode_message
from tests.patience import end, eventually
from tests.quorumlog.fake_cluster import connect, fake_cluster, fill, filled


def by_queue(messages: list[Message]) -> dict[int, list[bytes]]:
    bodies: dict[int, list[bytes]] = {}
    for message in messages:
        bodies.setdefault(message.queue_id, []).append(message.body)
    return bodies


def expected(count: int) -> dict[int, list[bytes]]:
    return {q: [b"%03d" % i for i in range(count) if i % 4 == q] for q in range(4)}


async def test_all_is_read_in_the_order_of_each_queue_up_to_the_end() -> None:
    async with filled(100) as (_, client):
        consumer = client.pull_consumer("orders", until="end", batch_size_bytes_max=500)
        messages = [message async for message in consumer]
        assert by_queue(messages) == expected(100)
        assert [m.queue_offset for m in messages if m.queue_id == 2] == list(range(25))
        assert consumer.offsets() == dict.fromkeys(range(4), 25)
        batches = [b async for b in client.pull_consumer("orders", until="end").batches()]
        assert by_queue([m for batch in batches for m in batch]) == expected(100)
        assert sum(map(len, batches)) == 100
        assert batches[0].bodies() == [m.body for m in batches[0]]
        empty = client.pull_consumer("orders", until="end", position="end")
        assert [m async for m in empty] == []


async def test_the_end_is_that_of_the_start_even_if_more_comes_in() -> None:
    async with filled(20) as (_, client):
        consumer = client.pull_consumer("orders", until="end", queues=[1, 1])
        await consumer.start()
        await fill(client, 0, 20)
        assert [m.body async for m in consumer] == expected(20)[1]


async def test_two_who_iterate_over_one_consumer_share_the_messages() -> None:
    """What one had begun to hand out was dropped for the batch that the other had waited for."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        got: list[bytes] = []
        consumer = client.pull_consumer("orders", queues=[0])
        await consumer.start()

        async def read() -> None:
            async for message in consumer:
                got.append(message.body)
                await asyncio.sleep(0)

        reading = [asyncio.create_task(read()) for _ in range(3)]
        await eventually(lambda: cluster.waits_total > 0)
        await fill(client, 0, 300, queue_count=1)
        await eventually(lambda: len(got) >= 300)
        assert sorted(got) == [b"%03d" % i for i in range(300)]
        await consumer.close()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_positions_are_offsets_ends_and_times() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        for i in range(10):
            await producer.send("orders", b"%d" % i, queue_id=0)
        time_ms = 1_700_000_000_004
        iso = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat()
        for position, first in (
            (7, b"7"), ("7", b"7"), ("first", b"0"), (f"@{time_ms}", b"3"), ("-2", b"8"),
            ("-99", b"0"),
        ):  # fmt: skip
            consumer = client.pull_consumer("orders", queues=[0], position=position)
            assert (await anext(consumer)).body == first
            await consumer.close()
        async with client.pull_consumer("orders", queues=[0], position=f"@{iso}") as consumer:
            assert (await anext(consumer)).body == b"3"
            assert consumer.offsets() == {0: 4}
            await consumer.seek(0, 8)
            assert [(await anext(consumer)).body for _ in range(2)] == [b"8", b"9"]
            await consumer.seek(0, "first")
            assert (await anext(consumer)).body == b"0"
        for wrong in (-1, "soon", "@soon", True):
            with pytest.raises(errors.InvalidRequestError):
                await anext(client.pull_consumer("orders", position=wrong))
        assert await client.offset_by_time("orders", 0, time_ms) == 3


def is_at(consumer: quorumlog.PullConsumer, offset: int) -> bool:
    return {fetcher.offset for fetcher in consumer._fetchers.values()} == {offset}


async def test_a_batch_begins_where_the_last_one_ended_whatever_a_filter_dropped_between() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        async with client.pull_consumer("orders", queues=[0], tags=["rare"]) as consumer:
            for number in range(12):
                tag = "rare" if number in (5, 11) else None
                await client.producer().send("orders", b"%d" % number, queue_id=0, tag=tag)
                await eventually(partial(is_at, consumer, number + 1))
            batches = [await anext(consumer.batches()) for _ in range(2)]
        places = [(batch.offset, batch[0].body, batch.next_offset) for batch in batches]
        assert places == [(0, b"5", 6), (6, b"11", 12)]
        transaction = client.transaction("g")
        transaction.consumed(batches[0])
        cluster.offsets["g", "orders", 0] = 3  # A commit among those that were dropped.
        row = (await transaction._offsets(Deadline(1_000))).offsets[0]
        assert (row.expected, row.offset) == (3, 6)
        cluster.offsets["g", "orders", 0] = 6
        with pytest.raises(errors.ConflictError, match="offset 5"):
            await transaction._offsets(Deadline(1_000))


async def test_messages_that_the_filter_drops_at_the_end_are_not_waited_for() -> None:
    async with filled(39, queue_count=1) as (cluster, client):
        consumer = client.pull_consumer("orders", queues=[0], tags=["odd"], until="end")
        bodies = [m.body async for m in consumer]
        assert bodies == [b"%03d" % i for i in range(39) if i % 2]
        assert consumer.offsets() == {0: 39}
        assert cluster.waits_total == 0
        consumer = client.pull_consumer("orders", queues=[0], tags=["none"], until="end")
        assert [m async for m in consumer] == []
        assert consumer.offsets() == {0: 39}
        assert cluster.waits_total == 0


async def test_a_new_leader_and_a_dead_one_do_not_disturb_the_order() -> None:
    async with filled(200) as (cluster, client):
        consumer = client.pull_consumer("orders", until="end", batch_count_max=5, prefetch=1)
        messages = []
        async for message in consumer:
            messages.append(message)
            if len(messages) == 50:
                cluster.elect(2)
            if len(messages) == 100:
                await cluster.nodes[2].stop()
                cluster.elect(3)
        assert by_queue(messages) == expected(200)


@pytest.mark.parametrize("count", [30, 3])
async def test_a_master_that_lost_the_end_of_its_log_is_read_from_that_end_on(count: int) -> None:
    """Its log may be longer again when the reader asks: offsets alone would tell nothing. With
    fewer messages it has nothing where the last one was."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        got: list[bytes] = []

        async def read() -> None:
            async for message in client.pull_consumer("orders", queues=[0], batch_count_max=4):
                got.append(message.body)

        producer = client.producer()
        for i in range(20):
            await producer.send("orders", b"%d" % i, queue_id=0)
        reading = asyncio.create_task(read())
        await eventually(lambda: len(got) == 20)
        await cluster.nodes[1].stop()
        del cluster.queues["orders", 0][12:]
        new = [b"%d" % i for i in range(100, 100 + count)]
        records = b"".join(encode_message("orders", 0, body) for body in new)
        cluster.append(log_pb2.AppendRequest(records=records, record_count=len(new)))
        cluster.elect(2)
        await eventually(lambda: len(got) >= 20 + count)
        assert got == [*(b"%d" % i for i in range(20)), *new]
        await end(reading)


async def test_local_reads_ask_the_replica_that_was_named() -> None:
    async with filled(20) as (cluster, client):
        for node_id in (1, 2, 3):
            consumer = client.pull_consumer("orders", until="end", node_id=node_id)
            batches = [batch async for batch in consumer.batches()]
            assert {batch.node_id for batch in batches} == {node_id}
            assert by_queue([m for b in batches for m in b]) == expected(20)
        await cluster.nodes[1].stop()
        cluster.leader_id = 0
        consumer = client.pull_consumer("orders", until="end", consistency="local")
        assert by_queue([m async for m in consumer]) == expected(20)
        for wrong in ("best", "linearizable"):
            with pytest.raises(errors.InvalidRequestError):
                client.pull_consumer("orders", consistency=wrong, node_id=2)
        with pytest.raises(errors.InvalidRequestError):
            await client.pull("orders", 0, 0, node_id=9)


async def test_reads_of_missing_things_are_refused() -> None:
    async with filled(8) as (cluster, client):
        with pytest.raises(errors.UnknownTopicError):
            await anext(client.pull_consumer("none"))
        with pytest.raises(errors.InvalidRequestError):
            await anext(client.pull_consumer("orders", queues=[4]))
        with pytest.raises(errors.NotFoundError):
            await client.get_message("00" * 16)
        cluster.min_offsets["orders", 0] = 2
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            await anext(client.pull_consumer("orders", queues=[0], position=0))
        assert (caught.value.first_offset, caught.value.end_offset) == (2, 2)
        assert (await client.pull("orders", 0, 0)).is_out_of_range
        batch = await client.pull("orders", 1, 0, max_count=1)
        assert (batch.next_offset, batch.end_offset, len(batch)) == (1, 2, 1)


async def test_a_record_that_changed_on_its_way_is_not_handed_out() -> None:
    async with filled(4) as (cluster, client):
        record = bytearray(cluster.queues["orders", 0][0])
        record[88] ^= 1
        cluster.queues["orders", 0][0] = bytes(record)
        with pytest.raises(errors.CorruptRecordError, match="body CRC"):
            await anext(client.pull_consumer("orders", queues=[0]))
        assert [request.verify for request in cluster.pulls] == [False, True]
        cluster.queues["orders", 1] = cluster.queues["orders", 2]
        with pytest.raises(errors.CorruptRecordError, match="asked for orders/1"):
            await anext(client.pull_consumer("orders", queues=[1]))


async def test_messages_are_found_by_id_and_by_key_without_what_only_collides() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        for i in range(6):
            await producer.send("orders", b"%d" % i, key=f"k{i % 3} shared")
        messages = await client.query_by_key("orders", "k1")
        assert sorted(m.body for m in messages) == [b"1", b"4"]
        assert len(await client.query_by_key("orders", "shared")) == 6
        assert (await client.get_message(messages[0].message_id)) == messages[0]
        offsets = await client.queue_offsets("orders")
        assert sum(q.end_offset for q in offsets) == 6


@pytest.mark.parametrize("key", ["", " ", "   "])
async def test_a_key_that_nothing_can_have_is_refused_where_it_is_sent_and_where_it_is_sought(
    key: str,
) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        with pytest.raises(errors.InvalidRequestError, match="KEYS"):
            await client.producer().send("orders", b"0", key=key)
        with pytest.raises(errors.InvalidRequestError, match="KEYS"):
            await client.producer().send("orders", b"0", properties={"KEYS": key})
        with pytest.raises(errors.InvalidRequestError, match="which no message has"):
            await client.query_by_key("orders", key)
        with pytest.raises(errors.InvalidRequestError, match="blank"):
            await client.query_by_key("orders", f"order{key or ' '}17")


async def test_prefetched_batches_are_bounded() -> None:
    async with filled(200, queue_count=1) as (_, client):
        consumer = client.pull_consumer("orders", queues=[0], batch_count_max=10, prefetch=3)
        await anext(consumer)
        inbox = consumer._inbox
        await eventually(lambda: len(inbox._ready) == 3)
        for _ in range(5):  # A pull would have had its answer by then.
            await client.queue_offsets("orders")
        assert len(inbox._ready) == 3
        await consumer.close()
        with pytest.raises(errors.ClosedError):
            await anext(consumer)


async def test_a_replica_that_lags_behind_the_end_is_asked_to_wait() -> None:
    """It was asked again and again at once, else."""

    class Lagging:
        def __init__(self) -> None:
            self.waits: list[int] = []

        async def pull(self, queue: Queue, offset: int, options: PullOptions) -> MessageBatch:
            self.waits.append(options.wait_ms)
            assert len(self.waits) < 5, "asked again and again"
            end = 3 if options.wait_ms else offset
            return MessageBatch("t", 0, offset, end, 0, 3, 0, 1, 0, False, [], queue)

    reads: Any = Lagging()
    fetcher = Fetcher(reads, Queue("t", 0), 0, FetchOptions(), Inbox(), end_offset=3)
    await fetcher._task
    assert reads.waits == [0, FetchOptions().wait_ms]


async def test_a_local_reader_ahead_of_its_replica_asks_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the grace is over, after which other readers fail."""
    monkeypatch.setattr("quorumlog.consume.prefetch.BEYOND_END_GRACE_MS", 0.001)

    class Lagging:
        pull_count = 0

        async def pull(self, queue: Queue, offset: int, _: PullOptions) -> MessageBatch:
            self.pull_count += 1
            return MessageBatch("t", 0, offset, offset, 0, 3, 0, 1, 0, True, [], queue)

    reads: Any = Lagging()
    options = FetchOptions(freshness=ReadFreshness(Consistency.LOCAL))
    inbox = Inbox()
    fetcher = Fetcher(reads, Queue("t", 0), 5, options, inbox)
    for _ in range(200):
        await asyncio.sleep(0)
    assert 1 <= reads.pull_count < 60
    assert not fetcher.is_done
    await fetcher.stop()


async def test_what_was_fetched_before_a_seek_is_not_handed_out() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        await fill(client, 0, 20, queue_count=1)
        consumer = client.pull_consumer("orders", queues=[0], batch_count_max=5, prefetch=2)
        assert (await anext(consumer)).queue_offset == 0
        await eventually(lambda: len(consumer._inbox._ready) == 2)
        await consumer.seek(0, 15)
        got = [(await anext(consumer)).queue_offset for _ in range(5)]
        assert got == list(range(15, 20))
        await consumer.close()


async def test_an_error_that_passes_is_raised_after_all_that_is_there_and_not_lost() -> None:
    inbox = Inbox()
    inbox.defers_errors = True
    inbox.fail(errors.UnavailableError("a group is away"))
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    assert not waiting.done(), "others are still read"
    inbox.is_finished = lambda: True
    inbox.wake()
    for getting in (waiting, inbox.get()):
        with pytest.raises(errors.UnavailableError, match="away"):
            await getting


@pytest.mark.parametrize("position", ["first", "@1", 0])
async def test_a_local_reader_is_not_moved_past_messages_that_the_leader_has(
    position: str | int,
) -> None:
    async with filled(40) as (cluster, client):
        for node in cluster.nodes.values():
            node.least = 0 if node.is_leader else 6  # Logs of followers begin later.
        for _ in range(3):  # Each replica is the first to be asked.
            consumer = client.pull_consumer(
                "orders", position=position, until="end", consistency="local"
            )
            assert by_queue([message async for message in consumer]) == expected(40)
            client._cluster.home.calls._any_at += 1
