"""Locks, transactions, replies, messages given back, and single messages by id and key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from node.config.settings import Settings
from node.rocketmq.protocol.messages import from_record
from node.rocketmq.protocol.properties import RESERVED
from node.rocketmq.remoting.calls.sent_messages import REFUSED
from node.rocketmq.remoting.places import NamedPlace
from quorumlog.pb.transaction_pb2 import ListTransactionsRequest
from store.record.message import decode_message, parse_message_id
from tests.node.broker_fakes import ADDRESSES
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import ClassicClient, client_at, gateway_at, send_fields
from tests.node.rocketmq.remoting.test_pop import popped
from tests.patience import eventually

HALF = 4
ILLEGAL, NO_PERMISSION, NO_TOPIC, INVALID = 13, 16, 17, 29
COMMIT, ROLLBACK = "8", "12"
ANY_TIME = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1), "maxNum": "64"}
QUEUES = [{"topic": "orders", "brokerName": f"g0-n{n}", "queueId": 0} for n in (1, 2)]


async def locked(client: ClassicClient, client_id: str, code: int = codes.LOCK) -> Any:
    body = {"consumerGroup": "readers", "clientId": client_id, "mqSet": QUEUES}
    answer = await client.ask(code, body=body)
    assert answer.code == 0, answer
    return json.loads(answer.body)["lockOKMQSet"] if code == codes.LOCK else None


async def test_a_queue_is_locked_by_one_consumer_at_a_time(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        assert await locked(client, "a") == QUEUES
        assert await locked(client, "a") == QUEUES
        assert await locked(client, "b") == []
        await locked(client, "b", codes.UNLOCK)
        assert await locked(client, "b") == []
        await locked(client, "a", codes.UNLOCK)
        assert await locked(client, "b") == QUEUES


async def begun(client: ClassicClient, key: str) -> dict[str, str]:
    """Send a half message; return the fields of its end."""
    sent = await client.send(b"paid", sys_flag=HALF, TRAN_MSG="true", PGROUP="payers", UNIQ_KEY=key)
    assert sent.code == 0, sent
    return {
        "producerGroup": "payers",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(parse_message_id(sent.ext["msgId"])[1]),
        "fromTransactionCheck": "false",
        "msgId": key,
    }


async def test_a_half_message_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        kept, dropped = await begun(client, "A"), await begun(client, "B")
        assert (await client.pull(0, 0)).body == b""
        await client.ask(codes.END, dropped | {"commitOrRollback": ROLLBACK})
        await client.ask(codes.END, kept | {"commitOrRollback": COMMIT})
        assert (await client.ask(codes.END, kept | {"commitOrRollback": COMMIT})).code == 0
        record = decode_message((await client.pull(0, 0)).body)
        assert (record.body, record.properties["UNIQ_KEY"]) == (b"paid", "A")
        assert record.properties["__transactionId__"] == "A"
        assert not from_record(record, "orders").user_properties
        assert (await client.pull(0, 1)).body == b""


async def test_a_producer_is_asked_about_a_transaction_that_stays_open(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.produce_for("p@1", "payers")
        end = await begun(client, "A")
        gateway.node.clock.now_ms += 600_000
        checks = gateway.node.broker.transactions.checks
        await eventually(lambda: checks.producers.is_there("payers"), "the producer")
        await checks.round()
        question = await client.hear()
        assert (question.code, question.flag) == (codes.CHECK, 2)
        assert question.ext["commitLogOffset"] == end["commitLogOffset"]
        record = decode_message(question.body)
        assert (record.body, record.properties["PGROUP"]) == (b"paid", "payers")


async def test_a_group_without_producers_is_not_asked(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.produce_for("p@1", "payers")
        await client.produce_for("p@1", "CLIENT_INNER_PRODUCER")
        producers = gateway.node.broker.transactions.checks.producers
        await eventually(lambda: producers.is_there("payers"), "the producer")
        assert producers.room.used == 1
        await client.close()
        await eventually(lambda: not gateway.remoting.groups.clients.count, "its end")
        gateway.remoting.transactions.look()
        await eventually(lambda: not producers.room.used, "the end of the questions")


async def test_a_reply_reaches_the_producer_that_waits_for_it(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        asker, replier = await gateway.client(), await gateway.client()
        await asker.produce_for("asker@1", "askers")
        await asker.send(b"question", CORRELATION_ID="c1", REPLY_TO_CLIENT="asker@1")
        question = decode_message((await replier.pull(0, 0)).body)
        topic = f"{question.properties['CLUSTER']}_REPLY_TOPIC"
        route = json.loads((await replier.ask(codes.ROUTE, {"topic": topic})).body)
        assert [q["writeQueueNums"] for q in route["queueDatas"]] == [1, 1, 1]

        properties = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker@1", "MSG_TYPE": "reply"}
        reply = replier.begin(codes.REPLY, send_fields(topic, 0, "g0-n1", **properties), b"answer")
        pushed = await asker.hear()
        assert (pushed.code, pushed.body) == (codes.PUSH_REPLY, b"answer")
        assert "CORRELATION_ID\x01c1\x02" in pushed.ext["properties"]
        asker.answer(pushed)
        assert (await reply).code == 0

        properties["REPLY_TO_CLIENT"] = "nobody@1"
        fields = send_fields(topic, 0, "g0-n1", **properties)
        lost = await replier.ask(codes.REPLY, fields, b"answer")
        assert (lost.code, "nobody@1" in str(lost.remark)) == (1, True)


async def test_a_message_given_back_waits_for_its_pause(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        sent = await client.send(b"hard")
        position = str(parse_message_id(sent.ext["msgId"])[1])
        fields = {"group": "readers", "offset": position, "delayLevel": "0"}
        assert (await client.ask(codes.SEND_BACK, fields)).code == 0
        retried, dead = "%RETRY%readers", "%DLQ%readers"
        store = gateway.node.broker.context.store
        assert store.queue_range(retried, 0) == (0, 0)

        assert (await client.ask(codes.SEND_BACK, fields | {"delayLevel": "-1"})).code == 0
        assert store.queue_range(dead, 0) == (0, 1)
        assert (await client.ask(codes.SEND_BACK, fields | {"offset": "7"})).code == 1


async def test_a_message_is_found_by_its_id_and_by_its_keys(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        sent = await client.send(b"one", KEYS="red blue", UNIQ_KEY="U1")
        await client.send(b"two", name="g0-n2", KEYS="blue", UNIQ_KEY="U2")
        position = str(parse_message_id(sent.ext["msgId"])[1])
        record = decode_message((await client.ask(codes.VIEW, {"offset": position})).body)
        assert (record.body, record.message_id) == (b"one", sent.ext["msgId"])
        assert (await client.ask(codes.VIEW, {"offset": str(int(position) + 1)})).code == 1

        query = ANY_TIME | {"topic": "orders", "key": "blue"}
        for name, body in (("g0-n1", b"one"), ("g0-n2", b"two")):
            answer = await client.ask(codes.KEY, query | {"bname": name})
            assert decode_message(answer.body).body == body
        nothing = await client.ask(codes.KEY, query | {"key": "red", "bname": "g0-n2"})
        assert (nothing.code, nothing.body) == (22, b"")


async def test_tools_find_a_message_at_the_address_of_its_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that looks whether a group has consumed a message compares the two."""
    async with client_at(tmp_path) as (gateway, client):
        sent = await client.send(b"one", name="g0-n2", KEYS="red")
        position = str(parse_message_id(sent.ext["msgId"])[1])
        places = gateway.remoting.places
        route = NamedPlace("g0-n2", 1, "127.0.0.9:77")
        monkeypatch.setattr(places, "brokers", lambda _group, _nodes: [route, route, route])
        key = ANY_TIME | {"topic": "orders", "key": "red", "bname": "g0-n2"}
        by_key = await client.ask(codes.KEY, key)
        by_id = await client.ask(codes.VIEW, {"offset": position})
        for answer in (by_key, by_id):
            assert decode_message(answer.body).store_host == ("127.0.0.9", 77)


