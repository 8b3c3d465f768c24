"""The event loop runs beside a program that never waits, whatever call hands it the next item."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.cluster import turns
from quorumlog.consume import consumer, pop
from quorumlog.consume.consumer import Consumption
from quorumlog.consume.pop import PopConsumer, PopMessage, PopOptions
from quorumlog.consume.prefetch import FetchOptions
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.queues import Queue

COUNT = 20
MESSAGES = [Message("t", 0, n, b"", bytes(88), b"") for n in range(COUNT)]


def consumer_of(messages: list[Message], *more: list[Message]) -> Consumption:
    nobody: Any = None
    made, queue = Consumption(nobody, FetchOptions()), Queue("t", 0, "g0")
    made._is_started = True
    made._inbox.get = iterate(  # type: ignore[method-assign]
        MessageBatch("t", 0, 0, COUNT, 0, COUNT, 1, 1, 0, False, part, queue)
        for part in (messages, *more)
    )
    return made


def iterate(items: Any) -> Any:
    async def get() -> Any:
        return next(items)

    return get


def popping() -> PopConsumer:
    nobody: Any = None
    made = PopConsumer(nobody, PopOptions("g", "t"), "c", 1_000)
    made._ready = [PopMessage(message, "h", 1, 0) for message in MESSAGES]
    return made


@pytest.mark.parametrize(
    "take",
    [
        lambda: consumer_of(MESSAGES).__anext__,
        lambda: consumer_of(*([one] for one in MESSAGES)).__anext__,
        lambda: consumer_of(*([one] for one in MESSAGES)).next_batch,
        lambda: popping().__anext__,
    ],
    ids=["messages", "small batches", "batches", "popped"],
)
async def test_the_loop_runs_beside_a_handler_that_blocks(
    take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_s, run_count = 0.0, 0
    clock = SimpleNamespace(monotonic=lambda: blocked_s)
    for module in (turns, consumer, pop):
        monkeypatch.setattr(module, "time", clock)

    async def run() -> None:
        nonlocal run_count
        while True:
            await asyncio.sleep(0)
            run_count += 1

    running, call = asyncio.create_task(run()), take()
    for _ in range(COUNT):
        await call()
        blocked_s += 1.0
    running.cancel()
    assert run_count > COUNT // 2
