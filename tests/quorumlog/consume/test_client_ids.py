"""A consumer whose client id is in use: it follows one that crashed, and not one that lives."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quorumlog import errors
from quorumlog.consume import pop
from tests.patience import eventually
from tests.quorumlog.consume.test_pop import FakeBroker, consumer_of
from tests.quorumlog.fake_cluster import Node, abort, connect, error, fake_cluster
from tests.quorumlog.fake_groups import connect as connect_all
from tests.quorumlog.fake_groups import fake_groups

CODE = "node.client_id_in_use"
REFUSALS = pytest.mark.parametrize(
    ("left_ms", "is_let_in"), [([9_000] * 3, True), ([9] * 99, False), ([60_000], False)]
)


async def first_message(ask: Callable[[], Awaitable[Any]], *, is_let_in: bool) -> None:
    if is_let_in:
        await ask()
        return
    with pytest.raises(errors.ClientIdInUseError):
        await ask()


@REFUSALS
async def test_a_member_waits_for_one_session_and_tells_the_program_then(
    monkeypatch: pytest.MonkeyPatch, left_ms: list[int], is_let_in: bool
) -> None:
    left, instances, answer = [*left_ms], set[int](), Node.Heartbeat

    async def refuse(self: Node, request: Any, context: Any) -> Any:
        instances.add(request.instance)
        if left:
            await abort(context, error(CODE, retry_after_ms=left.pop()))
        return await answer(self, request, context)

    monkeypatch.setattr(Node, "Heartbeat", refuse)
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.producer().send("orders", b"x", queue_id=0)
        consumer = client.group_consumer("g", "orders", client_id="c")
        await first_message(lambda: anext(consumer), is_let_in=is_let_in)
        if is_let_in:  # Another one took its place: it reads no longer.
            left.append(9)
            await first_message(lambda: anext(consumer), is_let_in=False)
    assert len(instances - {0}) == 1


@REFUSALS
async def test_a_consumer_that_pops_does_the_same(left_ms: list[int], is_let_in: bool) -> None:
    left, instances = [*left_ms], set[int]()

    class Broker(FakeBroker):
        async def Receive(self, request: Any) -> Any:  # noqa: N802 - as on the wire.
            instances.add(request.instance)
            if left:
                raise errors.ClientIdInUseError("in use", retry_after_ms=left.pop())
            return await super().Receive(request)

    consumer = consumer_of(Broker(orders="x"))
    await first_message(lambda: consumer.receive(1), is_let_in=is_let_in)
    await consumer.close()
    assert len(instances - {0}) == 1


async def test_a_consumer_that_pops_says_whether_a_leader_let_it_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was refused and asks no more holds its client id by no heartbeats."""
    monkeypatch.setattr(pop, "_HEARTBEAT_S", 0.001)
    calls: list[tuple[int, bool]] = []

    class Broker(FakeBroker):
        async def Heartbeat(self, request: Any) -> Any:  # noqa: N802
            calls.append((request.instance, request.is_new))
            return await super().Heartbeat(request)

        async def Receive(self, request: Any) -> Any:  # noqa: N802
            calls.append((request.instance, request.is_new))
            if request.instance != calls[0][0]:
                raise errors.ClientIdInUseError("in use", retry_after_ms=60_000)
            return await super().Receive(request)

    broker = Broker(orders="xy")
    live, second = consumer_of(broker), consumer_of(broker)
    await live.receive(1)
    await first_message(lambda: second.receive(1), is_let_in=False)
    count = len(calls)
    await eventually(lambda: len(calls) > count + 3, "heartbeats")
    await live.receive(1)
    assert {*calls[count:]} == {(calls[0][0], False)}
    assert all(is_new for instance, is_new in calls if instance != calls[0][0])
    assert calls[0][1]
    await live.close()
    await second.close()


async def test_a_member_without_a_share_was_let_in_by_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is new where its topic comes later, and tries again while its client id is in use."""
    monkeypatch.setattr("quorumlog.consume.membership.ABSENT_MS", 20)
    beats, left, answer = dict[str, list[bool]](), [9_000], Node.Heartbeat

    async def hear(self: Node, request: Any, context: Any) -> Any:
        name = self.cluster.group
        beats.setdefault(name, []).append(request.is_new)
        if left and name == "g1":
            await abort(context, error(CODE, retry_after_ms=left.pop()))
        return await answer(self, request, context)

    monkeypatch.setattr(Node, "Heartbeat", hear)
    async with fake_groups("g0", "g1") as groups, connect_all(groups) as client:
        del groups["g1"].topics["orders"]
        async with client.group_consumer("g", "orders", client_id="c"):
            assert beats.keys() == {"g0"}
            groups["g1"].topics["orders"] = 4
            await eventually(lambda: len(beats.get("g1", ())) > 1, "the topic")
    assert beats["g1"][:2] == [True, True]
