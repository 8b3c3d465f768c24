"""What tools read of counters: they count from the first message, and say since when."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.remoting.calls import node_admin
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, client_at, gateway_at
from tests.node.rocketmq.remoting.test_pop import popped

_SPANS = ("statsMinute", "statsHour", "statsDay")
_NOON = time.mktime((2026, 3, 28, 12, 0, 0, 0, 0, -1))
_DAYS = [time.mktime((2026, 3, 28 + day, 0, 0, 0, 0, 0, -1)) for day in range(6)]


async def sums(
    client: ClassicClient, key: str, kind: str = "TOPIC_PUT_NUMS", name: str = "g0-n1"
) -> Any:
    """Return the sum of each window, or the remark of a refusal."""
    fields = {"statsName": kind, "statsKey": key, "bname": name}
    heard = await client.ask(codes.STATS, fields)
    if heard.code:
        return heard.remark
    assert "counted since 20" in str(heard.remark)
    return tuple(json.loads(heard.body)[span]["sum"] for span in _SPANS)


async def test_a_counter_counts_before_anybody_asks(tmp_path: Path) -> None:
    """Asked before the first sample, after it, and while other names have the node's answer, too:
    tools add these up."""
    async with gateway_at(tmp_path) as gateway:
        client, node = await gateway.client(), gateway.remoting._node
        await client.heartbeat("a@1")
        for sent in (3, 5):
            for _ in range(3 if sent == 3 else 2):
                await client.send(b"12345678")
            await client.pull(0, sent - 2)
            got = 2 if sent == 3 else 4
            for _ in range(2):
                assert await sums(client, "orders") == (sent,) * 3
                assert await sums(client, "orders@readers", "GROUP_GET_NUMS") == (got,) * 3
                assert (await sums(client, "orders", "TOPIC_PUT_SIZE"))[0] > 8 * sent
                assert await sums(client, "x", "BROKER_PUT_NUMS") == (sent,) * 3
                for name in ("g0-n2", "g0-n3"):
                    assert await sums(client, "orders", name=name) == (0, 0, 0)
                    runtime = await client.ask(codes.RUNTIME, {"bname": name})
                    assert json.loads(runtime.body)["table"]["msgPutTotalTodayNow"] == "0"
                await node.sample()
        for _ in range(6):
            await node.sample()
        assert await sums(client, "orders") == (0, 5, 5)
        runtime = await client.ask(codes.RUNTIME, {"bname": "g0-n1"})
        assert json.loads(runtime.body)["table"]["msgPutTotalTodayNow"] == "5"


async def test_days_end_at_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In local time, over a change to summer time, and with a day that was slept through."""
    now_s = _NOON
    monkeypatch.setattr(node_admin, "unix_ms", lambda: int(now_s * 1000))
    async with client_at(tmp_path) as (_, client):

        async def totals() -> tuple[str, ...]:
            table = json.loads((await client.ask(codes.RUNTIME)).body)["table"]
            times = ("TodayNow", "TodayMorning", "YesterdayMorning")
            return tuple(table[f"msgPutTotal{when}"] for when in times)

        assert await totals() == ("0", "0", "0")
        for unix_s, wanted in (
            (_DAYS[1] - 1, ("1", "0", "0")),
            (_DAYS[1], ("2", "2", "0")),
            (_DAYS[2] - 1, ("3", "2", "0")),
            (_DAYS[2], ("4", "4", "2")),
            (_DAYS[2] - 60, ("5", "4", "2")),  # A clock that was set back.
            (_DAYS[4] + 1, ("6", "6", "6")),
        ):
            now_s = unix_s
            await client.send()
            assert await totals() == wanted


async def test_the_busiest_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room says so, and counts later from then on. A topic that is made again has
    nothing of the one before."""
    monkeypatch.setattr(node_admin, "METER_COUNT_MAX", 2)
    async with gateway_at(tmp_path) as gateway:
        client, node = await gateway.client(), gateway.remoting._node

        async def send(topic: str, count: int) -> None:
            for _ in range(count):
                assert (await client.send(topic=topic)).code == 0

        for count, topic in enumerate("abc", 1):
            await gateway.node.create_topic(topic, queue_count=3)
            await send(topic, count)
        await node.sample()
        assert "busiest" in await sums(client, "a")
        assert (await sums(client, "b"), await sums(client, "c")) == ((2, 2, 2), (3, 3, 3))
        await send("a", 2)
        await node.sample()
        assert "busiest" in await sums(client, "b")
        await send("a", 4)
        assert await sums(client, "a") == (4, 4, 4)  # Of 7: when the others came is not known.
        assert await sums(client, "c") == (3, 3, 3)

        await gateway.node.delete_topic("c")
        await node.sample()
        assert "not exist" in await sums(client, "c")
        await gateway.node.create_topic("c", queue_count=3)
        await send("c", 3)
        await node.sample()
        assert await sums(client, "c") == (3, 3, 3)


async def test_messages_taken_by_pop_are_counted(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        await client.send()
        assert (await popped(client)).code == 0
        assert await sums(client, "orders@readers", "GROUP_GET_NUMS") == (1, 1, 1)
        assert await sums(client, "", "BROKER_GET_NUMS") == (1, 1, 1)
