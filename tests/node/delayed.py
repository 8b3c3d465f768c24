"""Delayed messages as tests send and find them."""

import asyncio
from typing import Any

from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store.record.message import encode_message
from tests.node.broker_fakes import Fixture, hidden

NOW = 1_000_000
"""Of the broker's clock when a test begins."""


def delayed(number: int, *, topic: str = "orders", queue_id: int = 0, **properties: str) -> bytes:
    """One record whose body is its number."""
    return encode_message(topic, queue_id, b"%d" % number, properties)


def request_of(*records: bytes, **how: Any) -> AppendRequest:
    """A batch with delayed messages."""
    fields: dict[str, Any] = {"record_count": len(records), **how}
    return AppendRequest(records=b"".join(records), has_delayed=True, **fields)


async def send(node: Fixture, *records: bytes, **how: int) -> AppendResponse:
    return await node.broker.append(request_of(*records, **how))


def bodies(node: Fixture, topic: str = "orders", queue_id: int = 0) -> list[int]:
    """The numbers of the messages that readers see, in order."""
    return [int(message.body) for message in hidden(node, topic, queue_id)]


async def settle(node: Fixture) -> None:
    """Have the broker look at the clock, and let it do everything that it can do now."""
    delivery_task = node.broker.delay.delivery_task
    for _ in range(20):
        delivery_task.look()
        for _ in range(10):
            await asyncio.sleep(0)


async def move(node: Fixture, to_ms: int) -> None:
    """Have the broker do what it does at a time."""
    node.clock.now_ms = to_ms
    await settle(node)
