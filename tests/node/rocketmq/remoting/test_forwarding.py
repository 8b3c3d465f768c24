"""A node that does not lead has the leader answer, and holds commands during an election."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.framed.connection import WINDOW
from node.framed.limits import FramedLimits
from node.rocketmq import hold
from node.rocketmq.remoting import conversation
from node.rocketmq.remoting.calls import messages
from node.rocketmq.remoting.service import ISOLATED_S, Isolation
from node.runtime.accounts import Kind, Limit
from raft.transitions import Role
from store.record.message import decode_message
from tests.node.broker_fakes import ADDRESSES, expire_some
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    Gateway,
    binary_frame,
    client_at,
    gateway_at,
    send_fields,
)
from tests.patience import eventually

QUEUE = {"topic": "orders", "queueId": "0", "bname": "g0-n1", "consumerGroup": "readers"}
UNAVAILABLE = 14
MIB = 1 << 20


def follow(gateway: Gateway, leader_id: int) -> None:
    """Let a node stop leading."""
    driver = gateway.node.driver
    driver.role, driver.is_ready, driver.leader_id = Role.FOLLOWER, False, leader_id


def lead(gateway: Gateway) -> None:
    driver = gateway.node.driver
    driver.role, driver.is_ready, driver.leader_id = Role.LEADER, True, 1


@asynccontextmanager
async def pair_at(
    root: Path, held: dict[Kind, Limit] | None = None
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """A leader, and a node that knows it as node 2 and has limits of what it holds."""
    async with (
        gateway_at(root / "leader") as leader,
        gateway_at(root / "follower", held=held) as follower,
    ):
        follower.remoting.places.learn(ADDRESSES[2], (f"127.0.0.1:{leader.port}",))
        follow(follower, 2)
        yield leader, follower


async def test_the_leader_carries_out_what_any_node_is_told(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client, reader = await follower.client(), await leader.client()
        sent = await client.send(b"far", name="g0-n3")
        assert sent.code == 0, sent
        record = decode_message((await reader.pull(0, 0, ext={"bname": "g0-n3"})).body)
        assert record.body == b"far"
        assert record.born_host[0] == "127.0.0.1"
        assert (await client.send(b"near")).code == 0
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "1"})
        assert (await reader.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "1"
        assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "1"


async def test_an_offset_beyond_the_end_is_asked_of_the_leader(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (_, follower):
        client = await follower.client()
        await client.send()
        response = await client.pull(0, 1)  # This node has no message, the leader has one.
        assert (response.code, response.ext["nextBeginOffset"]) == (19, "1")
        moved = await client.pull(0, 2)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "1")


async def test_no_view_of_a_follower_is_given_as_the_groups(tmp_path: Path) -> None:
    """Its log begins later than the leader's, and it lags: it knows less topics."""
    async with pair_at(tmp_path) as (leader, follower):
        lead(follower)
        await expire_some(follower.node)
        follow(follower, 2)
        lo, hi = follower.node.log.store.reads.queue_range("orders", 0)
        for at in range(0, hi, 20):
            await leader.node.append(at, at + 20)
        client = await follower.client()
        at = 0
        while at < hi:  # The messages that only the leader has, and those that both have.
            response = await client.pull(0, at)
            assert (response.code, decode_message(response.body).queue_offset) == (0, at)
            at = int(response.ext["nextBeginOffset"])
        assert 0 < lo < hi
        for fresh in ("fresh", "other"):
            await leader.node.create_topic(fresh)
        assert (await client.ask(codes.ROUTE, {"topic": "fresh"})).code == 0
        assert (await client.pull(0, 0, ext={"topic": "fresh"})).code == 19
        assert (await client.ask(codes.ROUTE, {"topic": "none"})).code == 17
        row = await client.ask(codes.TOPIC, {"topic": "other", "bname": "g0-n1"})
        assert row.code == 0


