"""A node that does not lead has the leader answer, and holds commands during an election."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.rocketmq import hold
from node.rocketmq.remoting.isolation import ISOLATED_S, Isolation
from raft.transitions import Role
from store.record.message import decode_message
from tests.node.broker_fakes import ADDRESSES
from tests.node.rocketmq.remoting.clients import COMMIT, GET_OFFSET, MEMBERS, Gateway, gateway_at
from tests.patience import eventually

QUEUE = {"topic": "orders", "queueId": "0", "bname": "g0.n1", "consumerGroup": "readers"}
UNAVAILABLE = 14


def follow(gateway: Gateway, leader_id: int) -> None:
    """Let a node stop leading."""
    driver = gateway.node.driver
    driver.role, driver.is_ready, driver.leader_id = Role.FOLLOWER, False, leader_id


@asynccontextmanager
async def pair_at(root: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """A leader, and a node that knows it as node 2."""
    async with gateway_at(root / "leader") as leader, gateway_at(root / "follower") as follower:
        follower.remoting.places.learn(ADDRESSES[2], (f"127.0.0.1:{leader.port}",))
        follow(follower, 2)
        yield leader, follower


async def test_the_leader_carries_out_what_any_node_is_told(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client, reader = await follower.client(), await leader.client()
        sent = await client.send(b"far", name="g0.n3")
        assert sent.code == 0, sent
        record = decode_message((await reader.pull(0, 0, ext={"bname": "g0.n3"})).body)
        assert record.body == b"far"
        assert record.born_host[0] == "127.0.0.1"
        await client.ask(COMMIT, QUEUE | {"commitOffset": "1"})
        assert (await reader.ask(GET_OFFSET, QUEUE)).ext["offset"] == "1"
        assert (await client.ask(GET_OFFSET, QUEUE)).ext["offset"] == "1"


async def test_an_offset_beyond_the_end_is_asked_of_the_leader(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (_, follower):
        client = await follower.client()
        await client.send()
        found = await client.pull(0, 1)  # This node has no message, the leader has one.
        assert (found.code, found.ext["nextBeginOffset"]) == (19, "1")
        moved = await client.pull(0, 2)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "1")


async def test_members_are_those_that_the_leader_knows(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client, other = await follower.client(), await leader.client()
        await other.heartbeat("a@1")
        found = await client.ask(MEMBERS, {"consumerGroup": "readers"})
        assert found.body == b'{"consumerIdList":["a@1"]}'


async def test_a_send_is_held_until_a_node_leads(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client = await gateway.client()
        follow(gateway, 0)
        sent = asyncio.create_task(client.send())
        await eventually(lambda: gateway.call_count, "the send")
        driver = gateway.node.driver
        driver.role, driver.is_ready, driver.leader_id = Role.LEADER, True, 1
        assert (await sent).code == 0


async def test_a_send_without_a_leader_is_refused_by_the_code_that_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HOLD_S", 0.0)
    async with gateway_at(tmp_path) as gateway:
        client = await gateway.client()
        follow(gateway, 0)
        assert (await client.send()).code == UNAVAILABLE
        follow(gateway, 2)  # Known, and it has not told its address.
        assert (await client.send()).code == UNAVAILABLE


async def test_a_command_is_not_forwarded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HOLD_S", 0.0)
    async with pair_at(tmp_path) as (leader, follower):
        leader.remoting.places.learn(ADDRESSES[2], (f"127.0.0.1:{follower.port}",))
        follow(leader, 2)
        client = await follower.client()
        assert (await client.send()).code == UNAVAILABLE
        assert leader.remoting.forwarder.forwarded_total == 0


async def test_a_send_with_an_unknown_outcome_is_not_sent_again(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client = await follower.client()
        leader.node.driver.is_holding = True
        sent = asyncio.create_task(client.send())
        await eventually(lambda: leader.call_count, "the send at the leader")
        for connection in leader.server.connections.all:
            connection.cut()
        answer = await sent
        assert (answer.code, "not known" in str(answer.remark)) == (UNAVAILABLE, True)
        assert follower.remoting.forwarder.forwarded_total == 1


async def test_a_node_that_is_cut_off_closes_its_connections_and_one_in_an_election_does_not(
    tmp_path: Path,
) -> None:
    clock, connected = [0.0], {2}
    async with gateway_at(tmp_path) as gateway:
        client = await gateway.client()
        assert (await client.send()).code == 0
        cluster = gateway.remoting.forwarder._cluster
        cluster._is_connected = connected.__contains__
        isolation = Isolation(cluster, gateway.calls, lambda: clock[0])

        def closed_at(now_s: float) -> int:
            clock[0] = now_s
            isolation.look()
            return isolation.closed_total

        follow(gateway, 0)
        assert [closed_at(now_s) for now_s in (0.0, 60.0)] == [0, 0], "an election that takes long"
        connected.clear()
        times = (100.0, 100.0 + ISOLATED_S - 0.1, 100.0 + ISOLATED_S)
        assert [closed_at(now_s) for now_s in times] == [0, 0, 1]
        await client.has_ended
        follow(gateway, 2)
        await (await gateway.client()).heartbeat("a@1")
        assert closed_at(200.0) == 1, "a leader is known again"


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_a_send_that_meets_a_hand_over_is_held_and_stored_once(
    tmp_path: Path, is_forwarded: bool
) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client = await (follower if is_forwarded else leader).client()
        assert (await client.send()).code == 0  # The next one finds the connection open.
        leader.node.broker.set_draining(True)
        sent = asyncio.create_task(client.send())
        await eventually(lambda: leader.node.broker.produce.failed_total > 0, "it was refused")
        assert not sent.done()
        leader.node.broker.set_draining(False)
        answer = await sent
        assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
