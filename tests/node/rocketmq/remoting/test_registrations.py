"""Brokers of RocketMQ that register at a node: seen in routes, to be read only."""

import binascii
import json
from pathlib import Path
from typing import Any

import pytest

from node.config.settings import Settings
from node.config.types import Address
from node.rocketmq.remoting.calls.registrations import QUEUE_COUNT_MAX, TOPIC_COUNT_MAX
from tests.node.rocketmq.remoting.clients import (
    CLUSTER,
    PULL,
    ROUTE,
    TOPICS,
    ClassicClient,
    Gateway,
    Heard,
    gateway_at,
)
from tests.patience import eventually

REGISTER, UNREGISTER, VERSION, TOPICS_OF_CLUSTER = 103, 104, 322, 224
MASTER, SLAVE = "127.0.0.1:20911", "127.0.0.1:20921"
NO_PERMISSION, UNKNOWN, BAD, FAILED = 16, 17, 29, 1
DATA_VERSION = {"stateVersion": 0, "timestamp": 1_700_000_000_000, "counter": 3}


def settings(directory: Path, *addresses: str) -> Settings:
    parsed = tuple(map(Address.parse, addresses or (MASTER, SLAVE)))
    return Settings(node_id=1, directory=directory, rocketmq_brokers=parsed)


def header(broker_id: int = 0, address: str = "", name: str = "broker-a") -> dict[str, str]:
    return {
        "brokerName": name,
        "brokerAddr": address or (SLAVE if broker_id else MASTER),
        "clusterName": "old",
        "haServerAddr": "127.0.0.1:20912",
        "brokerId": str(broker_id),
        "enableActingMaster": "false",
        "compressed": "false",
    }


def topic_row(read_count: int = 8, perm: int = 6) -> dict[str, Any]:
    return {
        "perm": perm,
        "readQueueNums": read_count,
        "writeQueueNums": 4,
        "topicSysFlag": 0,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
        "attributes": {},
    }


def registration(**topics: Any) -> bytes:
    """The body of a registration; a map in it has numbers as keys, as fastjson writes them."""
    wrapper = {
        "dataVersion": DATA_VERSION,
        "topicConfigTable": {"TBW102": topic_row(), "broker-a": topic_row(), **topics},
        "topicQueueMappingInfoMap": "@",
    }
    document = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(document).replace('"@"', '{"m":{"currIdMap":{0:1}}}').encode()


async def register(
    client: ClassicClient, broker_id: int = 0, topics: dict[str, Any] | None = None
) -> Heard:
    body = registration(**(topics or {"invoices": topic_row()}))
    ext = header(broker_id) | {"bodyCrc32": str(binascii.crc32(body) & 0x7FFFFFFF)}
    return await client.ask(REGISTER, ext, body)


async def route(gateway: Gateway, topic: str) -> Any:
    heard = await (await gateway.client()).ask(ROUTE, {"topic": topic})
    return json.loads(heard.body) if heard.code == 0 else heard.code


