"""Rows that the node keeps for classic clients: paid for by an account, and gone with it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from node.config.settings import Settings
from node.rocketmq.remoting.calls import unique_keys
from node.runtime.accounts import Kind, Limit
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, Gateway, client_at, gateway_at
from tests.patience import eventually

Hold = Callable[[ClassicClient, int], Awaitable[object]]
PULLED = {
    "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "6",
    "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*", "bname": "g0-n1",
}  # fmt: skip
POPPED = {
    "topic": "orders", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000",
    "pollTime": "25000", "initMode": "0", "exp": "*", "bname": "g0-n1",
}  # fmt: skip


async def lock(client: ClassicClient, number: int, client_id: str = "a") -> Any:
    row = {"topic": "orders", "brokerName": "g0-n1", "queueId": 0}
    body = {"consumerGroup": f"g{number}", "clientId": client_id, "mqSet": [row]}
    return json.loads((await client.ask(codes.LOCK, body=body)).body)["lockOKMQSet"]


async def known(client: ClassicClient, number: int) -> None:
    ext = {"topic": "orders", "queueId": "0", "bname": "g0-n1", "consumerGroup": f"g{number}"}
    await client.ask(codes.GET_OFFSET, ext)


async def stats(client: ClassicClient, number: int) -> None:
    for kind, key in (("TOPIC_PUT_NUMS", f"t{number}"), ("GROUP_GET_NUMS", f"orders@g{number}")):
        await client.ask(codes.STATS, {"statsName": kind, "statsKey": key})


async def parked(code: int, ext: dict[str, str], client: ClassicClient, number: int) -> None:
    client.begin(code, ext | {"consumerGroup": f"g{number}"})
    await client.ask(codes.ROUTE, {"topic": "orders"})  # Begins behind it.


HOLDS: dict[str, tuple[Kind, Hold]] = {
    "members": (Kind.MEMBERS, lambda one, n: one.heartbeat(f"c{n}", f"g{n % 3}", f"t{n}")),
    "producers and their checks": (Kind.ROWS, lambda one, n: one.produce_for("c", f"p{n}")),
    "locks": (Kind.LOCKS, lock),
    "known offsets": (Kind.ROWS, known),
    "counters": (Kind.CALLS, stats),
    "pulls": (Kind.CALLS, lambda one, n: parked(codes.PULL, PULLED, one, n)),
    "pops": (Kind.CALLS, lambda one, n: parked(codes.POP, POPPED, one, n)),
}


def sizes(gateway: Gateway) -> tuple[int, ...]:
    """Return the sizes of all tables that hold something for clients."""
    remoting, broker = gateway.remoting, gateway.node.broker
    clients, locks = remoting.groups.clients, remoting.locks
    tables: tuple[Sized, ...] = (
        *(clients.consumers, clients.producers, clients._members_of, clients._producing),
        *(locks._of_group, locks._of_client, locks._of_account, remoting.transactions._checks),
        *(remoting._node._meters, remoting._node._got, gateway.calls._connections),
    )
    accounts = gateway.calls.accounts
    accounts.settle()
    held = (sum(accounts.total.counts), sum(accounts.total.sizes), len(accounts.addresses))
    return (*map(len, tables), clients.count, locks.count, broker.parked.readers.used, *held)


@pytest.mark.parametrize(("kind", "hold"), HOLDS.values(), ids=HOLDS)
async def test_a_connection_that_ends_leaves_nothing_behind(
    tmp_path: Path, kind: Kind, hold: Hold
) -> None:
    async with gateway_at(tmp_path) as gateway:
        before = sizes(gateway)
        client = await gateway.client()
        for number in range(24):
            await hold(client, number)
        held_count = gateway.calls.accounts.held(kind)[0]
        assert held_count == 24 or kind is Kind.CALLS
        await client.close()
        await eventually(lambda: sizes(gateway) == before, "the tables as they were")
        assert sizes(gateway) == before


@pytest.mark.parametrize("what", ["members", "producers and their checks", "locks"])
async def test_rows_of_connections_that_end_go_in_slices_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    kind, hold = HOLDS[what]
    async with gateway_at(tmp_path) as gateway:
        (remoting, held), before = (gateway.remoting, gateway.calls.accounts.held), sizes(gateway)
        for first in range(0, 96, 24):
            client = await gateway.client()
            for number in range(first, first + 24):
                await hold(client, number)
        monkeypatch.setattr(gateway.node.broker.context.turn, "is_over", lambda: True)
        for connection in gateway.server.connections.all:
            connection.cut()
        left, most = held(kind)[0], 0
        assert left == 96
        assert not remoting.groups.clients.members((True, "g1"))
        assert remoting.groups.clients.producer("c") is None
        assert not any(remoting.locks.is_locked(f"g{number}") for number in range(96))
        while left:
            await asyncio.sleep(0)
            most, left = max(most, left - held(kind)[0]), held(kind)[0]
        assert most == (8 if what == "members" else 1), "those of a group together"
        await eventually(lambda: sizes(gateway) == before, "the tables as they were")


@pytest.mark.parametrize(("kind", "hold"), HOLDS.values(), ids=HOLDS)
async def test_a_flood_of_one_connection_leaves_another_one_served(
    tmp_path: Path, kind: Kind, hold: Hold
) -> None:
    held = {kind: Limit("things", 64, 1 << 24)}
    async with gateway_at(tmp_path, held=held) as gateway:
        flood = await gateway.client()
        with suppress(TimeoutError):
            for number in range(96):
                await hold(flood, number)
        assert gateway.calls.accounts.held(kind)[0] <= 8
        other = await gateway.client("127.0.0.2")
        await other.heartbeat("victim", "victims")
        response = await other.ask(codes.MEMBERS, {"consumerGroup": "victims"})
        assert json.loads(response.body) == {"consumerIdList": ["victim"]}
        await other.produce_for("victim", "paying")
        assert "paying" in gateway.remoting.transactions._checks
        assert len(await lock(other, 1_000)) == 1
        assert (await other.send()).code == 0


async def test_a_lock_of_one_address_is_no_other_s(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        first, second = await gateway.client(), await gateway.client()
        await first.heartbeat("a", "g1")
        assert len(await lock(first, 1)) == 1
        stranger = await gateway.client("127.0.0.2")
        assert await lock(stranger, 1) == []
        await second.heartbeat("a", "g1")
        await first.close()
        await eventually(lambda: gateway.server.connections.count == 2, "the end of the first")
        assert await lock(second, 1, "b") == [], "its client is here, and may read"


async def test_names_are_limited_where_they_are_read(tmp_path: Path) -> None:
    long = "n" * 4_000
    async with client_at(tmp_path) as (gateway, client):
        await client.ask(codes.ROUTE, {"topic": "orders"})
        before = sizes(gateway)
        consumer = {"groupName": "g", "consumeType": long}
        row = {"topic": "orders", "brokerName": "g0-n1", "queueId": 0}
        locked = {"consumerGroup": "g", "clientId": "c", "mqSet": [row]}
        wrong: list[dict[str, Any]] = [{"consumerGroup": long}, {"consumerGroup": "g" * 200}]
        wrong += [{"clientId": "c" * 300}]
        wrong += [{"mqSet": [row | bad]} for bad in ({"topic": "t" * 200}, {"queueId": 1 << 40})]
        for code, ext, document in (
            (codes.STATS, {"statsName": "TOPIC_PUT_NUMS", "statsKey": long}, {}),
            (codes.MEMBERS, {"consumerGroup": long}, {}),
            (codes.ROUTE, {"topic": long}, {}),
            (codes.PULL, PULLED | {"consumerGroup": long}, {}),
            (codes.HEARTBEAT, {}, {"clientID": long}),
            (codes.HEARTBEAT, {}, {"clientID": "c", "producerDataSet": [{"groupName": long}]}),
            (codes.HEARTBEAT, {}, {"clientID": "c", "consumerDataSet": [consumer]}),
            *((code, {}, locked | bad) for bad in wrong for code in (codes.LOCK, codes.UNLOCK)),
        ):
            answer = await client.ask(code, ext, document)
            assert answer.code == 29, (code, answer)
            assert len(str(answer.remark)) < 1_100
        assert sizes(gateway) == before
        assert (await client.ask(codes.ROUTE, {"topic": "orders"}, language=long)).code == 0


async def test_unique_keys_of_a_flood_push_out_no_other_address_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_keys, "KEY_COUNT_MAX", 8)
    settings = Settings(node_id=1, directory=tmp_path, rocketmq_unique_ms=60_000)
    async with gateway_at(tmp_path, settings=settings) as gateway:
        keys, client = gateway.remoting.unique_keys, await gateway.client()
        assert keys is not None
        other = await gateway.client("127.0.0.2")
        first = await other.send(UNIQ_KEY="of another")
        floods = [await client.send(UNIQ_KEY=f"{n}" + "k" * 10_000) for n in range(12)]
        assert (await other.send(UNIQ_KEY="of another")).ext["msgId"] == first.ext["msgId"]
        assert {sent.code for sent in floods} == {0}
        assert len(keys._sends) == 5
        assert max(len(key) for _, key in keys._sends) < 64
        for n, sent in enumerate(floods):  # The index has the older ones.
            assert (await client.send(UNIQ_KEY=f"{n}" + "k" * 10_000)).ext == sent.ext
