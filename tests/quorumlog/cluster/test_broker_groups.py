"""Several broker groups behind one client: which there are, and which message goes where."""

import asyncio
from collections import Counter

import pytest

import quorumlog
from quorumlog import Queue, errors
from quorumlog.cluster.broker_groups import BrokerGroups
from tests.patience import eventually
from tests.quorumlog.fake_cluster import BREAK_AFTER, error, fake_cluster
from tests.quorumlog.fake_groups import connect, fake_groups, is_unreachable


async def test_groups_are_found_from_any_of_them() -> None:
    async with fake_groups("g0", "g1", "g2", count=2) as groups:
        for name in groups:
            async with connect(groups, name) as client:
                assert client.broker_groups == ("g0", "g1", "g2")
                route = await client.route("orders")
                assert [one.broker_group for one in route.broker_groups] == ["g0", "g1", "g2"]
                assert [one.leader_id for one in route.broker_groups] == [1, 3, 5]
                assert {one.topics["orders"].queue_count for one in route.broker_groups} == {4}


async def test_groups_that_nobody_tells_of_are_found_by_their_addresses() -> None:
    async with fake_groups("g0", "g1") as groups:
        for group in groups.values():
            group.neighbours = []
        async with connect(groups) as client:
            assert client.broker_groups == ("g0", "g1")
        async with connect(groups, "g1") as client:
            assert client.broker_groups == ("g1",)


@pytest.mark.usefixtures("be_quick")
async def test_a_group_that_is_gone_is_left_out_until_it_is_back() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups, "g0") as client:
        member = client.group_consumer("g", "orders")
        await member.start()
        assert len(member.assignment()) == 8
        (kept,) = [tasks for group, tasks in member._keeping.items() if group.name == "g1"]
        await groups["g1"].stop()
        groups["g0"].neighbours = []
        await eventually(lambda: client.broker_groups == ("g0",))
        await eventually(lambda: all(task.done() for task in kept))
        await eventually(lambda: {q.broker_group for q in member.assignment()} == {"g0"})
        waiting = asyncio.create_task(client.producer().send("orders", b"later", broker_group="g1"))
        await groups["g1"].start()
        groups["g0"].neighbours = [groups["g1"]]
        await eventually(lambda: client.broker_groups == ("g0", "g1"))
        await eventually(lambda: len(member.assignment()) == 8)
        await member.close()
        assert (await waiting).broker_group == "g1"


@pytest.mark.usefixtures("be_quick")
async def test_the_first_group_stays_the_first_while_it_is_gone() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups, "g1") as client:
        producer = client.producer()
        assert (await producer.send("orders", b"named", queue_id=1)).broker_group == "g0"
        tailing = client.pull_consumer("orders")
        assert (await anext(tailing)).body == b"named"
        await groups["g0"].stop()
        groups["g1"].neighbours = []
        await eventually(lambda: client.broker_groups == ("g1",))
        named = asyncio.create_task(producer.send("orders", b"named", queue_id=1))
        assert (await producer.send("orders", b"free")).broker_group == "g1"
        assert (await anext(tailing)).body == b"free"
        assert not named.done()
        await groups["g0"].start()
        receipt = await named
        assert (receipt.broker_group, receipt.queue_offset) == ("g0", 1)
        assert (await anext(tailing)).body == b"named"
        await tailing.close()


async def test_messages_of_a_named_queue_stay_in_the_first_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumlog.cluster.broker_groups.REFRESH_FIRST_MS", 20)

    async with fake_groups("g0", "g1") as groups:
        groups["g0"].neighbours = []
        async with connect(groups, "g0") as client, client.producer() as producer:
            full = error("store.full", retryable=True)
            groups["g0"].script.extend([full] * 100_000)
            named = [await producer.enqueue("orders", b"%d" % i, queue_id=2) for i in range(9)]
            groups["g0"].neighbours = [groups["g1"]]
            await eventually(lambda: client.broker_groups == ("g0", "g1"))
            # Those behind them of the same group move on.
            free = [await producer.send("orders", b"free") for _ in range(8)]
            assert {receipt.broker_group for receipt in free} == {"g1"}
            groups["g0"].script.clear()
            assert {(await delivery).broker_group for delivery in named} == {"g0"}
            assert groups["g1"].bodies() == [b"free"] * 8