async def test_topics_of_a_broker_are_read_beside_those_of_the_cluster(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        broker, slave, client = [await gateway.client() for _ in range(3)]
        assert await route(gateway, "invoices") == UNKNOWN
        rows = {"invoices": topic_row(), "orders": topic_row(2), "%RETRY%readers": topic_row(1)}
        heard = await register(broker, topics=rows)
        assert (heard.code, json.loads(heard.body)) == (0, {"table": {}})
        heard = await register(slave, broker_id=1)
        assert heard.ext["masterAddr"] == MASTER

        found = await route(gateway, "invoices")
        addresses = {"0": MASTER, "1": SLAVE}
        assert found["brokerDatas"] == [
            {
                "brokerAddrs": addresses,
                "brokerName": "broker-a",
                "cluster": "old",
                "enableActingMaster": False,
            }
        ]
        assert found["queueDatas"] == [
            {
                "brokerName": "broker-a",
                "perm": 4,
                "readQueueNums": 8,
                "writeQueueNums": 4,
                "topicSysFlag": 0,
            }
        ]
        perms = {q["brokerName"]: q["perm"] for q in (await route(gateway, "orders"))["queueDatas"]}
        assert perms == {"g0.n1": 6, "g0.n2": 6, "g0.n3": 6, "broker-a": 4}
        assert await route(gateway, "TBW102") == await route(gateway, "broker-a") == UNKNOWN
        old = await client.ask(ROUTE, {"topic": "invoices"}, version=60)
        assert f'"brokerAddrs":{{0:"{MASTER}",1:"{SLAVE}"}}'.encode() in old.body

        info = json.loads((await client.ask(CLUSTER)).body)
        assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == addresses
        assert info["clusterAddrTable"]["old"] == ["broker-a"]
        assert {"orders", "invoices"} <= set(
            json.loads((await client.ask(TOPICS)).body)["topicList"]
        )
        lists = [
            json.loads((await client.ask(TOPICS_OF_CLUSTER, ext)).body)["topicList"]
            for ext in ({"cluster": "old"}, {"cluster": "unknown"}, {})
        ]
        assert lists[:2] == [["%RETRY%readers", "invoices", "orders"], []]
        assert "orders" in lists[2]
        assert "invoices" not in lists[2], "it is of another cluster"


async def test_a_broker_registers_again_only_when_its_topics_changed(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        broker = await gateway.client()
        same, other = (
            json.dumps(DATA_VERSION | {"counter": counter}).encode() for counter in (3, 4)
        )
        asked = [await broker.ask(VERSION, header(), same)]
        await register(broker)
        asked += [await broker.ask(VERSION, header(), body) for body in (same, other)]
        assert [one.ext["changed"] for one in asked] == ["true", "false", "true"]


async def test_a_broker_is_gone_with_its_connection_its_word_or_its_silence(
    tmp_path: Path,
) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        registrations = gateway.remoting._registrations
        broker = await gateway.client()
        await register(broker)
        assert (await broker.ask(UNREGISTER, header())).code == 0
        assert await route(gateway, "invoices") == UNKNOWN

        await register(broker)
        await broker.close()
        await eventually(lambda: not registrations.brokers())
        assert await route(gateway, "invoices") == UNKNOWN

        now_s = 1_000.0
        registrations._monotonic_s = lambda: now_s
        broker = await gateway.client()
        await register(broker)
        now_s += 119
        registrations.expire()
        await broker.ask(VERSION, header())
        now_s += 119
        registrations.expire()
        assert list(registrations.brokers()) == ["broker-a"]
        now_s += 2
        registrations.expire()
        assert not registrations.brokers()


async def test_an_address_is_that_of_its_latest_broker(tmp_path: Path) -> None:
    """A listed host that registers name after name fills no memory."""
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        client, body = await gateway.client(), registration(invoices=topic_row())
        for name, broker_id in (("broker-a", 0), ("broker-b", 0), ("broker-b", 1)):
            ext = header(broker_id, MASTER, name)
            assert (await client.ask(REGISTER, ext, body)).code == 0
        brokers = gateway.remoting._registrations.brokers()
        assert {name: row["brokerAddrs"] for name, row in brokers.items()} == {
            "broker-b": {"1": MASTER}
        }


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"brokerAddr": "127.0.0.1:20999"}, NO_PERMISSION, "rocketmq_brokers"),
        ({"brokerAddr": "10.1.1.1:10911"}, NO_PERMISSION, "brokerIP1"),
        ({"brokerAddr": "broker.example:10911"}, NO_PERMISSION, "brokerIP1"),
        ({"brokerName": "g0.n2"}, NO_PERMISSION, "another brokerName"),
        ({"brokerName": "b" * 256}, BAD, "brokerName"),
        ({"brokerId": "-1"}, BAD, "brokerId"),
        ({"compressed": "true"}, FAILED, "compressedRegister=false"),
        ({"bodyCrc32": "7"}, FAILED, "crc32"),
    ],
)
async def test_a_registration_that_is_refused_changes_nothing(
    tmp_path: Path, change: dict[str, str], code: int, why: str
) -> None:
    listed = settings(tmp_path, MASTER, "10.1.1.1:10911", "broker.example:10911")
    async with gateway_at(tmp_path, settings=listed) as gateway:
        client = await gateway.client()
        heard = await client.ask(REGISTER, header() | change, registration(invoices=topic_row()))
        assert heard.code == code
        assert why in str(heard.remark)
        assert not gateway.remoting._registrations.brokers()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"a":' * 100_000,
        b'{"topicConfigSerializeWrapper":[]}',
        registration(invoices=[]),
        registration(invoices=topic_row(QUEUE_COUNT_MAX + 1)),
        registration(invoices=topic_row() | {"perm": "6"}),
        registration(**{"t" * 256: topic_row()}),
        registration(**{f"t{n}": {} for n in range(TOPIC_COUNT_MAX + 1)}),
    ],
)
async def test_a_bad_body_is_refused(tmp_path: Path, body: bytes) -> None:
    async with gateway_at(tmp_path, settings=settings(tmp_path)) as gateway:
        heard = await (await gateway.client()).ask(REGISTER, header(), body)
        assert heard.code == BAD
        assert not gateway.remoting._registrations.brokers()


async def test_brokers_sign_nothing_and_clients_do(tmp_path: Path) -> None:
    """RocketMQ's brokers register without a signature; their address is what is checked."""
    keys = {"key": "12345678"}
    async with gateway_at(tmp_path, keys, settings(tmp_path)) as gateway:
        client = await gateway.client()
        assert (await register(client)).code == 0
        assert (await client.ask(PULL, {"topic": "orders"})).code == NO_PERMISSION


async def test_no_broker_registers_where_none_is_listed(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        assert (await register(await gateway.client())).code == NO_PERMISSION