async def test_a_send_is_held_until_a_node_leads_and_then_refused_by_a_code_that_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_at(tmp_path) as (gateway, client):
        follow(gateway, 0)
        sent = asyncio.create_task(client.send())
        await eventually(lambda: gateway.call_count, "the send")
        lead(gateway)
        assert (await sent).code == 0
        monkeypatch.setattr(hold, "HOLD_S", 0.0)
        for leader_id in (0, 2):  # None, and one that is known and has not told its address.
            follow(gateway, leader_id)
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
        await eventually(lambda: len(leader.node.driver.pending) > 0, "the send at the leader")
        for connection in leader.server.connections.all:
            connection.cut()
        answer = await sent
        assert (answer.code, "not known" in str(answer.remark)) == (UNAVAILABLE, True)
        assert follower.remoting.forwarder.forwarded_total == 1


async def test_a_node_that_is_cut_off_closes_its_connections_and_one_in_an_election_does_not(
    tmp_path: Path,
) -> None:
    clock, connected = [0.0], {2}
    async with client_at(tmp_path) as (gateway, client):
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
        leader.node.broker.produce.is_draining = True
        sent = asyncio.create_task(client.send())
        await eventually(lambda: leader.node.broker.produce.failed_total > 0, "it was refused")
        assert not sent.done()
        leader.node.broker.produce.is_draining = False
        answer = await sent
        assert (answer.code, answer.ext["queueOffset"]) == (0, "1")


def hostile() -> Iterator[tuple[str, int, dict[str, str], bytes]]:
    """Yield name, code, ext fields and body of commands that grow, or ask for much."""
    limits, at = FramedLimits(), {"topic": "orders", "queueId": "0", "bname": "g0-n1"}
    many = {f"x{number}": "" for number in range(256 - len(at))}
    yield "256 ext fields", codes.MAX, at | many, b""
    whole = limits.header_size_bytes_max - 200
    yield "a header of the largest size", codes.MAX, at | {"x": "x" * whole}, b""
    yield "half of a surrogate pair", codes.MAX, at | {"x": "\ud800"}, b""
    yield "half of one where it matters", codes.MAX, at | {"topic": "\ud800"}, b""
    yield "an empty field", codes.MAX, at | {"topic": ""}, b""
    yield "an empty field of many", codes.MAX, at | {"x": "x" * whole, "topic": ""}, b""
    body = bytes(limits.frame_size_bytes_max - 1_000)
    yield "a frame of the largest size", codes.SEND, send_fields("orders", 0, "g0-n1"), body
    query = {"topic": "orders", "key": "big", "maxNum": "64", "bname": "g0-n1"}
    yield "more messages than an answer has", codes.KEY, query | {"endTimestamp": str(1 << 62)}, b""


async def test_what_a_follower_takes_the_leader_takes_and_only_its_sender_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_SIZE_BYTES_MAX", 3 * 8_192)
    async with pair_at(tmp_path) as (leader, follower):
        client, near = await follower.client(), await leader.client()
        for _ in range(8):
            assert (await client.send(bytes(8_192), KEYS="big")).code == 0
        (channel,) = follower.remoting.forwarder._channels.values()
        other = await follower.client()
        for name, code, ext, body in hostile():
            sends = [other.begin_send(b"v", 1) for _ in range(8)]
            response, expected = await client.ask(code, ext, body), await near.ask(code, ext, body)
            assert response._replace(opaque=expected.opaque) == expected, name
            assert [(await sent).code for sent in sends] == [0] * 8, name
        assert 8_192 < len(response.body) < 3 * 8_192
        long = {"x" * 70_000: "", **QUEUE}
        assert (await client.ask(codes.MAX, long)).code == 29, "no form has room for this name"
        size_bytes = FramedLimits().header_size_bytes_max
        empty = len(binary_frame(codes.MAX, 7, 0, QUEUE | {"x": ""})) - 8
        raw = binary_frame(codes.MAX, 7, 0, QUEUE | {"x": "\x01" * (size_bytes - empty)})
        client._answers[7] = answer = asyncio.get_running_loop().create_future()
        client.write(raw)
        assert (await answer).code == 0
        assert [*follower.remoting.forwarder._channels.values()] == [channel]
        assert follower.calls.accounts.held(Kind.FORWARDED) == (0, 0)
        leader.calls.accounts.settle()
        assert not leader.calls.accounts._remotes


async def test_an_answer_above_the_limit_is_an_error_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_at(tmp_path) as (_, client):
        await client.send(bytes(4_096))
        monkeypatch.setattr(conversation, "ANSWER_SIZE_BYTES_MAX", 4_096)
        refused = await client.pull(0, 0)
        assert (refused.code, "ask for less" in str(refused.remark)) == (1, True)
        assert (await client.send()).code == 0


