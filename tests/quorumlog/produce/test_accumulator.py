"""What a producer sends through several broker groups keeps its order, whatever moves elsewhere."""

import asyncio

import pytest

import quorumlog
from tests.patience import eventually
from tests.quorumlog.fake_groups import connect, fake_groups


async def key_of(client: quorumlog.Client, group: str) -> str:
    """A key whose messages go to a group."""
    producer = client.producer()
    for i in range(1_000):
        if (await producer.send("orders", b"probe", key=f"k{i}")).broker_group == group:
            return f"k{i}"
    raise AssertionError("all keys are of one group")


async def test_messages_that_stay_of_split_batches_keep_their_order() -> None:
    """What stayed of each batch was put before that of the one before it."""

    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        groups["g1"].topics["late"] = 1
        key = await key_of(client, "g0")
        sent = [b"%03d" % i for i in range(60)]
        async with client.producer(batch_count_max=4) as producer:
            for i, body in enumerate(sent):
                await producer.enqueue("orders", body, key=key)
                if i % 5 == 0:
                    await producer.enqueue("late", b"late" + body, key=key)
        there = groups["g0"].bodies()
        assert [body for body in there if body != b"probe"] == sent
        late = [body for body in groups["g1"].bodies() if body != b"probe"]
        assert late == [b"late" + body for body in sent[::5]]


async def test_atomic_batches_that_no_other_group_can_take_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of their topics is elsewhere, and nowhere both: they were taken out, and put back."""
    monkeypatch.setattr("quorumlog.produce.accumulator.WATCH_MS", 60_000)

    async with fake_groups("g0", "g1", "g2") as groups, connect(groups) as client:
        for name, topics in {"g0": "ab", "g1": "a", "g2": "b"}.items():
            groups[name].topics.update(dict.fromkeys(topics, 1))
        await client.route("a", "b")
        producer = client.producer()
        await groups["g0"].stop()
        sending = []
        for i in range(3):
            both = [quorumlog.OutgoingMessage(b"%d" % i, topic=topic) for topic in "ab"]
            sending.append(asyncio.create_task(producer.send_batch("a", both)))
        backlog = producer._accumulator.home
        await eventually(lambda: backlog.sender.load == 3)
        backlog.group.is_away = True
        producer._accumulator._move(backlog)
        backlog.group.is_away = False
        await groups["g0"].start()
        await asyncio.gather(*sending)
        assert groups["g0"].bodies() == [b"0", b"0", b"1", b"1", b"2", b"2"]


async def test_a_batch_that_leaves_a_group_stays_one_and_one_with_a_queue_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both were made while there was one group; then one message with a queue binds its batch."""
    monkeypatch.setattr("quorumlog.produce.accumulator.WATCH_MS", 60_000)

    async with fake_groups("g0", "g1", "g2") as groups, connect(groups) as client:
        await client.route("orders")
        producer = client.producer()
        await groups["g0"].stop()
        accumulator = producer._accumulator
        accumulator.only = backlog = accumulator.home
        free = [await producer.enqueue("orders", b"f%d" % i) for i in range(8)]
        backlog.close_open()
        bound = [await producer.enqueue("orders", b"b0")]
        bound.append(await producer.enqueue("orders", b"b1", queue_id=3))
        backlog.close_open()
        accumulator.only = None
        backlog.group.is_away = True
        accumulator._move(backlog)
        backlog.group.is_away = False
        moved = await asyncio.gather(*(delivery.receipt() for delivery in free))
        assert len({(receipt.broker_group, receipt.index) for receipt in moved}) == 1
        assert moved[0].broker_group != "g0"
        await groups["g0"].start()
        stayed = await asyncio.gather(*(delivery.receipt() for delivery in bound))
        assert {receipt.broker_group for receipt in stayed} == {"g0"}
        assert stayed[1].queue_id == 3


async def test_a_group_that_is_cut_off_after_a_pause_is_left_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time without an answer did not count in a stream that had answered everything before."""
    for name in ("REFRESH_FIRST_MS", "REFRESH_MS"):  # Else that finds it some time.
        monkeypatch.setattr(f"quorumlog.cluster.broker_groups.{name}", 600_000)

    async with fake_groups("g0", "g1") as groups, connect(groups, timeout_ms=600_000) as client:
        key = await key_of(client, "g1")
        producer = client.producer()
        for group in groups:
            await producer.send("orders", b"warm", broker_group=group)
        (node,) = groups["g1"].nodes.values()
        node.gate.clear()
        unanswered = asyncio.create_task(producer.send("orders", b"named", broker_group="g1"))
        (backlog,) = (backlog for backlog in producer._accumulator if backlog.group.name == "g1")
        await eventually(lambda: backlog.sender.in_flight_count == 1)
        # Sooner than by the deadline of the one without an answer.
        receipt = await producer.send("orders", b"keyed", key=key)
        assert receipt.broker_group == "g0"
        node.gate.set()
        assert (await unanswered).broker_group == "g1"


async def test_a_healthy_group_is_not_away_because_a_message_has_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One producer with a time-out of 20 ms made all others of its client leave the group."""
    monkeypatch.setattr("quorumlog.produce.accumulator.WATCH_MS", 1)

    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        (node,) = groups["g1"].nodes.values()
        patient, hurried = client.producer(), client.producer(timeout_ms=20)
        await patient.send("orders", b"warm", broker_group="g1")
        node.gate.clear()  # It takes a while, as a slow disk may.
        sent = asyncio.create_task(patient.send("orders", b"slow", broker_group="g1"))
        with pytest.raises(quorumlog.errors.QuorumlogError):  # Sent in time, or not even that.
            await hurried.send("orders", b"late", broker_group="g1")
        (backlog,) = (b for b in hurried._accumulator if b.group.name == "g1")
        assert not backlog.group.is_away
        node.gate.set()
        assert (await sent).broker_group == "g1"
        assert not backlog.group.is_away


async def test_a_message_that_names_its_group_shares_no_batch_with_one_that_may_move() -> None:
    async with fake_groups("g0", "g1") as groups, connect(groups) as client:
        key = await key_of(client, "g0")
        producer = client.producer()
        free = producer.send_nowait("orders", b"free", key=key)
        bound = producer.send_nowait("orders", b"bound", broker_group="g0")
        again = producer.send_nowait("orders", b"again", key=key)
        receipts = [await delivery.receipt() for delivery in (free, bound, again)]
        assert {receipt.broker_group for receipt in receipts} == {"g0"}
        first = receipts[0].index
        assert [receipt.index - first for receipt in receipts] == [0, 1, 2]
