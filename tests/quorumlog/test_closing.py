"""Closing while something else is under way: everybody is answered, and nothing is left behind."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.client import Client
from quorumlog.cluster.close_once import failures_beside
from quorumlog.errors import Outcome
from tests.patience import eventually
from tests.quorumlog.fake_cluster import FakeCluster, fake_cluster
from tests.quorumlog.surface import exports


def connect(cluster: FakeCluster, timeout_ms: int = 600_000) -> quorumlog.Client:
    return quorumlog.connect(cluster.bootstrap, timeout_ms=timeout_ms)


async def stays_open(task: "asyncio.Task[Any]") -> bool:
    done, _ = await asyncio.wait({task}, timeout=0.1)
    return not done


async def test_a_second_close_waits_for_the_first() -> None:
    """A client that was closed while its producer flushed took the connections from under it."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"0")
        cluster.nodes[1].gate.clear()
        delivery = producer.send_nowait("orders", b"1")
        flushing = asyncio.create_task(producer.close())
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        client.producer()  # What is closing is not forgotten for it.
        closing = asyncio.create_task(client.close())
        assert await stays_open(closing)
        cluster.nodes[1].gate.set()
        await asyncio.gather(flushing, closing, client.close())
        assert delivery.result().queue_offset >= 0
        assert cluster.bodies() == [b"0", b"1"]


async def test_a_close_that_is_cancelled_decides_nothing_for_the_next_one() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        await producer.send("orders", b"0")
        cluster.nodes[1].gate.clear()
        producer.send_nowait("orders", b"1")
        first = asyncio.create_task(producer.close())
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        second = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        cluster.nodes[1].gate.set()
        await second
        assert cluster.bodies() == [b"0", b"1"]


