"""Group consumers: sharing, rebalance, stored offsets, at least once, broadcasting."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog import Message, Queue, errors
from quorumlog.consume import membership, prefetch, reads
from quorumlog.consume.group import GroupConsumer
from quorumlog.consume.membership import Redelivery
from tests.patience import end, eventually
from tests.quorumlog.fake_cluster import (
    FakeCluster,
    Node,
    abort,
    connect,
    error,
    fake_cluster,
    fill,
    filled,
)
from tests.quorumlog.fake_groups import connect as connect_all
from tests.quorumlog.fake_groups import fake_groups


async def take(consumer: GroupConsumer, count: int) -> list[Message]:
    messages = []
    for _ in range(count):
        messages.append(await anext(consumer))
    return messages


@asynccontextmanager
async def one_queue(
    count: int = 10, **options: Any
) -> AsyncIterator[tuple[FakeCluster, GroupConsumer]]:
    """Run a cluster with so many messages in one queue, and the only member of a group."""
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.topics["orders"] = 1
        for number in range(count):
            await client.producer().send("orders", b"%d" % number, queue_id=0)
        async with client.group_consumer("g", "orders", **options) as consumer:
            yield cluster, consumer


async def read_until(consumer: GroupConsumer, into: list[bytes], done: Callable[[], bool]) -> None:
    async for message in consumer:
        into.append(message.body)
        if done():
            return


async def test_a_group_goes_on_where_it_left_off() -> None:
    async with filled(40) as (cluster, client):
        async with client.group_consumer("g", "orders") as consumer:
            first = await take(consumer, 40)
            assert consumer.assignment() == [("orders", q) for q in range(4)]
        assert cluster.offsets == {("g", "orders", q): 10 for q in range(4)}
        assert cluster.members["g"] == []
        await fill(client, 40, 60)
        async with client.group_consumer("g", "orders", position="end") as consumer:
            second = await take(consumer, 20)
        assert sorted(m.body for m in first + second) == [b"%03d" % i for i in range(60)]


async def test_a_group_begins_in_all_queues_before_it_has_a_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a queue without an offset came later, for those that join at the same time, too."""
    offsets: list[dict[int, int]] = []
    beat = Node.Heartbeat

    async def look(self: Node, request: Any, context: Any) -> Any:
        offsets.append({queue_id: o for (_, _, queue_id), o in self.cluster.offsets.items()})
        return await beat(self, request, context)

    monkeypatch.setattr(Node, "Heartbeat", look)
    async with filled(40) as (_, client):
        members = [client.group_consumer("g", "orders", position="end") for _ in range(3)]
        await asyncio.gather(*(member.start() for member in members))
        assert offsets
        assert all(found == dict.fromkeys(range(4), 10) for found in offsets)


