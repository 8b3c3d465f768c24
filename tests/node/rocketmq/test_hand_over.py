"""Calls at a node that is about to lead no longer: nothing happened, so whoever leads next does it.
And which broker group has a message group, when groups come and go."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.duration_pb2 import Duration

from node.rocketmq import hold
from node.rocketmq.cluster import GatewayCluster
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.log_pb2 import GroupRoute, NodeAddress, TopicRoute
from quorumlog.pb.rocketmq_pb2 import Code
from raft.errors import TransferringError
from tests.node.broker_fakes import Fixture, node_at
from tests.node.rocketmq.test_service import (
    Gateway,
    ack,
    gateway_at,
    message,
    messages_in,
    stored_count,
)
from tests.patience import eventually

SEND = "MessagingService/SendMessage"


@pytest.fixture(autouse=True)
def holds_calls_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine needs longer than clients wait."""
    monkeypatch.setattr(hold, "HOLD_S", 20.0)


class Pair(NamedTuple):
    """The gateway of a leader, and of the node that leads next: both lead in their own world."""

    last: Gateway
    next: Gateway

    def hand_over(self) -> None:
        self.last.node.driver.lose(2)


@asynccontextmanager
async def pair_at(root: Path) -> AsyncIterator[Pair]:
    async with gateway_at(root / "1") as last, gateway_at(root / "2") as after:
        context = last.node.broker.context
        addresses = {2: f"127.0.0.1:{after.port}"}
        identity = context.identity._replace(addresses=addresses)
        context.identity = identity  # type: ignore[misc]
        yield Pair(last, after)


def refused_count(node: Fixture) -> int:
    return node.broker.produce.failed_total


# --- Calls ---


async def test_a_send_at_a_node_that_drains_is_answered_by_the_next_leader(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        node = pair.last.node
        node.broker.produce.is_draining = True
        sending = [asyncio.ensure_future(pair.last.send(b"%d" % n)) for n in range(3)]
        await eventually(lambda: refused_count(node) >= 3, "all were refused once")
        assert not any(task.done() for task in sending)
        pair.hand_over()
        answers = await asyncio.gather(*sending)
        assert [answer.entries[0].status.code for answer in answers] == [Code.OK] * 3
        assert (stored_count(pair.last), stored_count(pair.next)) == (0, 3)


async def test_a_call_that_meets_a_hand_over_that_fails_is_answered_here(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        driver = gateway.node.driver
        driver.failure = TransferringError(2)
        assert (await gateway.send()).status.code == Code.OK
        assert stored_count(gateway) == 1
        driver.failure = TransferringError(2)
        (message,) = messages_in(await gateway.receive())
        driver.failure = TransferringError(2)
        done = ack(message.system_properties.receipt_handle)
        acked = await gateway.call("AckMessage", done)
        assert acked.status.code == Code.OK
        assert driver.failure is None


async def test_a_send_is_refused_by_name_when_nobody_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HOLD_S", 0.2)
    async with gateway_at(tmp_path) as gateway:
        gateway.node.broker.produce.is_draining = True
        status = (await gateway.send()).status
        assert status.code == Code.HA_NOT_AVAILABLE
        assert status.message.startswith("node.draining")
        assert gateway.rocketmq.counters.failed[SEND, "node.draining"] == 1
        assert stored_count(gateway) == 0


async def test_a_partly_stored_request_is_not_sent_on(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        node = pair.last.node
        node.driver.is_holding = True
        request = pb.SendMessageRequest(messages=[message(b"1"), message(b"2")])
        sending = asyncio.ensure_future(pair.last.call("SendMessage", request))
        await eventually(lambda: len(node.driver.pending) == 1, "the first one is written")
        node.broker.produce.is_draining = True
        node.driver.release()
        answer = await sending
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK, Code.HA_NOT_AVAILABLE]
        assert (stored_count(pair.last), stored_count(pair.next)) == (1, 0)


async def test_a_receive_that_waits_goes_on_at_the_next_leader(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as pair:
        waiting = Duration(seconds=20)
        receiving = asyncio.ensure_future(pair.last.receive(long_polling_timeout=waiting))
        pop = pair.last.node.broker.pop
        await eventually(lambda: pop.shared.lines.room.used == 1, "it waits")
        await pair.next.send(b"from there")
        pair.hand_over()
        assert [message.body for message in messages_in(await receiving)] == [b"from there"]


# --- What nobody foresaw ---


async def test_an_error_that_nobody_foresaw_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_request: object) -> None:
        raise ValueError("never seen before")

    async with gateway_at(tmp_path) as gateway:
        monkeypatch.setattr(gateway.node.broker, "append", fail)
        answer = await gateway.send()
        assert answer.entries[0].status.code == Code.INTERNAL_SERVER_ERROR
        assert gateway.rocketmq.counters.failed[SEND, "node.internal"] == 1


# --- Message groups ---


def route(group: str, queue_count: int) -> GroupRoute:
    topic = TopicRoute(topic="orders", queue_count=queue_count, permission=6)
    node = NodeAddress(node_id=1, address=f"{group}:1")
    return GroupRoute(group=group, leader_id=1, nodes=[node], topics=[topic])


async def test_a_message_group_stays_when_other_broker_groups_come_and_go(tmp_path: Path) -> None:
    names = [f"message group {number}" for number in range(300)]
    others = [route("g1", 4), route("g2", 8)]

    def other_groups(_topics: Iterable[str]) -> list[GroupRoute]:
        return others

    async with node_at(tmp_path) as node:
        cluster = GatewayCluster(node.broker.context, other_groups, lambda _: True)

        def places() -> dict[str, tuple[str, int]]:
            return {name: cluster.queue_of_message_group("orders", name) for name in names}

        before = places()
        assert set(before.values()) == {
            *(("g0", number) for number in range(4)),
            *(("g1", number) for number in range(4)),
            *(("g2", number) for number in range(8)),
        }
        away = others.pop()
        without = places()
        moved = {name for name in names if without[name] != before[name]}
        assert moved == {name for name in names if before[name][0] == "g2"}
        assert {without[name][0] for name in moved} == {"g0", "g1"}
        others.append(away)
        assert places() == before
        others.append(route("g3", 4))
        after = places()
        assert {after[name][0] for name in names if after[name] != before[name]} == {"g3"}
