"""The way of a message through the classic protocol: route, send, members, offsets, pull."""

import asyncio
import json
from pathlib import Path

from store.record.message import decode_message, message_id
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import (
    ClassicClient,
    Heard,
    client_at,
    entry,
    gateway_at,
    send_fields,
)
from tests.patience import eventually

SUCCESS, NOT_FOUND, NO_TOPIC, MOVED, INVALID = 0, 19, 17, 21, 29


async def test_a_route_shares_the_queues_out_among_the_broker_names(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        answer = await client.ask(codes.ROUTE, {"topic": "orders"})
        route = json.loads(answer.body)
        address = f"127.0.0.1:{gateway.port}"
        assert [(b["brokerName"], b["brokerAddrs"]) for b in route["brokerDatas"]] == [
            (name, {"0": address}) for name in ("g0-n1", "g0-n2", "g0-n3")
        ]
        counts = [
            (q["brokerName"], q["readQueueNums"], q["writeQueueNums"], q["perm"])
            for q in route["queueDatas"]
        ]
        assert counts == [("g0-n1", 2, 2, 6), ("g0-n2", 1, 1, 6), ("g0-n3", 1, 1, 6)]

        assert (await client.ask(codes.ROUTE, {"topic": "none"})).code == NO_TOPIC


async def test_old_clients_get_numbers_as_keys(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        old = await client.ask(codes.ROUTE, {"topic": "orders"}, version=317)
        assert b'"brokerAddrs":{0:"127.0.0.1:' in old.body
        fields = {"topic": "orders", "acceptStandardJsonOnly": "true"}
        json.loads((await client.ask(codes.ROUTE, fields, version=317)).body)


async def test_what_was_sent_to_a_name_is_pulled_from_its_queue(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        sent = await client.send(b"first", queue=1, KEYS="k1")
        assert sent.code == SUCCESS, sent
        assert (sent.ext["queueId"], sent.ext["queueOffset"]) == ("1", "0")

        pulled = await client.pull(1, 0)
        assert (pulled.code, pulled.ext["nextBeginOffset"]) == (SUCCESS, "1")
        record = decode_message(pulled.body)
        assert (record.body, record.queue_id, record.queue_offset) == (b"first", 1, 0)
        assert record.properties["KEYS"] == "k1"
        assert record.store_host == ("127.0.0.1", gateway.port)
        assert sent.ext["msgId"] == message_id(record.store_host, record.position)
        # The name g0-n1 owns every third queue of the group: 0 and 3.
        assert gateway.node.broker.context.store.queue_range("orders", 3) == (0, 1)


async def test_a_name_without_queues_takes_messages(tmp_path: Path) -> None:
    async with client_at(tmp_path, topics={"orders": 1}) as (_, client):
        assert (await client.send(name="g0-n3")).code == SUCCESS
        assert (await client.send(name="g0-n3", queue=1)).code == INVALID
        assert (await client.ask(codes.SEND, send_fields("orders", 0, "g0-n9"))).code == INVALID
        pulled = await client.pull(0, 0)
        assert decode_message(pulled.body).queue_offset == 0


async def test_members_of_a_group_are_told_of_each_other(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        first, second = await gateway.client(), await gateway.client()
        await first.heartbeat("a@1")
        assert (await first.hear()).ext == {"consumerGroup": "readers"}
        await second.heartbeat("b@2")
        notice = await first.hear()
        assert (notice.code, notice.flag) == (codes.CHANGED, 2)
        assert (await second.hear()).code == codes.CHANGED
        fields = {"consumerGroup": "readers"}
        members = json.loads((await first.ask(codes.MEMBERS, fields)).body)
        assert members == {"consumerIdList": ["a@1", "b@2"]}

        await second.ask(codes.UNREGISTER, {"clientID": "b@2", "consumerGroup": "readers"})
        await first.hear()
        members = json.loads((await first.ask(codes.MEMBERS, fields)).body)
        assert members == {"consumerIdList": ["a@1"]}
        await second.heartbeat("b@2")
        await first.hear()
        await second.close()
        assert (await first.hear()).code == codes.CHANGED, "a connection that ended"
        assert json.loads((await first.ask(codes.MEMBERS, fields)).body) == members


async def test_the_retry_topic_of_a_group_is_made_with_its_first_message(tmp_path: Path) -> None:
    """Until then it is an empty queue: clients ask for it from the start, and keep quiet."""
    retry = {"topic": "%RETRY%readers", "consumerGroup": "readers", "bname": "g0-n1"}
    async with client_at(tmp_path) as (gateway, client):
        await client.heartbeat("a@1")
        for code in (codes.MAX, codes.MIN, codes.GET_OFFSET):
            assert (await client.ask(code, retry | {"queueId": "0"})).ext["offset"] == "0"
        assert (
            await client.ask(codes.COMMIT, retry | {"queueId": "0", "commitOffset": "0"})
        ).code == 0
        route = json.loads((await client.ask(codes.ROUTE, retry)).body)
        assert {q["brokerName"]: q["readQueueNums"] for q in route["queueDatas"]}["g0-n1"] == 1
        assert (await client.ask(codes.TOPIC_STATS, retry)).code == 0
        names = json.loads((await client.ask(codes.TOPICS)).body)["topicList"]
        assert names == ["%RETRY%readers", "orders"]
        assert (await client.pull(0, 0, ext=retry)).code == 19
        assert (await client.pull(0, 7, ext=retry | {"consumerGroup": "others"})).code == 17
        waiting = asyncio.create_task(client.pull(0, 0, wait_ms=60_000, ext=retry))
        await eventually(lambda: gateway.node.broker.parked.readers.used == 1, "the pull")
        assert [*gateway.node.broker.context.state.topics] == ["orders"]
        copy = send_fields(retry["topic"], 0, "g0-n1", RETRY_TOPIC="orders")
        assert (await client.ask(codes.SEND, copy, b"again")).code == 0
        assert decode_message((await waiting).body).body == b"again"


async def test_a_batch_becomes_records_of_their_own(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        fields = send_fields("orders", 0, "g0-n1") | {"m": "true"}
        batch = entry(b"one", b"K\x01a\x02") + entry(b"two", b"K\x01b")
        answer = await client.ask(codes.BATCH, fields, batch)
        assert answer.code == SUCCESS, answer
        ids = answer.ext["msgId"].split(",")
        pulled = await client.pull(0, 0)
        first = decode_message(pulled.body)
        second = decode_message(pulled.body, first.size_bytes)
        rows = [(m.body, m.properties["K"], m.message_id) for m in (first, second)]
        assert rows == [(b"one", "a", ids[0]), (b"two", "b", ids[1])]
        broken = await client.ask(codes.BATCH, fields, entry(b"one")[:-1])
        assert broken.code == 13


async def test_a_one_way_request_has_no_answer(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        client.begin(codes.SEND, send_fields("orders", 0, "g0-n1"), b"x", flag=2)
        pulled = await client.pull(0, 0, wait_ms=15_000)
        assert decode_message(pulled.body).body == b"x"


async def question(client: ClassicClient) -> Heard:
    """Return the next question of the node about the client."""
    while (heard := await client.hear()).code == codes.CHANGED:
        pass
    assert heard.code == 307, heard
    return heard


async def test_a_pull_of_a_consumer_uses_its_registered_subscription(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        fields = {"sysFlag": "0", "subVersion": "1"}
        assert (await client.pull(0, 0, ext=fields)).code == 24
        await client.heartbeat("a@1")
        assert (await client.pull(0, 0, ext=fields)).code == NOT_FOUND
        newer = asyncio.create_task(client.pull(0, 0, ext=fields | {"subVersion": "2"}))
        client.answer(await question(client), body=b"none")
        assert (await newer).code == 25


async def test_a_client_is_asked_for_a_newer_subscription(tmp_path: Path) -> None:
    """Clients leave a heartbeat out while they send another, and send the next after 30 s."""
    async with client_at(tmp_path) as (_, client):
        await client.heartbeat("a@1", tags="one")
        for tag in ("one", "two", "one"):
            await client.send(tag.encode(), TAGS=tag)
        fields = {"sysFlag": "0", "subVersion": "7"}
        pulls = [asyncio.create_task(client.pull(0, 0, ext=fields)) for _ in range(3)]
        request = await question(client)
        assert (request.ext["consumerGroup"], request.ext["clientId"]) == ("readers", "a@1")
        read = b'{"topic":"orders","subString":"two","subVersion":7,"expressionType":"TAG"}'
        queues = b'"mqTable":{{"brokerName":"g0-n1","queueId":0}:{"x":[]}},'
        client.answer(request, body=b"{" + queues + b'"subscriptionSet":[' + read + b"],1:{}}")
        for pull in pulls:
            assert decode_message((await pull).body).body == b"two"
        assert client.told.empty(), "once for all pulls"

        bills = {"sysFlag": "0", "subVersion": "8", "topic": "bills"}
        await client.pull(0, 0, ext=fields)  # Of this topic nothing is newer.
        other = asyncio.create_task(client.pull(0, 0, ext=bills))
        new = read.replace(b"orders", b"bills").replace(b"7", b"8")
        request = await question(client)
        client.answer(request, body=b'{"subscriptionSet":[' + read + b"," + new + b"]}")
        assert (await other).code == 17, "the topic is not there"
