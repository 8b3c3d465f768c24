"""What tests of pop do again and again, over a broker of `broker_fakes`."""

import asyncio
from typing import Any, NamedTuple

from node.state.tables.pop import PopTable, Window
from quorumlog.pb.admin_pb2 import DescribeGroupRequest
from quorumlog.pb.pop_pb2 import (
    AckRequest,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    GiveUpRequest,
    ReceiveRequest,
    ReceiveResponse,
)
from store.record.message import encode_message
from tests.node.broker_fakes import Fixture
from tests.patience import eventually
from tests.store.records import messages

GROUP = "workers"


class Got(NamedTuple):
    """One delivery: what was sent, how often it came, and its handle."""

    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, which nobody needs here.
    handle: str
    queue_id: int
    offset: int


async def send(node: Fixture, *bodies: str, topic: str = "orders", queue_id: int = 0) -> None:
    """Append a batch in which the letters of a body are its message group: a1, a2 and b1."""
    records = [
        encode_message(
            topic,
            queue_id,
            body.encode(),
            {"__SHARDINGKEY": key} if (key := body.rstrip("0123456789")) else {},
        )
        for body in bodies
    ]
    await node.put(*records)


async def ask(node: Fixture, **how: Any) -> ReceiveResponse:
    fields = {"group": GROUP, "topic": "orders", "queue_id": -1, "invisible_ms": 1_000, **how}
    return await node.broker.pop.receive(ReceiveRequest(**fields))


def got(response: ReceiveResponse) -> list[Got]:
    rows = zip(messages(response.records), response.deliveries, strict=True)
    return [
        Got(m.body.decode(), d.delivery_count, d.handle, m.queue_id, m.queue_offset)
        for m, d in rows
    ]


async def receive(node: Fixture, max_count: int = 32, **how: Any) -> list[Got]:
    return got(await ask(node, max_count=max_count, **how))


async def ack(node: Fixture, *deliveries: Got, topic: str = "orders", group: str = GROUP) -> int:
    """Acknowledge; return how many were stale."""
    handles = [delivery.handle for delivery in deliveries]
    response = await node.broker.pop.ack(AckRequest(group=group, topic=topic, handles=handles))
    return len(response.stale_handles)


async def hide(node: Fixture, delivery: Got, invisible_ms: int) -> ChangeInvisibleResponse:
    return await node.broker.pop.change_invisible(
        ChangeInvisibleRequest(
            group=GROUP, topic="orders", handle=delivery.handle, invisible_ms=invisible_ms
        )
    )


async def give_up(node: Fixture, delivery: Got) -> None:
    request = GiveUpRequest(group=GROUP, topic="orders", handle=delivery.handle)
    await node.broker.pop.give_up(request)


def pass_time(node: Fixture, ms: int) -> None:
    """Let time pass, and have the leader look."""
    node.clock.now_ms += ms
    node.broker.pop.shared.deadlines.look()


async def parked(node: Fixture, count: int = 1, **how: Any) -> "asyncio.Task[list[Got]]":
    """Begin a receive that finds nothing yet; with it so many wait."""
    task = asyncio.create_task(receive(node, wait_ms=30_000, **how))
    await eventually(lambda: node.broker.pop.shared.lines.room.used == count)
    return task


def part(node: Fixture) -> PopTable:
    return node.machine.state.table(PopTable)


def window(node: Fixture, queue_id: int = 0, group: str = GROUP) -> Window | None:
    return part(node).windows.get((group, "orders", queue_id))


def offset_of(node: Fixture, queue_id: int = 0, group: str = GROUP) -> int:
    """What the group has stored: everything before it is done."""
    return node.machine.state.groups[group]["orders"][queue_id]


async def lag(node: Fixture, group: str = GROUP) -> int:
    described = await node.broker.groups.describe_group(DescribeGroupRequest(group=group))
    return described.info.lag_count


def bodies(deliveries: list[Got]) -> list[str]:
    return [delivery.body for delivery in deliveries]