async def test_a_member_says_its_filter_and_logs_what_is_unlike(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filters: list[tuple[list[str], str]] = []
    beat = Node.Heartbeat

    async def look(self: Node, request: Any, context: Any) -> Any:
        filters.append(([*request.tags], request.sql))
        answer = await beat(self, request, context)
        answer.warnings.append("they filter orders in unlike ways")
        return answer

    monkeypatch.setattr(Node, "Heartbeat", look)
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.group_consumer("g", "orders", tags=["x"]).start()
        await client.group_consumer("h", "orders", sql="a = 1").start()
    assert {(*tags, sql) for tags, sql in filters} == {("x", ""), ("a = 1",)}
    assert caplog.messages.count("they filter orders in unlike ways") == 2


async def test_unprocessed_messages_come_again() -> None:
    async with filled(8) as (_, client):
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails.
            async with client.group_consumer("g", "orders") as consumer:
                got = await take(consumer, 3)
                raise RuntimeError("processing of the third one failed")
        third = got[2]
        async with client.group_consumer("g", "orders") as consumer:
            again = await take(consumer, 6)
        assert third.body in [m.body for m in again]
        assert {m.body for m in got[:2]}.isdisjoint(m.body for m in again)


async def test_a_member_that_waits_for_the_next_message_has_processed_the_last() -> None:
    async with filled(1) as (cluster, client):
        consumer = client.group_consumer("g", "orders", commit_interval_ms=20)
        await take(consumer, 1)
        waiting = asyncio.create_task(anext(consumer))
        await eventually(lambda: cluster.offsets.get(("g", "orders", 0)) == 1)
        await consumer.close(is_processed=False)
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert cluster.offsets["g", "orders", 0] == 1


async def test_a_group_goes_past_what_its_filter_drops() -> None:
    async with filled(8) as (cluster, client):
        consumer = client.group_consumer("g", "orders", tags=["none"], commit_interval_ms=20)
        waiting = asyncio.create_task(anext(consumer))
        await eventually(lambda: sum(cluster.offsets.values()) == 8)
        await consumer.close()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_offsets_are_stored_by_interval_and_by_hand() -> None:
    async with filled(40) as (cluster, client):
        consumer = client.group_consumer("g", "orders", commit_interval_ms=20)
        await take(consumer, 13)
        await eventually(lambda: sum(cluster.offsets.values()) >= 12)
        assert sum(cluster.offsets.values()) == 12
        await consumer.close()
        assert sum(cluster.offsets.values()) == 13
        manual = client.group_consumer("h", "orders", auto_commit=False)
        await take(manual, 5)
        assert not any(group == "h" for group, _, _ in cluster.offsets)
        await manual.commit()
        assert sum(v for (g, _, _), v in cluster.offsets.items() if g == "h") == 5
        await take(manual, 5)
        stored = {key: v for key, v in cluster.offsets.items() if key[0] == "h"}
        await manual.commit_offsets({("orders", 0): 2})
        await manual.close()
        stored["h", "orders", 0] = 2
        assert {key: v for key, v in cluster.offsets.items() if key[0] == "h"} == stored


async def test_a_rebalance_loses_nothing() -> None:
    async with filled(400) as (_, client):
        got: list[bytes] = []

        def all_read() -> bool:
            return len(set(got)) == 400

        options = {"batch_count_max": 10, "prefetch": 1}
        first = client.group_consumer("g", "orders", **options)  # type: ignore[arg-type]
        reading = [asyncio.create_task(read_until(first, got, all_read))]
        await eventually(lambda: len(got) > 50)
        second = client.group_consumer("g", "orders", **options)  # type: ignore[arg-type]
        reading.append(asyncio.create_task(read_until(second, got, all_read)))
        await eventually(all_read)
        await end(*reading)
        assert sorted(set(got)) == [b"%03d" % i for i in range(400)]


async def test_a_leader_that_is_away_for_a_while_does_not_end_a_member() -> None:
    async with filled(20) as (cluster, client):
        async with client.group_consumer("g", "orders") as consumer:
            await take(consumer, 20)
            await cluster.nodes[1].stop()
            cluster.leader_id = 0
            before = client.stats().questions
            await eventually(lambda: client.stats().questions > before + 3)
            cluster.elect(2)
            await fill(client, 20, 40)
            await take(consumer, 20)
        assert sum(cluster.offsets.values()) == 40


async def test_expired_messages_are_skipped_by_a_group() -> None:
    async with filled(40) as (cluster, client):
        cluster.offsets["g", "orders", 0] = 1
        for queue_id in range(4):
            cluster.min_offsets["orders", queue_id] = 5
        async with client.group_consumer("g", "orders") as consumer:
            got = await take(consumer, 20)
        assert {m.queue_offset for m in got} == set(range(5, 10))


async def test_broadcasting_gives_everybody_everything_and_keeps_offsets_locally(
    tmp_path: Path,
) -> None:
    path, nonsense = str(tmp_path / "offsets.json"), tmp_path / "nonsense.json"
    async with filled(20) as (cluster, client):
        for offsets_path in (None, path):
            consumer = client.group_consumer(
                "g", "orders", mode="broadcasting", offsets_path=offsets_path
            )
            async with consumer:
                assert len(await take(consumer, 20)) == 20
        assert cluster.offsets == {}
        await fill(client, 20, 24)
        again = client.group_consumer("g", "orders", mode="broadcasting", offsets_path=path)
        async with again:
            assert sorted(m.body for m in await take(again, 4)) == [
                b"%03d" % i for i in range(20, 24)
            ]
        line = {"topic": "orders", "queue_id": 0, "offset": 3}
        wrongs = ({"offset": 3.7}, {"offset": "3"}, {"offset": -1}, {"queue_id": True})
        for text in ("nonsense", *(json.dumps({"offsets": [line | w]}) for w in wrongs)):
            nonsense.write_text(text)
            with pytest.raises(errors.InvalidRequestError, match="holds no offsets"):
                client.group_consumer(
                    "g", "orders", mode="broadcasting", offsets_path=str(nonsense)
                )


async def test_options_that_make_no_sense_are_refused() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        for options in (
            {"mode": "shouting"},
            {"strategy": "by_luck"},
            {"offsets_path": "x"},
            {"commit_interval_ms": 0},
            {"position": "soon"},
            {"prefetch": 0},
        ):
            with pytest.raises(errors.InvalidRequestError):
                client.group_consumer("g", "orders", **options)
        with pytest.raises(errors.UnknownTopicError):
            await client.group_consumer("g", "none").start()


async def test_a_message_handed_out_while_another_is_given_back_is_not_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counted as processed when the answer came, and a kill would have lost it."""

    question, answered = asyncio.Event(), asyncio.Event()

    async def give_back(*_: object, **__: object) -> Redelivery:
        question.set()
        await answered.wait()
        return Redelivery(1, 0)

    monkeypatch.setattr("quorumlog.consume.membership.Redeliveries.give_back", give_back)
    async with one_queue(3, commit_interval_ms=10) as (_, consumer):
        (first,) = await take(consumer, 1)
        giving = asyncio.create_task(consumer.retry_later(first))
        await question.wait()
        (second,) = await take(consumer, 1)
        answered.set()
        await giving
        assert consumer._processed() == {("orders", 0): second.queue_offset}
        (third,) = await take(consumer, 1)
        await consumer.retry_later(third)
        assert consumer._processed() == {("orders", 0): 3}


async def test_giving_back_some_of_a_batch_does_not_process_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offset behind the whole batch would lose the others, should the member die."""

    sent: list[list[int]] = []

    async def give_back(*_: object, offsets: list[Any], **__: object) -> Redelivery:
        sent.append([row.offset for row in offsets])
        return Redelivery(1, 0)

    monkeypatch.setattr("quorumlog.consume.membership.Redeliveries.give_back", give_back)
    async with one_queue(3, commit_interval_ms=60_000) as (_, consumer):
        batch = await consumer.next_batch()
        assert batch is not None
        assert len(batch.messages) == 3
        await consumer.retry_later(batch.messages[1:])
        await consumer.retry_later(batch.messages[0])
        assert consumer._processed() == {("orders", 0): 0}
        await consumer.retry_later(batch.messages)
        assert consumer._processed() == {("orders", 0): 3}
        assert sent == [[], [], [3]]


async def test_a_member_reads_all_its_queues_at_once_if_some_have_stored_offsets() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        await fill(client, 0, 8)
        cluster.offsets["g", "orders", 0] = 1
        async with client.group_consumer("g", "orders") as consumer:
            assert consumer.offsets() == {
                Queue("orders", queue_id): int(queue_id == 0) for queue_id in range(4)
            }


async def test_calls_to_a_group_that_answers_have_all_the_time_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumlog.consume.membership.AWAY_MS", 0)  # Refused if it is used.
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        await fill(client, 0, 4)
        async with client.group_consumer("g", "orders") as consumer:
            await take(consumer, 4)
            await consumer.commit()
        assert sum(cluster.offsets.values()) == 4


def refuse_heartbeats(monkeypatch: pytest.MonkeyPatch, group: str = "") -> None:
    """Have the nodes of a broker group refuse them for good."""
    heartbeat = Node.Heartbeat

    async def answer(self: Node, request: Any, context: Any) -> Any:
        if self.cluster.group == group:
            await abort(context, error("node.bad_request"))
        return await heartbeat(self, request, context)

    monkeypatch.setattr(Node, "Heartbeat", answer)


async def test_a_member_that_is_refused_for_good_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        consumer = client.group_consumer("g", "orders")
        await consumer.start()
        refuse_heartbeats(monkeypatch)
        tasks = [task for kept in consumer._keeping.values() for task in kept]
        await eventually(lambda: any(task.done() for task in tasks))
        with pytest.raises(errors.InvalidRequestError, match="bad_request"):
            await asyncio.wait_for(anext(consumer), 1)  # It is there by now.
        await consumer.close()


async def test_a_member_that_one_of_several_groups_refuses_for_good_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_heartbeats(monkeypatch, "g1")
    async with fake_groups("g0", "g1") as groups, connect_all(groups) as client:
        consumer = client.group_consumer("g", "orders")
        with pytest.raises(errors.InvalidRequestError, match="bad_request"):
            await consumer.start()
        await consumer.close()


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_no_call_of_a_member_names_more_queues_than_a_node_takes(
    mode: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts: list[int] = []

    def counted(call: Any) -> Any:
        async def look(self: Node, request: Any, context: Any) -> Any:
            counts.append(len(getattr(request, "queues", ()) or getattr(request, "offsets", ())))
            return await call(self, request, context)

        return look

    for name in ("Heartbeat", "FetchOffsets", "CommitOffsets", "QueueOffsets"):
        monkeypatch.setattr(Node, name, counted(getattr(Node, name)))
    monkeypatch.setattr(membership, "QUEUES_OF_CALL_MAX", 6)
    monkeypatch.setattr(reads, "QUEUES_OF_CALL_MAX", 6)
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.topics["bills"] = 4
        topics, read_count = ["orders", "bills"], 6 if mode == "clustering" else 8
        first, other = (client.group_consumer("g", topics, mode=mode) for _ in range(2))
        await asyncio.gather(first.start(), other.start())
        await eventually(lambda: mode != "clustering" or len(first.assignment()) == 4)
        before = first.assignment()
        await other.close()
        await eventually(lambda: len(first.assignment()) == read_count)
        assert {*before} <= {*first.assignment()}
        await fill(client, 0, 4)
        await take(first, 2)
        await first.commit()
        await first.close()
    assert max(counts) <= 6
    warning_count = caplog.text.count("2 queues have no reader")
    # Once whenever a member is alone: also between the two starts, where they come apart.
    assert 1 <= warning_count <= 2 if mode == "clustering" else warning_count == 0


async def test_parked_pulls_leave_room_for_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, pull = 0, 0, Node.Pull

    async def counted(self: Node, request: Any, context: Any) -> Any:
        nonlocal under_way, most
        most = max(most, under_way := under_way + 1)
        try:
            return await pull(self, request, context)
        finally:
            under_way -= 1

    monkeypatch.setattr(Node, "Pull", counted)
    monkeypatch.setattr(prefetch, "PULLS_MAX", 2)
    monkeypatch.setattr(prefetch, "WAIT_SHARED_MS", 10)
    async with fake_cluster() as cluster, connect(cluster) as client:
        consumer = client.group_consumer("g", "orders")
        await consumer.start()
        await fill(client, 0, 8)
        assert len(await take(consumer, 8)) == 8
        await consumer.close()
    assert most == 2