@pytest.mark.parametrize("ends_by", [None, ValueError("the program's"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_blocking", [False, True])
async def test_every_failure_of_a_close_is_raised_or_logged_and_noted(
    caplog: pytest.LogCaptureFixture, is_blocking: bool, ends_by: BaseException | None
) -> None:
    """Of several producers, with and without an error of the block, which stays the one raised."""

    def use(client: quorumlog.Client | sync.Client) -> None:
        for topic in ("none1", "none2"):
            client.producer().send_nowait(topic, b"")
        if ends_by is not None:
            raise ends_by

    def use_blocking(bootstrap: str) -> None:
        with sync.connect(bootstrap) as client:
            use(client)

    async with fake_cluster() as cluster:
        try:
            if is_blocking:
                await asyncio.to_thread(use_blocking, cluster.bootstrap)
            else:
                async with connect(cluster) as client:
                    use(client)
        except (ValueError, KeyboardInterrupt, errors.UnknownTopicError) as error:
            raised = error
    assert raised is ends_by or isinstance(raised, errors.UnknownTopicError)
    logged = " ".join(one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    noted = " ".join(getattr(raised, "__notes__", ()))
    for told in (noted, logged):
        assert f"{raised!r} {told}".count("UnknownTopicError") >= 2


def test_a_refusal_that_comes_again_in_the_close_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = errors.PermissionDeniedError("lacks Sub", code="node.forbidden")
    with suppress(errors.DeadlineError), failures_beside(refused):
        raise refused
    with suppress(errors.DeadlineError), failures_beside(refused):
        raise errors.DeadlineError("late")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(refused.__notes__) == 2


async def test_two_who_close_while_nobody_leads_both_end() -> None:
    async with fake_cluster() as cluster, connect(cluster, timeout_ms=150) as client:
        cluster.leader_id = 0
        producer = client.producer()
        producer.send_nowait("orders", b"0")
        results = await asyncio.gather(producer.close(), client.close(), return_exceptions=True)
        assert [type(result) for result in results] == [errors.DeadlineError, type(None)]


async def test_a_producer_that_is_ended_at_once_ends_those_who_flush() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.leader_id = 0
        producer = client.producer()
        delivery = producer.send_nowait("orders", b"0")
        flushing = asyncio.create_task(producer.close())
        await eventually(lambda: client.stats().questions > 6)
        await producer.abort()
        with pytest.raises(errors.ClosedError):
            await flushing
        with pytest.raises(errors.ClosedError):
            delivery.result()
        await producer.close()


async def test_a_sender_that_is_cancelled_by_others_fails_what_waits() -> None:
    """As at the end of an event loop: nobody would ever send it."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.leader_id = 0
        producer = client.producer()
        sending = asyncio.create_task(producer.send("orders", b"0"))
        await eventually(lambda: client.stats().questions > 6)
        (backlog,) = producer._accumulator
        assert backlog.task is not None
        backlog.task.cancel()
        with pytest.raises(errors.ClosedError) as caught:
            await sending
        assert caught.value.outcome is Outcome.NOT_APPLIED, "no leader: it was not sent"
        with pytest.raises(errors.ClosedError):
            await producer.send("orders", b"1")


async def test_a_batch_that_breaks_the_sender_fails_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise AssertionError("a bug")

    monkeypatch.setattr("quorumlog.produce.delivery.encode_entries", broken)

    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        with pytest.raises(errors.InternalError, match="a bug"):
            await producer.send("orders", b"0")
        await producer.abort()


async def test_calls_that_look_for_a_leader_are_told_that_the_client_is_closed() -> None:
    """They were cancelled, as if somebody had cancelled the caller."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        cluster.leader_id = 0
        calls = [
            asyncio.create_task(client.admin.list_topics()),
            asyncio.create_task(client.pull("orders", 0, 0)),
        ]
        await eventually(lambda: client.stats().questions > 6)
        groups = client._cluster
        await client.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [errors.ClosedError] * 2
        assert [len(group.router.channels) for group in groups.known()] == [0]


async def test_a_call_that_was_sent_is_in_doubt_when_the_client_is_closed() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.admin.list_topics()
        cluster.nodes[1].gate.clear()
        storing = asyncio.create_task(client.admin.commit_offsets("g", {("orders", 0): 1}))
        assert await stays_open(storing)
        await client.close()
        with pytest.raises(errors.ClosedError) as caught:
            await storing
        assert caught.value.outcome is Outcome.UNKNOWN
        cluster.nodes[1].gate.set()


async def test_a_client_that_is_closed_while_it_starts_does_not_start() -> None:
    async with fake_cluster() as cluster:
        for node in cluster.nodes.values():
            node.gate.clear()
        client = connect(cluster)
        starting = asyncio.create_task(client.start())
        assert await stays_open(starting)
        await client.close()
        for node in cluster.nodes.values():
            node.gate.set()
        with pytest.raises(errors.ClosedError):
            await starting


Make = Callable[[Client], Any]


@pytest.mark.parametrize(
    "make",
    [lambda client: client.group_consumer("g", "orders"), lambda c: c.pull_consumer("orders")],
    ids=["group", "pull"],
)
async def test_a_consumer_that_is_closed_while_it_starts_reads_nothing(make: Make) -> None:
    """It joined later all the same, and had queues that nobody read."""

    async with fake_cluster() as cluster:
        cluster.leader_id = 0
        async with connect(cluster) as client:
            consumer = make(client)
            starting = asyncio.create_task(consumer.start())
            iterating = asyncio.create_task(anext(consumer))
            await eventually(lambda: client.stats().questions > 6)
            await consumer.close()
            cluster.elect(2)
            for task in (starting, iterating):
                with pytest.raises(errors.ClosedError):
                    await task
            assert not any(cluster.members.values())
            assert not consumer._fetchers
            with pytest.raises(errors.ClosedError):
                await consumer.start()


async def test_a_member_that_is_closed_during_its_heartbeat_is_not_one_afterwards() -> None:
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        consumer = client.group_consumer("g", "orders")
        await client.route("orders")
        answered = cluster.nodes[1].Heartbeat

        async def hang(request: Any, context: Any) -> Any:
            await answered(request, context)
            await asyncio.Event().wait()

        cluster.nodes[1].Heartbeat = hang  # type: ignore[method-assign]
        # gRPC keeps the methods that a server was made with.
        await cluster.nodes[1].stop()
        await cluster.nodes[1].start()
        starting = asyncio.create_task(consumer.start())
        await eventually(lambda: bool(cluster.members.get("g")))
        await consumer.close()
        with pytest.raises(errors.ClosedError):
            await starting
        assert cluster.members["g"] == []


async def test_several_may_start_one_consumer() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        consumer = client.pull_consumer("orders")
        await asyncio.gather(*(consumer.start() for _ in range(3)))
        assert sorted(consumer.offsets()) == [0, 1, 2, 3]
        await asyncio.gather(consumer.close(), consumer.close())


BLOCKS = {name: made for name, made in exports().items() if hasattr(made, "close")}


@pytest.mark.parametrize("name", BLOCKS)
async def test_a_close_that_fails_leaves_the_error_of_the_block(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, failure = BLOCKS[name], errors.ClosedError("a fork")
    is_async = hasattr(kind, "__aexit__")
    monkeypatch.setattr(kind, "close", (AsyncMock if is_async else Mock)(side_effect=failure))

    async def leave(error: BaseException | None) -> None:
        left = (kind.__aexit__ if is_async else kind.__exit__)(
            kind.__new__(kind), type(error), error, None
        )
        assert not (await left if is_async else left)

    await leave(SystemExit(0))
    with pytest.raises(errors.ClosedError, match="a fork"):
        await leave(None)