async def test_one_address_leaves_room_on_the_way_to_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HOLD_S", 0.0)
    held = {Kind.FORWARDED: Limit("forwarded requests", 4, connection_part=2)}
    async with pair_at(tmp_path, held) as (leader, follower):
        client = await follower.client()
        assert (await client.send()).code == 0
        leader.node.driver.is_holding = True
        sends = [client.begin_send() for _ in range(2)]
        await eventually(lambda: len(leader.node.driver.pending) > 0, "they are on the way")
        refused = await client.send()
        assert (refused.code, "node.busy" in str(refused.remark)) == (UNAVAILABLE, True)
        other = await follower.client("127.0.0.2")
        sends.append(other.begin_send())
        accounts = follower.calls.accounts
        await eventually(lambda: accounts.held(Kind.FORWARDED)[0] == 3, "others have their share")
        leader.node.driver.release()
        assert [(await sent).code for sent in sends] == [0] * 3
        await other.close()
        assert accounts.held(Kind.FORWARDED) == (0, 0)
        leader.calls.accounts.settle()
        assert not leader.calls.accounts._remotes


async def test_a_call_whose_client_has_gone_counts_until_the_leader_is_done(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client = await follower.client()
        leader.node.driver.is_holding = True
        client.begin_send()  # Connects first: a task.
        accounts = follower.calls.accounts
        await eventually(lambda: len(leader.node.driver.pending) > 0, "the leader has it")
        await client.close()
        await eventually(lambda: not follower.server.connections.all, "its client has gone")
        assert accounts.held(Kind.FORWARDED)[0] == 1
        assert len(leader.calls.accounts._remotes) == 1
        leader.node.driver.release()
        await eventually(lambda: not accounts.held(Kind.FORWARDED)[0], "the answer")


async def test_a_node_that_is_taken_for_a_stranger_forwards_once_it_knows_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HOLD_S", 0.0)
    async with pair_at(tmp_path) as (_, follower):
        client, forwarder = await follower.client(), follower.remoting.forwarder
        right = forwarder._proofs.token_of
        for told, reason in ((b"", "has not told"), (bytes(16), "for a stranger")):
            forwarder._proofs.token_of = {2: told}.__getitem__
            refused = await client.send()
            assert (refused.code, reason in str(refused.remark)) == (UNAVAILABLE, True)
        assert forwarder.forwarded_total == 0
        forwarder._proofs.token_of = right
        assert (await client.send()).code == 0


async def test_sends_that_were_not_written_before_a_break_are_sent_once(tmp_path: Path) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        client = await follower.client()
        assert (await client.send(queue=1)).code == 0
        (channel,) = follower.remoting.forwarder._channels.values()
        (connection,) = leader.server.connections.all
        connection.hold(WINDOW)
        large = [client.begin_send(bytes(MIB)) for _ in range(12)]
        small = [client.begin_send() for _ in range(8)]
        await eventually(lambda: len(channel._waiting) == 20, "all are on the way")
        assert channel._unwritten
        connection.cut()
        assert [(await sent).code for sent in small] == [0] * 8
        assert "not known" in str((await large[0]).remark)
        near = await leader.client()
        queue = {"topic": "orders", "queueId": "0", "bname": "g0-n1"}
        assert (await near.ask(codes.MAX, queue)).ext["offset"] == "8"


async def test_a_change_is_answered_once_all_nodes_that_are_up_show_it(tmp_path: Path) -> None:
    async with gateway_at(tmp_path / "leader") as leader, gateway_at(tmp_path / "other") as other:
        leader.remoting.places.learn(ADDRESSES[2], (f"127.0.0.1:{other.port}",))
        leader.remoting._shared.cluster._is_connected = lambda node: node == 2
        client = await leader.client()
        fields = {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        change = asyncio.create_task(client.ask(codes.PUT_TOPIC, fields))
        parked = other.node.broker.parked
        await eventually(lambda: bool(parked._by_index), "the question to the other node")
        assert leader.node.broker.context.state.topic("new") is not None
        assert not change.done()
        await other.node.append(0, 1)  # Of another log, which has as many entries now.
        assert (await change).code == 0
