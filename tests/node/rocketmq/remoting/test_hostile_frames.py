"""Frames that no client sends: each ends in an answer or a closed connection, and none inside."""

import asyncio
import json
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.remoting.protocol.codes import REQUEST_NAMES
from node.rocketmq.remoting.protocol.marks import ADDED, FORWARDED, GREETING, KNOWN, NAME, PROOF
from node.runtime.accounts import Kind, Limit
from store.record.message import decode_message
from tests.node.rocketmq.guards import guard_of
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    Gateway,
    client_at,
    gateway_at,
    json_frame,
    send_fields,
)
from tests.node.rocketmq.remoting.test_command import FRAMES
from tests.patience import eventually

NO_PERMISSION, SYSTEM_ERROR, INVALID = 16, 1, 29
_VALUES = (
    "", "0", "-1", "1", "2147483648", "9223372036854775807", "9" * 40, "true", "nan", "x" * 300,
    "%RETRY%", "%RETRY%readers", "%DLQ%x", "RMQ_SYS_TRANS_HALF_TOPIC", "orders", "readers",
    "a\x01b\x02c", "\x00", "\ud800", "g0-n1", "g0-n9", "TAG", "SQL92", "a = ", "1" * 19,
)  # fmt: skip
_FIELDS: list[str] = re.findall(
    r"\S+",
    """
    topic consumerGroup producerGroup group queueId queueOffset maxMsgNums sysFlag commitOffset
    suspendTimeoutMillis subscription subVersion expressionType bname n offset timestamp key maxNum
    beginTimestamp endTimestamp clientID clientId msgId delayLevel originMsgId commitLogOffset
    commitOrRollback readQueueNums writeQueueNums perm attributes groupName brokerName statsName
    statsKey a b c d e f g h i j k l m __QL_NAME __QL_FORWARDED
    """,
)
_SQL = {"expressionType": "SQL92"}
_BODIES: tuple[Any, ...] = (
    {}, [], {"clientID": "c"}, {"clientID": "c", "consumerDataSet": [{"groupName": "readers"}]},
    {"mqSet": [{"topic": "orders", "brokerName": "g0-n1", "queueId": 0}], "clientId": "c"},
    {"mqSet": [{"queueId": "x"}]}, {"topicConfigList": [{}]}, {"groupConfigList": [{}]},
    {"groupName": "readers", "retryMaxTimes": -1}, {"subscriptionData": _SQL},
)  # fmt: skip


def hostile(chance: random.Random, opaque: int) -> bytes:
    """Return a frame that is wrong in one way or several."""
    if chance.random() < 0.3:
        frame = bytearray(chance.choice(list(FRAMES.values())))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(8, len(frame))] ^= 1 << chance.randrange(8)
        return bytes(frame)
    code = chance.choice(list(REQUEST_NAMES)) if chance.random() < 0.95 else 4711
    names = chance.sample(_FIELDS, chance.randint(0, 14))
    ext = {name: chance.choice(_VALUES) for name in names}
    if chance.random() < 0.5:
        ext |= send_fields("orders", chance.randrange(3), "g0-n1")
    if chance.random() < 0.5:
        body = json.dumps(chance.choice(_BODIES)).encode()
    else:
        body = chance.randbytes(chance.choice((0, 3, 60, 400)))
    flag = chance.choice((0, 0, 0, 2, 1, 3, 7))
    return json_frame({"code": code, "opaque": opaque, "flag": flag, "extFields": ext}, body)


