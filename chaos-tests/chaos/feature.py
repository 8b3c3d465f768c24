"""Work with one feature of the broker while leaders are struck: its topic, its clients, its tasks.

Owns the connection of these clients, the strikes amid their work, and the end of their tasks. Must
not know the work: its history and its rules are the feature's own.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import quorumlog
from chaos.errors import NotSoError
from chaos.scenario import ScenarioContext
from chaos.strikes import Strike

PATIENT_MS: Final = 60_000
QUEUE_COUNT: Final = 2
MOVED_COUNT: Final = 15
"""Steps of the work before each strike."""


@asynccontextmanager
async def feature_topic(
    x: ScenarioContext, name: str, queue_count: int = QUEUE_COUNT
) -> AsyncIterator[tuple[quorumlog.Client, str]]:
    """Connect a client of its own, and make a topic for it."""
    topic = f"{x.load.clients.topic}-{name}"
    async with quorumlog.connect(
        x.target.bootstrap, timeout_ms=PATIENT_MS, transport=x.load.transport
    ) as client:
        await client.admin.create_topic(topic, queue_count=queue_count)
        yield client, topic


@asynccontextmanager
async def running(*work: Awaitable[None]) -> AsyncIterator[tuple["asyncio.Future[None]", ...]]:
    """Run work beside the body; cancel at its end what has not ended."""
    tasks = tuple(map(asyncio.ensure_future, work))
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def strike_amid(
    x: ScenarioContext,
    strikes: Sequence[Strike],
    work: "asyncio.Future[None]",
    moved_count: Callable[[], int],
    left_count: Callable[[], int],
    left: str,
    *,
    left_count_min: int = 1,
) -> None:
    """Strike in order, each time after some steps of the work; demand that much of it is left,
    which could go wrong. `left` says of what."""
    for strike in strikes:
        goal = moved_count() + MOVED_COUNT

        def has_moved(goal: int = goal) -> bool:
            return work.done() or moved_count() > goal

        await x.until("the work goes on", has_moved)
        count = left_count()
        x.prove(f"{count} {left}", count >= left_count_min)
        await strike(x)


async def is_at_end(client: quorumlog.Client, group: str, topic: str, queue_count: int) -> bool:
    """Whether the offsets of a group are those of the ends of all queues of a topic."""
    queues = (await client.admin.describe_group(group)).queues
    own = [queue for queue in queues if queue.topic == topic]
    return len(own) == queue_count and all(queue.offset == queue.end_offset for queue in own)


async def messages_of(
    client: quorumlog.Client, topic: str, node: int | None = None
) -> list[quorumlog.Message]:
    """Return the messages of a topic in order, by default as leaders show them, else one replica.

    Raises UnknownTopicError."""
    reading = client.pull_consumer(
        topic, until="end", consistency="leader" if node is None else "local", node_id=node
    )
    async with reading as consumer:
        messages = [message async for message in consumer]
    return sorted(messages, key=lambda message: (message.queue_id, message.queue_offset))


async def bodies_of(client: quorumlog.Client, topic: str) -> Counter[bytes]:
    """Return how often each body is in a topic."""
    return Counter([message.body for message in await messages_of(client, topic)])


def demand_same(topic: str, bodies: Counter[bytes], wanted: Counter[bytes]) -> None:
    """Demand that a topic has what it should have. Raises NotSoError."""
    if bodies != wanted:
        lost, extra = wanted - bodies, bodies - wanted
        raise NotSoError(f"{topic}: {lost.total()} are lost, {extra.total()} doubled or not wanted")