async def test_no_batch_has_named_queues_of_one_group_and_messages_that_may_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumlog.cluster.broker_groups.REFRESH_FIRST_MS", 20)
    async with fake_groups("g0", "g1") as groups:
        groups["g0"].neighbours = []
        async with connect(groups, "g0") as client, client.producer(linger_ms=60_000) as producer:
            await producer.enqueue("orders", b"named", queue_id=2)
            groups["g0"].neighbours = [groups["g1"]]
            await eventually(lambda: client.broker_groups == ("g0", "g1"))
            for _ in range(9):
                await producer.enqueue("orders", b"free")
            await producer.flush()
            assert groups["g0"].entries[0].request.record_count == 1


async def test_all_queues_of_all_groups_get_messages_and_are_read() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        async with client.producer() as producer:
            receipts = [await producer.send("orders", b"%03d" % i) for i in range(64)]
        used = Counter(Queue(r.topic, r.queue_id, r.broker_group) for r in receipts)
        assert len(used) == 8
        assert {q.broker_group for q in used} == {"g0", "g1"}
        messages = [m async for m in client.consume("orders", until="end")]
        assert sorted(m.body for m in messages) == [b"%03d" % i for i in range(64)]
        assert Counter(Queue(m.topic, m.queue_id, m.broker_group) for m in messages) == used
        for receipt in receipts[:4]:
            message = await client.get_message(receipt.message_id)
            assert message.log_position == receipt.log_position
        offsets = await client.queue_offsets("orders")
        assert [(o.broker_group, o.queue_id) for o in offsets] == [
            (group, i) for group in ("g0", "g1") for i in range(4)
        ]
        assert sum(o.end_offset for o in offsets) == 64
        assert await client.queue_offsets("orders", [Queue("orders", 2, "g1")]) == offsets[6:7]


async def test_a_queue_without_a_group_is_of_the_first() -> None:
    async with (
        fake_groups("g0", "g1") as groups,
        connect(groups, "g1") as client,
        client.producer() as producer,
    ):
        assert (await producer.send("orders", b"a", queue_id=2)).broker_group == "g0"
        there = await producer.send("orders", b"b", queue_id=2, broker_group="g1")
        assert (there.broker_group, there.queue_id, there.queue_offset) == ("g1", 2, 0)
        assert (await client.pull("orders", 2, 0)).bodies() == [b"a"]
        assert (await client.pull("orders", 2, 0, broker_group="g1")).bodies() == [b"b"]
        assert (await producer.send("orders", b"c", broker_group="g1")).broker_group == "g1"
        with pytest.raises(errors.InvalidRequestError, match="known are g0, g1"):
            await producer.send("orders", b"d", queue_id=0, broker_group="g7")


async def test_a_key_has_one_queue_and_keys_use_all_of_them() -> None:
    async with (
        fake_groups("g0", "g1", "g2") as groups,
        connect(groups) as client,
        connect(groups, "g2") as another,
    ):
        places: dict[str, Queue] = {}
        producer, other = client.producer(), another.producer()
        for i in range(400):
            delivery = await producer.enqueue("orders", b"", key=f"order-{i}")
            again = await other.enqueue("orders", b"", key=f"order-{i}")
            receipt, second = await delivery, await again
            places[f"order-{i}"] = Queue(receipt.topic, receipt.queue_id, receipt.broker_group)
            assert Queue(second.topic, second.queue_id, second.broker_group) == places[f"order-{i}"]
        counts = Counter(places.values())
        assert len(counts) == 12
        assert min(counts.values()) > 12  # 33 on the average.
        assert len(await client.query_by_key("orders", "order-7")) == 2


async def test_atomic_batches_go_to_one_group_as_a_whole() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        producer = client.producer()
        for n in range(6):
            batch = await producer.send_batch("orders", [b"%d" % i for i in range(9)])
            assert len({receipt.index for receipt in batch}) == 1, n
            assert len({receipt.broker_group for receipt in batch}) == 1, n
        keyed = [quorumlog.OutgoingMessage(b"", key=f"k{i}") for i in range(20)]
        assert len({r.broker_group for r in await producer.send_batch("orders", keyed)}) == 1
        named = await producer.send_batch("orders", [b"a", b"b"], queue_id=1, broker_group="g1")
        assert {(r.broker_group, r.queue_id) for r in named} == {("g1", 1)}
        assert {len(group.entries) > 0 for group in groups.values()} == {True}