async def fire(gateway: Gateway, count: int, seed: int) -> None:
    """Send frames on connections that are opened again when the node closes one."""
    chance, sent = random.Random(seed), 0
    while sent < count:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        draining = asyncio.create_task(reader.read(-1))
        for opaque in range(chance.randint(1, 200)):
            writer.write(hostile(chance, opaque % 50))
            sent += 1
            if opaque % 16 == 0:
                await writer.drain()
            if draining.done():
                break
        writer.close()
        await asyncio.gather(draining, return_exceptions=True)
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def judged(tmp_path: Path, count: int, seed: int) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send(b"before")
        await fire(gateway, count, seed)
        counters = gateway.calls.served.counters
        await eventually(lambda: gateway.server.connections.count == 1, "the end of connections")
        await eventually(lambda: counters.begun.total() == counters.ended.total(), "all calls end")
        assert gateway.call_count == 0
        unforeseen = {key: n for key, n in counters.failed.items() if key[1] == "node.internal"}
        assert not unforeseen, unforeseen
        assert (await client.ask(codes.ROUTE, {"topic": "orders"})).code == 0
        assert (await client.send(b"after")).code == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_hostile_frames_end_in_answers(tmp_path: Path, seed: int) -> None:
    await judged(tmp_path, 1_500, seed)


@pytest.mark.long
async def test_a_million_hostile_frames_end_in_answers(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await judged(tmp_path, 1_000_000, 7)


async def test_an_impossible_size_closes_the_connection(tmp_path: Path) -> None:
    """A short one, a giant one, and a header beyond the frame."""
    async with gateway_at(tmp_path) as gateway:
        for head in ((3, 0), (1 << 24, 0), (20, 1 << 20)):
            client = await gateway.client()
            client.write(struct.pack(">II", *head))
            await client.has_ended


async def test_calls_of_one_connection_are_limited(tmp_path: Path) -> None:
    held = {Kind.CALLS: Limit("calls under way", 32)}
    async with gateway_at(tmp_path, held=held) as gateway:
        gateway.node.driver.is_holding = True
        client = await gateway.client()
        sends = [client.begin_send() for _ in range(4)]
        refused = await client.send()
        assert refused.code == 14
        assert "calls under way of one connection" in str(refused.remark)
        gateway.node.driver.is_holding = False
        gateway.node.driver.commit()
        assert [(await send).code for send in sends] == [0] * 4


async def test_only_a_node_forwards(tmp_path: Path) -> None:
    """With users and without: the fields that a node adds are refused, signed or not."""
    for number, guard in enumerate((None, guard_of({"user": ("admin",)}))):
        async with client_at(tmp_path / str(number), guard=guard) as (gateway, client):
            overheard = await (await gateway.client()).become_node()
            for proof in ("", "00" * 32, "half \ud800", overheard):
                for is_challenged in (True, False):
                    if is_challenged:
                        assert (await client.ask(GREETING)).code == 0
                    refused = await client.ask(GREETING, {PROOF: proof})
                    assert (refused.code, "answer" in str(refused.remark)) == (NO_PERMISSION, True)
            for forged in (*({name: "1"} for name in ADDED), {FORWARDED: "", NAME: ""}):
                refused = await client.ask(
                    codes.SEND, send_fields("orders", 0, "g0-n1") | forged, b"x"
                )
                assert (refused.code, FORWARDED in str(refused.remark)) == (NO_PERMISSION, True)
            assert (await client.pull(0, 0)).body == b""


async def test_an_unreadable_command_of_a_node_is_answered(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        node = await gateway.client()
        await node.become_node()
        fields = {f"x{number}": "" for number in range(256 + len(ADDED) + 1)}
        refused = await node.ask(codes.SEND, fields)
        assert (refused.code, "header" in str(refused.remark)) == (SYSTEM_ERROR, True)
        marks = {FORWARDED: "10.1.2.3:9", NAME: "1"}
        for known in ("-2", str(1 << 63), "x"):
            ext = {"topic": "orders", "queueId": "0", "consumerGroup": "g", "commitOffset": "0"}
            refused = await node.ask(codes.COMMIT, ext | marks | {KNOWN: known})
            assert (refused.code, KNOWN in str(refused.remark)) == (INVALID, True)
        sent = await node.ask(codes.SEND, send_fields("orders", 0, "g0-n1") | marks, b"x")
        assert sent.code == 0
        record = (await node.pull(0, 0, ext={"bname": "g0-n2"})).body
        assert decode_message(record).born_host == ("10.1.2.3", 9)
