"""A background task of the SDK that breaks is never silent: a caller or the log gets the error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.cluster import broker_groups
from quorumlog.pb import pop_pb2
from tests.patience import eventually
from tests.quorumlog.fake_cluster import Node, connect, fake_cluster


class Parts:
    """One of each object with tasks; a call to the object of a task is where its error shows."""

    def __init__(self, client: quorumlog.Client) -> None:
        self.producer = client.producer()
        self.pull = client.pull_consumer("orders", position="end")
        self.group = client.group_consumer("g", "orders", position="end")
        self.pop = client.pop_consumer("p", "orders")
        self.asking = client.transactional_producer("t", lambda _: "commit")

    async def start(self) -> None:
        await self.producer.send("orders", b"")
        await self.pull.start()
        await self.group.start()
        self.asking.start()
        await self.pop.receive(wait=0)


CALLS: dict[str, Callable[[Parts], Awaitable[Any]]] = {
    "Sender.run": lambda parts: parts.producer.send("orders", b""),
    "Fetcher._run": lambda parts: anext(parts.pull),
    "PullConsumer._look": lambda parts: anext(parts.pull),
    "GroupConsumer._keep_alive": lambda parts: anext(parts.group),
    "GroupConsumer._keep_committed": lambda parts: anext(parts.group),
    "PopConsumer._keep_alive": lambda parts: parts.pop.receive(wait=0),
    "TransactionalProducer._listen": lambda parts: parts.asking.begin("orders", b""),
}


def _waits(name: str) -> "list[asyncio.Future[Any] | None]":
    """What each task of that name waits for; None for what cannot fail in its place."""
    tasks = [one for one in asyncio.all_tasks() if one.get_coro().__qualname__ == name]  # type: ignore[union-attr]
    waits = [one._fut_waiter for one in tasks]  # type: ignore[attr-defined]
    return [
        one if type(one) is not asyncio.Task and one and not one.done() else None for one in waits
    ]


async def _receive(*_: Any) -> pop_pb2.ReceiveResponse:
    return pop_pb2.ReceiveResponse()


async def _break(name: str) -> None:
    await eventually(lambda: bool(waits := _waits(name)) and None not in waits)
    for one in _waits(name):
        assert one is not None
        one.set_exception(ZeroDivisionError("a bug"))
        one.set_result = lambda _: None  # type: ignore[method-assign]  # By gRPC, to which some are.
    await asyncio.sleep(0)


@pytest.mark.parametrize("name", CALLS)
async def test_the_next_call_raises_what_ended_a_task(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "Receive", _receive, raising=False)
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        parts = Parts(client)
        await parts.start()
        await _break(name)
        with pytest.raises((ZeroDivisionError, errors.InternalError), match="a bug"):
            await CALLS[name](parts)


@pytest.mark.parametrize("asked", ["survey", "refresh"])
async def test_a_client_logs_an_error_of_its_tasks_and_asks_again(
    asked: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("REFRESH_FIRST_MS", "REFRESH_MS", "PROBE_MS"):
        monkeypatch.setattr(broker_groups, pause, 1)
    async with fake_cluster(1) as cluster, connect(cluster) as client:
        group = client._cluster.home
        method, calls = getattr(group.router, asked), list[Any]()

        async def broken_once(given: Any) -> None:
            calls.append(given)
            await method(0 / 0 if len(calls) == 1 else given)

        setattr(group.router, asked, broken_once)
        client._cluster.suspect(group)
        await eventually(lambda: len(calls) > 1 and not group.is_away)
    assert [one.exc_info[0] for one in caplog.records if one.exc_info] == [ZeroDivisionError]
