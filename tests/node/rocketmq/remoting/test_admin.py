"""What tools ask and order: topics, groups, progress, members, the node."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.remoting.protocol.codes import (
    REFUSED,
    REQUEST_NAMES,
    SENT,
    RequestCode,
    ResponseCode,
    table,
)
from quorumlog.pb.common_pb2 import Delays, GroupSettings
from quorumlog.pb.retry_pb2 import GetGroupSettingsRequest, SetGroupSettingsRequest
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import client_at, entry, gateway_at, send_fields

NAMES = ("g0-n1", "g0-n2", "g0-n3")
QUEUE = {"topic": "orders", "queueId": "1", "bname": "g0-n1", "consumerGroup": "readers"}


_QUEUE_KEY = re.compile(rb'\{"brokerName":"[^"]*","queueId":\d+,"topic":"[^"]*"\}(?=:)')


def document(body: bytes | str) -> Any:
    """Read a body; a queue that is a key becomes the text of an object."""
    data = body.encode() if isinstance(body, str) else body
    return json.loads(_QUEUE_KEY.sub(lambda key: json.dumps(key[0].decode()).encode(), data))


def by_queue(table: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """Return a table whose keys are queues as texts of objects, by broker name and queue id."""
    rows = {}
    for key, row in table.items():
        queue = json.loads(key)
        rows[queue["brokerName"], queue["queueId"]] = row
    return rows


async def test_a_topic_gets_its_queues_for_each_name(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        order = {
            "topic": "bills", "defaultTopic": "TBW102", "readQueueNums": "2", "perm": "6",
            "writeQueueNums": "2", "topicFilterType": "SINGLE_TAG",
            "attributes": "+message.type=FIFO",
        }  # fmt: skip
        for name in NAMES:
            assert (await client.ask(codes.PUT_TOPIC, order | {"bname": name})).code == 0
        assert gateway.node.broker.context.state.topics["bills"] == (6, 6, "FIFO")
        row = document((await client.ask(codes.TOPIC, {"topic": "bills", "bname": "g0-n2"})).body)
        assert (row["readQueueNums"], row["perm"]) == (2, 6)
        assert row["attributes"] == {"message.type": "FIFO"}
        assert "bills" in document((await client.ask(codes.TOPICS)).body)["topicList"]
        for _ in NAMES:
            assert (await client.ask(codes.DELETE_TOPIC, {"topic": "bills"})).code == 0
        assert (await client.ask(codes.TOPIC, {"topic": "bills"})).code == 17
        assert (await client.ask(codes.PUT_TOPIC, order | {"topic": "a b"})).code == 29


async def test_what_a_tool_reads_and_writes_back_changes_nothing(tmp_path: Path) -> None:
    """Each view (route, settings of a topic, of a group), written back with one field changed: for
    each name its own row, or for all names that of the first, as updateTopicPerm does."""
    async with gateway_at(tmp_path) as gateway:
        client, state = await gateway.client(), gateway.node.broker.context.state
        for count in range(1, 9):
            topic = f"t{count}"
            await gateway.node.create_topic(topic, queue_count=count, message_type="FIFO")
            ask = {"topic": topic, "acceptStandardJsonOnly": "true"}
            rows = document((await client.ask(codes.ROUTE, ask)).body)["queueDatas"]
            for name in NAMES:
                read = await client.ask(codes.TOPIC, {"topic": topic, "bname": name})
                rows.append({**document(read.body), "brokerName": name})
            rows += [{**rows[0], "brokerName": name} for name in NAMES]
            for at, row in enumerate(rows):
                back = row | {"perm": 2 + at % 2 * 4, "topicName": topic}
                fields = ("readQueueNums", "writeQueueNums", "perm")
                ext = {name: str(back[name]) for name in fields}
                ext |= {"topic": topic, "bname": back["brokerName"]}
                assert (await client.ask(codes.PUT_TOPIC, ext)).code == 0
                assert state.topics[topic] == (count, back["perm"], "FIFO")
                body = json.dumps({"topicConfigList": [back]}).encode()
                assert (await client.ask(codes.PUT_TOPICS, body=body)).code == 0
                assert state.topics[topic] == (count, back["perm"], "FIFO")
        groups = gateway.node.broker.group_settings
        for settings in (GroupSettings(), GroupSettings(retry_delays=Delays(delay_ms=[7, 8]))):
            settings.forbidden_topics.topics.append("t1")
            put = SetGroupSettingsRequest(group="g", settings=settings)
            before = await groups.set_group_settings(put)
            row = document((await client.ask(codes.GROUP, {"group": "g"})).body)
            row["retryMaxTimes"] = 4
            assert (await client.ask(codes.PUT_GROUP, body=row)).code == 0
            before.retry_count_max = 4
            assert await groups.get_group_settings(GetGroupSettingsRequest(group="g")) == before


async def test_each_name_counts_its_own_queues(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        await client.send(name="g0-n1", queue=1)
        await client.send(name="g0-n3")
        offsets: dict[tuple[str, int], int] = {}
        for name in NAMES:
            answer = await client.ask(codes.TOPIC_STATS, {"topic": "orders", "bname": name})
            for queue, row in by_queue(document(answer.body)["offsetTable"]).items():
                offsets[queue] = row["maxOffset"]
                assert (row["lastUpdateTimestamp"] > 0) == bool(row["maxOffset"])
        assert offsets == {("g0-n1", 0): 0, ("g0-n1", 1): 1, ("g0-n2", 0): 0, ("g0-n3", 0): 1}


def table_of(*steps: object) -> dict[str, Any]:
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, *steps]}}


def growing(**fields: int) -> dict[str, Any]:
    return {"type": "EXPONENTIAL", "exponentialRetryPolicy": fields}


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ({"type": "CUSTOMIZED"}, None),
        (table_of(300, 400), [300, 400]),
        (growing(initial=10, max=50), [10, 20, 40, 50]),
        (growing(multiplier=1), [5_000]),
        ([], "refused"),
        ({"type": "NONE"}, "refused"),
        (table_of(1 << 40), "refused"),
        (table_of("3"), "refused"),
        (growing(initial=0), "refused"),
    ],
)
async def test_a_tool_sets_what_a_group_does_and_its_delays_by_a_policy_that_has_a_meaning(
    tmp_path: Path, policy: Any, delays: Any
) -> None:
    async with client_at(tmp_path) as (_, client):
        assert (await client.ask(codes.GROUP, {"group": "readers"})).code == 26
        row: dict[str, Any] = {"groupName": "readers"}
        if delays is None:  # What a document does not name stays as it is.
            row |= {"retryMaxTimes": 3, "consumeBroadcastEnable": False}
        heard = await client.ask(codes.PUT_GROUP, body=row | {"groupRetryPolicy": policy})
        if delays == "refused":
            assert (heard.code, "groupRetryPolicy" in str(heard.remark)) == (29, True)
            return
        assert heard.code == 0
        assert (await client.ask(codes.ROUTE, {"topic": "%RETRY%readers"})).code == 0
        group_settings = document((await client.ask(codes.GROUP, {"group": "readers"})).body)
        assert {name: group_settings[name] for name in row} == row
        table = group_settings.get("groupRetryPolicy", {}).get("customizedRetryPolicy")
        assert (table and table["next"][2:]) == delays


async def test_versions_of_tables_fit_the_client_for_go(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        answers = (await client.ask(codes.ALL_TOPICS), await client.ask(codes.ALL_GROUPS))
        config = await client.ask(codes.CONFIG)
        texts: list[bytes | str] = [*(a.body for a in answers), config.ext["version"]]
        for text in texts:
            version = document(text)
            version = version.get("dataVersion", version)
            assert version["timestamp"] > 2**32 > 2**31 > version["counter"]


async def test_members_are_shown_with_what_they_read(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (_, client):
        ext = {"consumerGroup": "readers"}
        assert (await client.ask(codes.CONSUMERS, ext)).code == 206
        await client.heartbeat("a@1")
        connections = document((await client.ask(codes.CONSUMERS, ext)).body)
        assert [one["clientId"] for one in connections["connectionSet"]] == ["a@1"]
        assert connections["subscriptionTable"]["orders"]["subString"] == "*"
        assert connections["consumeType"] == "CONSUME_PASSIVELY"


async def test_a_consumer_goes_where_its_group_was_moved(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        for _ in range(3):
            await client.send(queue=1)
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "3"})
        order = {"topic": "orders", "group": "readers", "timestamp": "0", "isForce": "true"}
        moved = await client.ask(codes.RESET, order | {"bname": "g0-n1"})
        table = by_queue(document(moved.body)["offsetTable"])
        assert table == {("g0-n1", 0): 0, ("g0-n1", 1): 0}
        tool = await gateway.client()
        assert (await tool.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "0"

        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "4"})  # It has not noticed yet.
        assert (await tool.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "0"
        response = await client.pull(1, 3)
        assert (response.code, response.ext["nextBeginOffset"]) == (21, "0")
        assert (await client.pull(1, 0)).code == 0
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "1"})
        order |= {"timestamp": "-1", "isForce": "false"}  # Only back.
        assert (await client.ask(codes.RESET, order | {"bname": "g0-n1"})).code == 0
        assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "1"
        order["bname"] = "g0-n1"
        wrong = await client.ask(codes.RESET, order | {"queueId": "7", "offset": "1"})
        assert (wrong.code, "queue" in str(wrong.remark)) == (29, True)
        order |= {"timestamp": "-2", "isForce": "true"}  # The end, as -1.
        assert (await client.ask(codes.RESET, order | {"bname": "g0-n1"})).code == 0
        assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "3"

        # A move in a deleted topic is none in the next one.
        await gateway.node.delete_topic("orders")
        await gateway.node.create_topic("orders", queue_count=4)
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "3"})
        assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "3"
        assert (await client.pull(1, 3)).code == 19


async def test_what_tools_parse_is_there_and_a_number(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        await client.send()
        table = document((await client.ask(codes.RUNTIME)).body)["table"]
        assert all(type(value) is str for value in table.values())
        for name in ("putTps", "getTotalTps", "getTransferredTps", "getFoundTps", "getMissTps"):
            assert len([float(part) for part in table[name].split(" ")]) == 3
        for name in ("msgPutTotalTodayNow", "commitLogMaxOffset", "bootTimestamp"):
            assert int(table[name]) > 0
        assert table.keys() >= {"EndTransactionQueueSize", "litePullThreadPoolQueueSize"}
        size_bytes = int(table["putMessageSizeTotal"])
        assert 0 < size_bytes < int(table["commitLogMaxOffset"]), "messages alone"
        assert float(table["putMessageAverageSize"]) == size_bytes
        await gateway.remoting._node.sample()
        stats = document((await client.ask(codes.TOPIC_STATS, {"topic": "orders"})).body)
        assert stats["topicPutTps"] > 0
        stats = document((await client.ask(343, {"group": "readers"})).body)
        assert stats == {"brokerAddr": f"127.0.0.1:{gateway.port}", "topicList": []}
        assert float(table["commitLogDiskRatio"]) < 1
        ranges = [part.partition(":") for part in table["putMessageDistributeTime"].split()]
        assert (ranges[0][0], ranges[-1][0]) == ("[<=0ms]", "[10s~]")
        assert (len(ranges), sum(int(count) for _, _, count in ranges) >= 1) == (13, True)
        assert (await client.ask(codes.CONFIG)).body.startswith(b"brokerName=g0-n1\n")
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
        assert document((await client.ask(codes.STATS, fields)).body)["statsDay"]["sum"] >= 0
        assert (await client.ask(codes.STATS, fields | {"statsName": "none"})).code == 1
        assert (await client.ask(codes.STATS, fields | {"statsKey": "none"})).code == 1


@pytest.mark.parametrize("closed", NAMES)
async def test_a_permission_is_what_a_person_sets_and_not_what_a_closed_name_shows(
    tmp_path: Path, closed: str
) -> None:
    """A view that is written back at its own name changes nothing; a permission that is set at
    each name, as updateTopicPerm does, is stored."""
    async with gateway_at(tmp_path) as gateway:
        client, state = await gateway.client(), gateway.node.broker.context.state

        async def put(name: str, permission: int) -> int:
            ext = {"topic": "orders", "readQueueNums": "2", "writeQueueNums": "2", "bname": name}
            assert (await client.ask(codes.PUT_TOPIC, ext | {"perm": str(permission)})).code == 0
            row = {"topicName": "orders", "perm": permission, "readQueueNums": 2}
            body = json.dumps({"topicConfigList": [row]}).encode()
            assert (await client.ask(codes.PUT_TOPICS, {"bname": name}, body=body)).code == 0
            return state.topics["orders"].permission

        assert (await client.ask(codes.WIPE, {"brokerName": "x"})).code == 1
        wiped = await client.ask(codes.WIPE, {"brokerName": closed})
        assert wiped.ext == {"wipeTopicCount": "1"}
        for before, after in product((6, 4, 2), repeat=2):
            await gateway.node.create_topic("orders", permission=before)
            route = document((await client.ask(codes.ROUTE, {"topic": "orders"})).body)
            perms = dict.fromkeys(NAMES, before) | {closed: before & ~2}
            assert {row["brokerName"]: row["perm"] for row in route["queueDatas"]} == perms
            for row in route["queueDatas"]:
                assert await put(row["brokerName"], row["perm"]) == before
            for name in NAMES:
                stored_permission = await put(name, after)
            assert stored_permission == after
        await client.ask(codes.RESTORE, {"brokerName": closed})
        route = document((await client.ask(codes.ROUTE, {"topic": "orders"})).body)
        assert {row["perm"] for row in route["queueDatas"]} == {after}


async def test_a_consumer_is_asked_what_it_does(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        consumer, tool = await gateway.client(), await gateway.client()
        await consumer.heartbeat("a@1")
        await consumer.hear()
        fields = {"consumerGroup": "readers", "clientId": "a@1", "jstackEnable": "false"}
        answer = tool.begin(codes.RUNNING, fields | {"other": "x" * 60_000})
        heard = await consumer.hear()
        assert (heard.code, heard.ext) == (codes.RUNNING, fields)
        consumer.answer(heard)
        assert (await answer).code == 0
        assert (await tool.ask(codes.RUNNING, fields | {"clientId": "b"})).code == 1

        lost = tool.begin(codes.RUNNING, fields)
        await consumer.hear()
        await consumer.close()
        assert (await lost).code == 1


async def test_every_request_is_served_or_refused_with_a_reason(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        assert gateway.remoting.handlers().keys() >= REQUEST_NAMES.keys() - SENT
        client = await gateway.client()
        for code, why in REFUSED.items():
            answer = await client.ask(code)
            wanted = (ResponseCode.NO_PERMISSION, f"node.not_served: {why}")
            assert (answer.code, answer.remark) == wanted
        unknown = await client.ask(4711)
        assert (unknown.code, unknown.remark) == (3, " request type 4711 not supported")
    page = (Path(__file__).parents[4] / "docs" / "rocketmq.md").read_text()
    assert "\n".join(table()) in page


async def test_the_progress_of_all_groups_is_that_of_each(tmp_path: Path) -> None:
    async with client_at(tmp_path) as (gateway, client):
        ask, isolated = RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}
        empty = document((await client.ask(ask, isolated | {"bname": "g0-n1"})).body)
        assert (empty["consumeStatsList"], empty["totalDiff"]) == ([], 0)
        await gateway.node.create_topic("bills", queue_count=6)
        for _ in range(3):
            await client.send(queue=1)
        for group, topic in (("a", "bills"), ("a", "orders"), ("b", "orders")):
            offset = "2" if topic == "orders" else "0"
            more = {"consumerGroup": group, "topic": topic, "commitOffset": offset}
            await client.ask(codes.COMMIT, QUEUE | more)
        progress = document((await client.ask(ask, isolated | {"bname": "g0-n1"})).body)
        assert progress["totalDiff"] == 2
        rows = {name: stats for row in progress["consumeStatsList"] for name, stats in row.items()}
        assert list(rows) == ["a", "b"]
        assert [len(stats) for stats in rows.values()] == [2, 1]  # One for each topic.
        for group, stats in rows.items():
            own = {"consumerGroup": group, "bname": "g0-n1"}
            alone = document((await client.ask(codes.PROGRESS, own)).body)["offsetTable"]
            assert {key: row for one in stats for key, row in one["offsetTable"].items()} == alone
        row = by_queue(alone)["g0-n1", 1]
        assert (row["brokerOffset"], row["consumerOffset"]) == (3, 2)
        assert row["lastTimestamp"] > 0
        ordered = document((await client.ask(ask, {"isOrder": "true"})).body)
        assert ordered["consumeStatsList"] == []


async def test_a_group_begins_where_another_is(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, clone = await gateway.client(), RequestCode.CLONE_GROUP_OFFSET
        order = {"srcGroup": "readers", "destGroup": "others", "bname": "g0-n1"}
        assert (await client.ask(clone, order)).code == 26
        of_other = QUEUE | {"consumerGroup": "others"}
        assert (await client.ask(codes.GET_OFFSET, of_other)).ext["offset"] == "0"
        refused = await client.ask(codes.GET_OFFSET, of_other | {"setZeroIfNotFound": "false"})
        assert refused.code == 22
        for _ in range(3):
            await client.send(queue=1)
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "2"})
        assert (await client.ask(clone, order | {"topic": "bills"})).code == 26
        assert (await client.ask(clone, order | {"topic": " "})).code == 0
        assert (await client.ask(codes.GET_OFFSET, of_other)).ext["offset"] == "2"
        groups = gateway.node.broker.context.state.groups
        assert groups["others"] == groups["readers"] == {"orders": {3: 2}}
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "3"})
        await client.heartbeat("a@1", "others")
        refused = await client.ask(clone, order)
        assert "node.group_not_empty" in str(refused.remark)
        assert groups["others"] == {"orders": {3: 2}}


async def test_units_of_a_queue_name_its_messages(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, ask = await gateway.client(), RequestCode.QUERY_CONSUME_QUEUE
        sent = [await client.send(queue=1, TAGS=tag) for tag in ("a", "b", "c")]
        queue = {"topic": "orders", "queueId": "1", "bname": "g0-n1"}
        query = queue | {"index": "1", "count": "9"}
        listing = document((await client.ask(ask, query)).body)
        assert (listing["minQueueIndex"], listing["maxQueueIndex"]) == (0, 3)
        positions = [f"{unit['physicOffset']:016X}" for unit in listing["queueData"]]
        assert positions == [one.ext["msgId"][-16:] for one in sent[1:]]
        assert [unit["tagsCode"] for unit in listing["queueData"]] == [ord("b"), ord("c")]
        assert "subscriptionData" not in listing
        group = query | {"consumerGroup": "readers"}
        absent = document((await client.ask(ask, group)).body)
        assert absent["filterData"] == "readers@orders is not online!"
        await client.heartbeat("a@1")
        online = document((await client.ask(ask, group)).body)
        assert online["subscriptionData"]["subString"] == "*"
        for index in ("3", "999999"):  # Behind the end.
            behind = await client.ask(ask, query | {"index": index})
            assert document(behind.body)["queueData"] == []
        for bad, code in (({"queueId": "2"}, 1), ({"topic": "x"}, 17), ({"count": "5000"}, 29)):
            assert (await client.ask(ask, query | bad)).code == code


async def test_the_copies_that_a_leader_knows(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        client, ask = await gateway.client(), RequestCode.GET_BROKER_HA_STATUS
        status = document((await client.ask(ask)).body)
        assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, 9)
        assert status["inSyncSlaveNums"] == 1
        copies = [(one["addr"], one["diff"], one["inSync"]) for one in status["haConnectionInfo"]]
        assert copies == [("host2:8082", 0, True), ("host3:8083", 5, False)]
        gateway.node.driver.lose()
        status = document((await client.ask(ask)).body)
        assert (status["master"], status["haConnectionInfo"]) == (False, [])


@pytest.mark.parametrize("value", ["a\0b", "\0"])
async def test_a_message_with_nul_in_a_property_is_refused(tmp_path: Path, value: str) -> None:
    """However it is sent: alone, delayed, as a half message, or in a batch."""
    async with gateway_at(tmp_path) as gateway:
        client, named = await gateway.client(), dict[str, Any]({f"own{value}": "v"})
        answers = [
            await client.send(own=value),
            await client.send(own=value, DELAY="3"),
            await client.send(own=value, TRAN_MSG="true", PGROUP="p", sys_flag=4),
            await client.send(**named),
        ]
        body = entry(b"x", f"UNIQ_KEY\x01A1\x02own\x01{value}\x02".encode())
        answers.append(await client.ask(codes.BATCH, send_fields("orders", 0, "g0-n1"), body))
        for answer in answers:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "NUL" in str(answer.remark), answer.remark


async def test_the_key_value_configuration(tmp_path: Path) -> None:
    """Tools write the broker names of ordered topics there; nodes that start again have them."""
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "g0-n1:4;g0-n2:4"}
    async with client_at(tmp_path) as (_, client):
        missing = await client.ask(RequestCode.GET_KV_CONFIG, order)
        assert missing.code == 22
        assert missing.remark == "No config item, Namespace: ORDER_TOPIC_CONFIG Key: orders"
        assert (await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, order)).code == 22
        for key in ("orders", "bills"):
            assert (await client.ask(RequestCode.PUT_KV_CONFIG, order | {"key": key})).code == 0
        too_long = await client.ask(RequestCode.PUT_KV_CONFIG, order | {"value": "v" * 5000})
        assert (too_long.code, "4096 bytes" in (too_long.remark or "")) == (29, True)
        nothing = await client.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "a", "key": "b"})
        assert (nothing.code, nothing.remark) == (29, "ext field value is missing")
        for _ in range(2):
            gone = await client.ask(RequestCode.DELETE_KV_CONFIG, order | {"key": "bills"})
            assert gone.code == 0
    async with client_at(tmp_path) as (_, client):
        response = await client.ask(RequestCode.GET_KV_CONFIG, order)
        assert response.ext["value"] == order["value"]
        table = await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, order)
        assert document(table.body) == {"table": {"orders": order["value"]}}


async def test_a_broker_has_a_topic_of_its_name(tmp_path: Path) -> None:
    """Tools send to it, to try that broker; RocketMQ makes one."""
    async with client_at(tmp_path) as (_, client):
        route = document((await client.ask(codes.ROUTE, {"topic": "g0-n2"})).body)
        assert [row["brokerName"] for row in route["queueDatas"]] == ["g0-n2"]
        assert route["queueDatas"][0]["writeQueueNums"] == 1
        for _ in range(2):
            assert (await client.send(topic="g0-n2", name="g0-n2")).code == 0
        assert (await client.send(topic="another")).code == ResponseCode.TOPIC_NOT_EXIST
        assert document((await client.ask(codes.ROUTE, {"topic": "g0-n2"})).body) == route