async def test_a_topic_that_a_group_lacks_goes_to_those_that_have_it() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        groups["g1"].topics["late"] = 2
        async with client.producer() as producer:
            mixed = []
            for i in range(200):
                mixed.append(await producer.enqueue("late", b"late%d" % i))
                mixed.append(await producer.enqueue("late", b"key%d" % i, key=f"k{i % 7}"))
                mixed.append(await producer.enqueue("orders", b"orders%d" % i))
            await producer.flush()
            receipts = [await delivery for delivery in mixed]
        assert {r.broker_group for r in receipts if r.topic == "late"} == {"g1"}
        assert sum(len(group.bodies()) for group in groups.values()) == 600
        keyed = [m for m in groups["g1"].bodies() if m.startswith(b"key")]
        for k in range(7):  # In order, wherever they waited first.
            numbers = [int(m[3:]) for m in keyed if int(m[3:]) % 7 == k]
            assert numbers == sorted(numbers)
        bodies = [m.body async for m in client.consume("late", until="end")]
        assert len(bodies) == 400
        with pytest.raises(errors.UnknownTopicError):
            await client.producer().send("nowhere", b"")
        with pytest.raises(errors.UnknownTopicError):
            await client.pull_consumer("nowhere").start()
        async with connect(groups) as other, other.producer() as producer:
            for k in range(7):  # It learns from the first one which group lacks the topic.
                await producer.send("late", b"", key=f"k{k}")
            senders = [backlog.sender for backlog in producer._accumulator]
            assert len(senders) == 2
            await eventually(lambda: not any(sender.stuck_ms for sender in senders))


async def test_a_lost_group_does_not_stop_a_producer() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups, timeout_ms=600_000) as client:
        producer = client.producer()
        await client.producer().send("orders", b"warm", broker_group="g1")
        await groups["g1"].stop()
        await is_unreachable(client, "g1")
        deliveries = [
            await producer.enqueue("orders", b"%03d" % i, key=None if i % 2 else f"k{i}")
            for i in range(300)
        ]
        receipts = [await delivery for delivery in deliveries]
        assert {r.broker_group for r in receipts} == {"g0"}
        assert Counter(groups["g0"].bodies()) == Counter(b"%03d" % i for i in range(300))
        with pytest.raises(errors.DeadlineError, match="of broker group g1"):
            await client.producer(timeout_ms=300).send("orders", b"", queue_id=0, broker_group="g1")
        await groups["g1"].start()
        while (await producer.send("orders", b"back")).broker_group != "g1":
            pass
        await producer.close()


async def test_a_batch_without_an_answer_waits_for_its_group() -> None:
    """A batch without an answer is not given to another group: it could be in both then."""

    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        producer = client.producer()
        await producer.send_batch("orders", [b"warm"], broker_group="g1")
        down = asyncio.Event()

        async def stop_group(*_: object) -> object:
            asyncio.get_running_loop().call_soon(down.set)
            return BREAK_AFTER

        groups["g1"].script.append(stop_group)
        doubtful = asyncio.create_task(producer.send("orders", b"doubtful", broker_group="g1"))
        await down.wait()
        await groups["g1"].stop()
        sent = [await producer.send("orders", b"%d" % i) for i in range(20)]
        assert {receipt.broker_group for receipt in sent} == {"g0"}
        assert not doubtful.done()
        await groups["g1"].start()
        receipt = await doubtful
        assert (receipt.broker_group, receipt.is_duplicate) == ("g1", True)
        assert groups["g1"].bodies().count(b"doubtful") == 1
        assert b"doubtful" not in groups["g0"].bodies()
        await producer.close()


async def test_a_group_that_refuses_everything_is_passed_by() -> None:
    """It answers, and has no room: what is bound to no queue goes elsewhere, once."""

    async with fake_groups("g0", "g1") as groups, connect(groups, timeout_ms=600_000) as client:
        full = error("store.full", retryable=True)
        groups["g1"].script.extend([full] * 100_000)
        producer = client.producer()
        deliveries = [await producer.enqueue("orders", b"%03d" % i) for i in range(200)]
        receipts = [await delivery for delivery in deliveries]
        assert {r.broker_group for r in receipts} == {"g0"}
        assert Counter(groups["g0"].bodies()) == Counter(b"%03d" % i for i in range(200))
        assert groups["g1"].bodies() == []
        groups["g1"].script.clear()
        await producer.close()


async def test_nodes_of_before_there_were_groups_are_one_group() -> None:
    async with fake_cluster() as cluster, quorumlog.connect(cluster.bootstrap) as client:
        assert client.broker_groups == ("",)
        receipt = await client.producer().send("orders", b"x")
        assert receipt.broker_group == ""
        assert len((await client.route("orders")).broker_groups) == 1


async def test_there_is_a_bound_on_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.cluster.broker_groups.GROUPS_MAX", 2)

    async with fake_groups("g0", "g1", "g2", "g3") as groups, connect(groups, "g0") as client:
        assert len(client.broker_groups) == 3
        assert isinstance(client._cluster, BrokerGroups)