async def test_traces_are_messages_of_a_topic_that_is_made_like_any_other(tmp_path: Path) -> None:
    trace = "RMQ_SYS_TRACE_TOPIC"
    async with client_at(tmp_path) as (gateway, client):
        assert (await client.send(b"Pub", trace, KEYS="U1")).code == NO_TOPIC
        await gateway.node.create_topic(trace)
        assert (await client.send(b"Pub", trace, KEYS="U1")).code == 0
        query = ANY_TIME | {"topic": trace, "key": "U1", "bname": "g0-n1"}
        assert decode_message((await client.ask(codes.KEY, query)).body).body == b"Pub"


def copy_fields(times: int, limit: int, **properties: str) -> dict[str, str]:
    """Return the fields of a message that a consumer copies to its retry topic itself."""
    properties.setdefault("RETRY_TOPIC", "orders")
    fields = send_fields("%RETRY%readers", 0, "g0-n1", **properties)
    return fields | {"j": str(times), "l": str(limit), "a": "CLIENT_INNER_PRODUCER"}


async def test_a_consumer_may_copy_a_message_to_its_retry_topic(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        store = gateway.node.broker.context.store
        retried, dead = ("%RETRY%readers", 0), ("%DLQ%readers", 0)
        answer = await client.ask(codes.SEND, copy_fields(1, 16), b"again")
        assert answer.code == 0, answer
        assert (store.queue_range(*retried), store.queue_range(*dead)) == ((0, 1), (0, 0))
        await client.ask(codes.SEND, copy_fields(1, 16, DELAY="3"), b"later")
        assert store.queue_range(*retried) == (0, 1), "held"
        await client.ask(codes.SEND, copy_fields(17, 16, DELAY="3"), b"given up")
        await locked(client, "a")
        await client.ask(codes.SEND, copy_fields(1, 16), b"out of order")
        assert (store.queue_range(*retried), store.queue_range(*dead)) == ((0, 1), (0, 2))


async def test_a_copy_is_of_no_topic_of_the_system(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        forged = copy_fields(1, 16, RETRY_TOPIC="RMQ_SYS_TRANS_HALF_TOPIC")
        assert (await client.ask(codes.SEND, forged, b"x")).code == NO_PERMISSION
        assert (await client.send(topic="%DLQ%readers")).code == NO_PERMISSION
        assert (await client.send(topic="SCHEDULE_TOPIC_XXXX")).code == NO_PERMISSION


async def test_a_topic_is_made_by_a_send_only_where_that_is_set(tmp_path: Path) -> None:
    async with client_at(tmp_path / "off") as (_, client):
        assert (await client.ask(codes.ROUTE, {"topic": "TBW102"})).code == NO_TOPIC
        refused = await client.send(topic="new")
        assert (refused.code, "qlog topic create" in str(refused.remark)) == (NO_TOPIC, True)
    on = Settings(node_id=1, directory=tmp_path, rocketmq_auto_topics=True)
    async with client_at(tmp_path / "on", settings=on) as (gateway, client):
        route = json.loads((await client.ask(codes.ROUTE, {"topic": "TBW102"})).body)
        assert [(q["writeQueueNums"], q["perm"]) for q in route["queueDatas"]] == [(8, 7)] * 3
        assert (await client.send(topic="new", queue=3)).code == 0
        assert gateway.node.broker.context.state.topics["new"].queue_count == 12
        assert (await client.send(topic="%DLQ%x")).code == NO_PERMISSION


async def test_message_ids_hold_the_address_of_a_name_as_soon_as_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, rows = asyncio.get_running_loop(), [(2, 1, 6, "", ("10.0.0.9", 7))]
    answers = [OSError("no such name"), rows]

    async def getaddrinfo(name: str, port: int, **_: Any) -> Any:
        assert (name, port) == ("broker.example", 7)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with client_at(tmp_path) as (gateway, client):
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        gateway.remoting.places.learn(ADDRESSES[1], ("broker.example:7",))
        gateway.remoting._shared.own_addresses[:] = ["broker.example:7"] * 3
        for host in ("7F000001", "0A000009"):
            await gateway.remoting._shared.resolve()
            assert (await client.send()).ext["msgId"][:16] == f"{host}00000007"
        await gateway.remoting._shared.resolve()
        assert not answers, "a name with an address is not looked up again"


def test_each_property_of_rocketmq_is_listed() -> None:
    listed = Path("docs/rocketmq.md").read_text()
    others = "INNER_BASE PROPERTY_FORWARD_QUEUE_ID REDIRECT TRACE_CONTEXT __transactionId__"
    names = {*RESERVED, *REFUSED, *others.split(), "TIMER_IN_MS", "_SYS_MSG_PRIORITY_"}
    assert [name for name in sorted(names) if f"`{name}`" not in listed] == []


async def test_properties_that_change_what_a_send_does_are_obeyed_or_refused(
    tmp_path: Path,
) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, broker = await gateway.client(), gateway.node.broker
        for name in REFUSED:
            sent = await client.send(b"x", "orders", 0, "g0-n1", 0, **{name: "1"})
            assert sent.code == ILLEGAL
            assert name in (sent.remark or "")
        half: dict[str, Any] = {"TRAN_MSG": "true", "PGROUP": "payers"}  # By a property alone.
        for text in ("-7", "1.5", "86401"):
            sent = await client.send(**half, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
            assert sent.code == ILLEGAL
            assert "CHECK_IMMUNITY" in (sent.remark or "")
        assert "delayed" in ((await client.send(**half, DELAY="1")).remark or "")
        for text, after_ms in (("-1", 6_000), ("0", 1), ("25", 25_000), ("86400", 86_400_000)):
            assert (await client.send(**half, CHECK_IMMUNITY_TIME_IN_SECONDS=text)).code == 0
            rows = await broker.transactions.list_transactions(ListTransactionsRequest())
            newest = rows.transactions[-1]
            assert newest.next_check_unix_ms - newest.begun_unix_ms == after_ms
        assert (await client.pull(0, 0)).body == b""


async def test_values_of_tools_are_obeyed_or_refused(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, filled=10) as gateway:
        client, state = await gateway.client(), gateway.node.broker.context.state

        async def put(**row: Any) -> int:
            rows = {"topicConfigList": [{"topicName": "orders", **row}]}
            return (await client.ask(codes.PUT_TOPICS, body=rows)).code

        before = state.topics["orders"]
        for row in ({"perm": -1}, {"perm": "4"}, {"perm": 99_999}, {"readQueueNums": 70_000}):
            assert await put(**row) == INVALID, row
        assert state.topics["orders"] == before
        body = json.dumps({"groupName": "readers", "consumeEnable": "false"}).encode()
        assert (await client.ask(codes.PUT_GROUP, body=body)).code == INVALID
        pulled = await client.pull(0, 0, ext={"expressionType": "sql92", "subscription": "n > 5"})
        for refused in (pulled, await popped(client, expType="sql92", exp="n > 5")):
            assert (refused.code, "TAG" in (refused.remark or "")) == (23, True)
        offset = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "bname": "g0-n1"}
        await client.ask(codes.COMMIT, offset | {"commitOffset": "3"})
        for is_gone in (False, True):
            await client.ask(207, {"groupName": "readers", "cleanOffset": str(is_gone).lower()})
            assert ("readers" not in state.groups) is is_gone
        assert await put(attributes={"+message.type": "FIFO"}, readQueueNums=2) == 0
        assert await put(attributes={"-message.type": ""}, readQueueNums=2) == 0
        assert state.topics["orders"].message_type == "MIXED"
        await client.ask(codes.WIPE, {"brokerName": "g0-n1"})
        for permission in (4, 6):  # As the route shows them then, by broker name.
            assert await put(perm=permission, readQueueNums=2) == 0
            assert state.topics["orders"].permission == 6
