"""The largest legal input of each request.

Owns what is sent. A request is of the classic protocol (a number) or of the own services (a name).
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from node.rocketmq.remoting.calls.json_bodies import ROW_COUNT_MAX
from node.rocketmq.remoting.calls.sent_messages import BATCH_COUNT_MAX, UNIFORM_COUNT_MAX
from node.rocketmq.remoting.clients import GROUPS_OF_CLIENT_MAX
from node.rocketmq.remoting.protocol.codes import RequestCode
from quorumlog.pb import admin_pb2, consumer_pb2, log_pb2, retry_pb2
from quorumlog.pb.common_pb2 import QueueId
from store import format as fmt
from store.format import LOOPBACK
from store.record.encoder import CommonFields, RecordEncoder
from store.record.stamp import CHECKED_COUNT_MAX

TOPIC: Final = "stalls"
QUEUE_COUNT: Final = 1_024
TOPIC_COUNT: Final = 4_000
GROUP: Final = "readers"
NAME: Final = "g0-n1"
_SQL_SIZE: Final = 4_096
_APPEND_SIZE_BYTES: Final = 3_900_000
_TINY: Final = "".join(f"{n:04x}\x01v\x02" for n in range(4_600))[: fmt.PROPERTIES_SIZE_BYTES_MAX]


class Input(NamedTuple):
    """One request of the classic protocol."""

    code: int
    ext: dict[str, str]
    body: bytes = b""


class OwnCall(NamedTuple):
    """One call of the own services."""

    service: str
    method: str
    request: Message


def topics() -> Iterator[str]:
    """Yield the names of the topics that fill the table."""
    return (f"t{number:05}" + "x" * 100 for number in range(TOPIC_COUNT))


def topics_import() -> retry_pb2.ImportConfigFilesRequest:
    """Return the import of all topics."""
    table = {name: {"writeQueueNums": 1, "readQueueNums": 1, "perm": 6} for name in topics()}
    file = retry_pb2.ConfigFile(name="topics.json", text=json.dumps({"topicConfigTable": table}))
    return retry_pb2.ImportConfigFilesRequest(files=[file])


def document(**fields: Any) -> bytes:
    """Return a body."""
    return json.dumps(fields, separators=(",", ":")).encode()


def send_fields(properties: str, queue_id: int = 0, *, is_batch: bool = False) -> dict[str, str]:
    """Return the ext fields of a send."""
    fields = {"a": "makers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": properties, "j": "0", "k": "false", "n": NAME}
    return {**fields, "m": "true" if is_batch else "false"}


def batch(count: int, *, is_uniform: bool) -> bytes:
    """Return the body of a batch of small messages."""
    rows = []
    for number in range(count):
        key = f"UNIQ_KEY\x01{number:032X}\x02" if is_uniform else f"k{number % 7}\x01{number}\x02"
        properties, body = key.encode(), b"x" * (1 if is_uniform else number % 5)
        size = 22 + len(body) + len(properties)
        rows.append(struct.pack(">iIIii", size, 0, 0, 0, len(body)) + body)
        rows.append(struct.pack(">h", len(properties)) + properties)
    return b"".join(rows)


def _sql(number: int) -> str:
    tests = (f"k{(number + n) % 99} < {n}" for n in range(_SQL_SIZE))
    text = f"zz = {number}"
    for test in tests:
        if len(text) + len(test) + 4 > _SQL_SIZE:
            break
        text += f" OR {test}"
    return text


def _subscription(topic: str) -> dict[str, Any]:
    return {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}


def _heartbeat(group_count: int, topic_count: int, client_id: str = "c") -> bytes:
    rows = [
        {
            "groupName": f"hb{group}",
            "consumeType": "CONSUME_PASSIVELY",
            "subscriptionDataSet": [_subscription(f"s{n}") for n in range(topic_count)],
        }
        for group in range(group_count)
    ]
    return document(clientID=client_id, consumerDataSet=rows)


def heartbeat_of(number: int) -> Input:
    """Return the heartbeat of a producer, which gets no notices."""
    groups = [{"groupName": "leaves"}]
    body = document(clientID=f"leaves{number}", producerDataSet=groups)
    return Input(RequestCode.HEART_BEAT, {}, body)


def locks_of(group: str, code: RequestCode = RequestCode.LOCK_BATCH_MQ) -> Input:
    """Return the request for as many locks as one may have."""
    rows = [
        {"topic": TOPIC, "brokerName": NAME, "queueId": n % 1_024} for n in range(ROW_COUNT_MAX)
    ]
    return Input(code, {}, document(consumerGroup=group, clientId="leaves1", mqSet=rows))


def classic(number: int) -> Iterator[Input]:
    """Yield an input of each request, the `number`th of its kind: no two are the same where
    something is kept."""
    codes = RequestCode
    topic, group, name = {"topic": TOPIC}, {"group": GROUP}, {"bname": NAME}
    queue = {**topic, "consumerGroup": GROUP, "queueId": "0", **name}
    yield Input(codes.SEND_MESSAGE_V2, send_fields(_TINY), b"x")
    keys = " ".join(f"{n:x}" for n in range(6_000))[: fmt.PROPERTIES_SIZE_BYTES_MAX - 16]
    yield Input(codes.SEND_MESSAGE_V2, send_fields(f"KEYS\x01{keys}\x02"), b"x")
    for is_uniform, count in ((True, UNIFORM_COUNT_MAX), (False, BATCH_COUNT_MAX)):
        body = batch(count, is_uniform=is_uniform)
        yield Input(codes.SEND_BATCH_MESSAGE, send_fields("", is_batch=True), body)
    pull = {**queue, "queueOffset": "0", "maxMsgNums": "1024", "maxMsgBytes": str(1 << 21)}
    pull |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"}
    yield Input(codes.PULL_MESSAGE, {**pull, "subscription": "*"})
    tags = "||".join(f"{n:x}" for n in range(3_000))[:16_384]
    yield Input(codes.PULL_MESSAGE, {**pull, "subscription": tags})
    sql = {"expressionType": "SQL92", "subscription": _sql(number)}
    yield Input(codes.PULL_MESSAGE, {**pull, **sql})
    pop = {**queue, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "1000", "pollTime": "0"}
    pop |= {"initMode": "0", "order": "false", "bornTime": "0"}
    yield Input(codes.POP_MESSAGE, {**pop, "expType": "SQL92", "exp": _sql(number + 1_000)})
    yield Input(codes.HEART_BEAT, {}, _heartbeat(1, 1_024, f"c{number}"))
    yield Input(codes.HEART_BEAT, {}, _heartbeat(GROUPS_OF_CLIENT_MAX, 30))
    check = {**_subscription(TOPIC), "expressionType": "SQL92", "subString": _sql(number + 2_000)}
    yield Input(codes.CHECK_CLIENT_CONFIG, {}, document(subscriptionData=check))
    for code in (codes.LOCK_BATCH_MQ, codes.UNLOCK_BATCH_MQ):
        yield locks_of(f"l{number}", code)
    put = [{"topicName": one, "writeQueueNums": 1, "perm": 6} for one in topics()][:1_024]
    yield Input(codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, document(topicConfigList=put))
    groups = [{"groupName": f"p{n}", "retryMaxTimes": 3} for n in range(256)]
    yield Input(
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, document(groupConfigList=groups)
    )
    put_key = {"namespace": "n", "key": f"k{number}", "value": "v" * 4_000}
    yield Input(codes.PUT_KV_CONFIG, put_key)
    yield Input(codes.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    ask_key = {**topic, "key": "1", "maxNum": "256", "beginTimestamp": "0"}
    yield Input(codes.QUERY_MESSAGE, {**ask_key, "endTimestamp": str((1 << 63) - 1)})
    move = {**topic, **group, "timestamp": "0", "isForce": "true", **name}
    yield Input(codes.INVOKE_BROKER_TO_RESET_OFFSET, move)
    yield Input(codes.GET_CONSUME_STATS, {"consumerGroup": GROUP, **name})
    assigned = document(topic=TOPIC, consumerGroup="hb0", clientId="c", strategyName="AVG")
    yield Input(codes.QUERY_ASSIGNMENT, {}, assigned)
    for code, ext in (
        (codes.GET_ROUTEINFO_BY_TOPIC, topic),
        (codes.GET_BROKER_CLUSTER_INFO, {}),
        (codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (codes.GET_TOPICS_BY_CLUSTER, {}),
        (codes.GET_ALL_TOPIC_CONFIG, name),
        (codes.GET_TOPIC_STATS_INFO, {**topic, **name}),
        (codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, name),
        (codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, name),
        (codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "hb0"}),
        (codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "hb0"}),
        (codes.GET_ALL_PRODUCER_INFO, {}),
        (codes.QUERY_TOPIC_CONSUME_BY_WHO, topic),
        (codes.QUERY_TOPICS_BY_CONSUMER, group),
        (codes.GET_BROKER_RUNTIME_INFO, {}),
        (codes.GET_BROKER_CONFIG, {}),
        (codes.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
        (codes.GET_BROKER_CONSUME_STATS, {"isOrder": "false", **name}),
        (codes.QUERY_CONSUME_QUEUE, {**queue, "index": "0", "count": "1024"}),
        (codes.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": f"d{number}", **name}),
        (codes.GET_BROKER_HA_STATUS, {}),
    ):
        yield Input(code, ext)


def own() -> Iterator[OwnCall]:
    """Yield the large calls of the own services."""
    queues = [QueueId(topic=TOPIC, queue_id=n % QUEUE_COUNT) for n in range(4_096)]
    rows = [consumer_pb2.GroupOffset(topic=TOPIC, queue_id=n, offset=0) for n in range(QUEUE_COUNT)]
    commit = consumer_pb2.CommitOffsetsRequest(group=GROUP, offsets=rows)
    yield OwnCall("Consumer", "CommitOffsets", commit)
    fetch = consumer_pb2.FetchOffsetsRequest(group=GROUP, queues=queues)
    yield OwnCall("Consumer", "FetchOffsets", fetch)
    beat = consumer_pb2.HeartbeatRequest(
        group=GROUP, client_id="own", topics=[TOPIC], queues=queues, wanted=queues
    )
    yield OwnCall("Consumer", "Heartbeat", beat)
    yield OwnCall("Log", "QueueOffsets", log_pb2.QueueOffsetsRequest(queues=queues))
    sql = log_pb2.PullRequest(topic=TOPIC, sql=_sql(3_000), max_count=1_024)
    yield OwnCall("Log", "Pull", sql)
    common = CommonFields(TOPIC, 1, 0, 0, LOOPBACK, LOOPBACK, 0)
    keys = "KEYS\x01{:07}" + " 1" * 3 + "\x02"
    for template in ("", "{:07}" + _TINY, keys):
        encoder, size_bytes = RecordEncoder(common), 0
        count_max = CHECKED_COUNT_MAX if template else 1 << 20
        while size_bytes < _APPEND_SIZE_BYTES and len(encoder.sizes) < count_max:
            encoder.add(0, b"", template.format(size_bytes).encode())
            size_bytes += encoder.sizes[-1]
        records = encoder.records()
        append = log_pb2.AppendRequest(records=records, record_count=len(encoder.sizes))
        yield OwnCall("Log", "Append", append)
    yield OwnCall("Retry", "ExportConfigFiles", retry_pb2.ExportConfigFilesRequest())
    yield OwnCall("Retry", "ImportConfigFiles", topics_import())
    yield OwnCall("Admin", "ListTopics", admin_pb2.ListTopicsRequest())
    yield OwnCall("Admin", "DescribeTopic", admin_pb2.DescribeTopicRequest(topic=TOPIC))
    yield OwnCall("Admin", "ListGroups", admin_pb2.ListGroupsRequest())
    yield OwnCall("Admin", "DescribeGroup", admin_pb2.DescribeGroupRequest(group=GROUP))
