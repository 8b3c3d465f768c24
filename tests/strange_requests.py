"""Requests of RocketMQ's protocol as strangers draw them: legal ones of each code, and odd ones.

Owns the legal form of each code, and the mutations. Must not know what a node makes of them, nor
connections. All names in them are the strangers' own, so that what they may do harms nobody else.
"""

import json
import random
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from node.rocketmq.remoting.protocol.codes import REFUSED, RequestCode
from tests.node.rocketmq.remoting.clients import ONEWAY, RESPONSE, binary_frame, json_frame

TOPICS: Final = ("strange0", "strange1")
GROUPS: Final = ("odd0", "odd1", "odd2")
CLIENTS: Final = ("c@0", "c@1", "c@2")
_NAME: Final = "g0-n1"

Random = random.Random
Draw = Callable[[Random], Any]


def _properties(chance: Random) -> str:
    properties = {"UNIQ_KEY": f"{chance.randrange(1 << 20):032X}", "KEYS": "k", "TAGS": "a"}
    if chance.random() < 0.2:
        properties |= chance.choice(
            (
                {"TRAN_MSG": "true", "PGROUP": GROUPS[0]},
                {"DELAY": "1"},
                {"TIMER_DELAY_MS": "5000"},
                {"CLUSTER": "x", "REPLY_TO_CLIENT": CLIENTS[0], "CORRELATION_ID": "1"},
            )
        )
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


_VALUES: Final = {
    name: [value.strip() for value in values.split(",")]
    for names, _, values in (
        line.partition(":")
        for line in f"""
        acceptStandardJsonOnly order: true, false
        attemptId: , again
        attributes: , +message.type=DELAY
        beginTimestamp: 0, 1
        bname brokerName: {_NAME}
        boundaryType: LOWER, UPPER
        clientID: {", ".join(CLIENTS)}
        clientId: {", ".join(CLIENTS)},
        cluster: theirs
        commitOrRollback: 0, 8, 12
        consumerGroup group groupName producerGroup: {", ".join(GROUPS)}
        delayLevel: -1, 0, 3
        endTimestamp: 0, 9999999999999
        exp subscription: *, a, a || b, a IS NOT NULL
        expType expressionType: TAG, TAG, SQL92
        invisibleTime: 10, 60000, 43200000
        key: k, {TOPICS[0]}
        maxMsgNums maxNum: 1, 32
        namespace: ORDER_TOPIC_CONFIG, odd
        originTopic topic: {", ".join(TOPICS)}
        perm: 6, 2, 4
        pollTime suspendTimeoutMillis: 0, 15000
        readQueueNums writeQueueNums: 1, 2
        statsKey: {TOPICS[0]}, {TOPICS[0]}@{GROUPS[0]}, {TOPICS[1]}@{GROUPS[1]}
        statsName: TOPIC_PUT_NUMS, GROUP_GET_NUMS
        sysFlag: 0, 2, 4, 6
        """.strip().splitlines()
    )
    for name in names.split()
}
"""Values of fields that make sense, by their names; of all others a small number does."""
_SMALL: Final = ["0", "1", "2"]
_MADE: Final[Mapping[str, Draw]] = {
    "extraInfo": lambda c: f"{c.randrange(4)} 1 60000 {c.randrange(8)} 0 {_NAME} 0 0",
    "msgId": lambda c: f"7F00000100002A9F{c.randrange(1 << 15):016X}",
    "properties": _properties,
}
_SHORT: Final = {
    "a": "producerGroup",
    "b": "topic",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "n": "bname",
}


def _row(chance: Random) -> dict[str, Any]:
    """Return a subscription."""
    return {
        "topic": chance.choice(TOPICS),
        "subString": chance.choice(("*", "a", "a || b")),
        "subVersion": chance.randrange(4),
        "expressionType": "TAG",
    }


def _heartbeat(chance: Random) -> dict[str, Any]:
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [_row(chance)],
        }
        for group in chance.sample(GROUPS, chance.randint(0, 2))
    ]
    producers = [{"groupName": group} for group in chance.sample(GROUPS, chance.randint(0, 2))]
    client_id = chance.choice(CLIENTS)
    return {"clientID": client_id, "producerDataSet": producers, "consumerDataSet": consumers}


def _queues(chance: Random) -> dict[str, Any]:
    rows = [
        {"topic": topic, "brokerName": _NAME, "queueId": chance.randrange(4)}
        for topic in chance.choices(TOPICS, k=chance.choice((1, 3, 40)))
    ]
    group, client_id = chance.choice(GROUPS), chance.choice(CLIENTS)
    return {"consumerGroup": group, "clientId": client_id, "mqSet": rows}


def _topic(chance: Random) -> dict[str, Any]:
    return {"topicName": chance.choice(TOPICS), "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}


def _group(chance: Random) -> dict[str, Any]:
    return {"groupName": chance.choice(GROUPS), "retryMaxTimes": chance.randint(0, 16)}


def _assignment(chance: Random) -> dict[str, Any]:
    mode, topic, group = chance.choice(("POP", "PULL")), *map(chance.choice, (TOPICS, GROUPS))
    return {"topic": topic, "consumerGroup": group, "clientId": CLIENTS[0], "mode": mode}


def _message(chance: Random) -> bytes:
    data = chance.randbytes(chance.choice((0, 1, 90, 3_000)))
    return chance.choice((data, zlib.compress(data)))


def _batch(chance: Random) -> bytes:
    """Return messages in the form of a batch."""
    body, properties = chance.randbytes(20), b"UNIQ_KEY\x01%032X\x02" % chance.randrange(1 << 20)
    head = (4 * 5 + len(body) + 2 + len(properties), 0, zlib.crc32(body), 0, len(body))
    message = b"".join(number.to_bytes(4, "big") for number in head) + body
    return (message + len(properties).to_bytes(2, "big") + properties) * chance.choice((1, 2, 30))


_FIELDS: Final[Mapping[int, list[str]]] = {
    RequestCode[name]: fields.split()
    for names, _, fields in (
        line.partition(":")
        for line in f"""
        SEND_MESSAGE SEND_REPLY_MESSAGE: {" ".join(_SHORT.values())}
        SEND_MESSAGE_V2 SEND_REPLY_MESSAGE_V2 SEND_BATCH_MESSAGE: {" ".join(_SHORT)}
        PULL_MESSAGE LITE_PULL_MESSAGE: consumerGroup topic queueId queueOffset maxMsgNums sysFlag \
            commitOffset suspendTimeoutMillis subscription subVersion expressionType bname
        POP_MESSAGE: consumerGroup topic queueId maxMsgNums invisibleTime pollTime bornTime \
            initMode exp expType order attemptId bname
        ACK_MESSAGE CHANGE_MESSAGE_INVISIBLETIME: consumerGroup topic queueId extraInfo offset \
            invisibleTime bname
        QUERY_CONSUMER_OFFSET UPDATE_CONSUMER_OFFSET: consumerGroup topic queueId commitOffset bname
        SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET GET_EARLIEST_MSG_STORETIME: topic \
            queueId timestamp boundaryType bname
        VIEW_MESSAGE_BY_ID: offset
        QUERY_MESSAGE: topic key maxNum beginTimestamp endTimestamp bname
        UNREGISTER_CLIENT: clientID producerGroup consumerGroup
        CONSUMER_SEND_MSG_BACK: group offset delayLevel originMsgId originTopic maxReconsumeTimes
        END_TRANSACTION: producerGroup commitLogOffset commitOrRollback tranStateTableOffset msgId
        PUT_KV_CONFIG GET_KV_CONFIG DELETE_KV_CONFIG GET_KVLIST_BY_NAMESPACE: namespace key value
        UPDATE_AND_CREATE_TOPIC: topic readQueueNums writeQueueNums perm attributes
        CONSUME_MESSAGE_DIRECTLY GET_CONSUMER_RUNNING_INFO: consumerGroup clientId msgId
        INVOKE_BROKER_TO_RESET_OFFSET: topic group timestamp queueId offset
        VIEW_BROKER_STATS_DATA: statsName statsKey
        WIPE_WRITE_PERM_OF_BROKER ADD_WRITE_PERM_OF_BROKER: brokerName
        """.strip().splitlines()
    )
    for name in names.split()
}
"""Ext fields of the codes that are more than a question about a name."""
_BODIES: Final[Mapping[int, Draw]] = {
    RequestCode.SEND_MESSAGE: _message,
    RequestCode.SEND_MESSAGE_V2: _message,
    RequestCode.SEND_REPLY_MESSAGE: _message,
    RequestCode.SEND_REPLY_MESSAGE_V2: _message,
    RequestCode.SEND_BATCH_MESSAGE: _batch,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.LOCK_BATCH_MQ: _queues,
    RequestCode.UNLOCK_BATCH_MQ: _queues,
    RequestCode.CHECK_CLIENT_CONFIG: lambda chance: {"subscriptionData": _row(chance)},
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _assignment,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda chance: {"topicConfigList": [_topic(chance)]},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda chance: {
        "groupConfigList": [_group(chance)]
    },
}
_OFTEN: Final = 6
_CODES: Final = [
    code
    for code in (*RequestCode, *REFUSED)
    for _ in range(_OFTEN if code in _FIELDS or code in _BODIES else 1)
]
_NAMES: Final = ["topic", "group", "groupName", "consumerGroup", "producerGroup", "cluster"]
"""Fields of all other codes: each reads some of these."""
_FOREIGN: Final = (
    *_VALUES,
    *_MADE,
    *_SHORT,
    "__QL_NAME",
    "__QL_FORWARDED",
    "__QL_LED_ELSEWHERE",
    "token",
)
_BORDERS: Final = (
    *("", "-1", "0", "255", "32767", "65536", "2147483647", "2147483648", "-2147483648"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 40, "1e9", "nan"),
)
_TEXTS: Final = (
    *("%RETRY%odd0", "%DLQ%odd0", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "a/../b", "\x1b[2J"),
    *("\x00", "\ud800", "ä😀", "a\x01b\x02c", "g0-n9", "10.1.2.3:9", "nonsense", "true", "(" * 200),
)
_DEEP: Final = b'{"a":' * 3_000 + b"1" + b"}" * 3_000


class Drawn(NamedTuple):
    """A request that was drawn."""

    code: int
    ext: dict[str, str]
    body: bytes
    flag: int = 0
    is_binary: bool = False

    def frame(self, opaque: int) -> bytes:
        """Return its bytes."""
        if self.is_binary:
            return binary_frame(self.code, opaque, self.flag, self.ext, self.body)
        head = {"code": self.code, "opaque": opaque, "flag": self.flag, "version": 479}
        return json_frame({**head, "language": "JAVA", "extFields": self.ext}, self.body)


def legal(chance: Random, code: int) -> Drawn:
    """Return a request of a code in its legal form."""
    ext = {}
    for field in _FIELDS.get(code, [] if code in _BODIES else _NAMES):
        name = _SHORT.get(field, field)
        made = _MADE.get(name)
        ext[field] = made(chance) if made else chance.choice(_VALUES.get(name, _SMALL))
    body = _BODIES.get(code)
    content = b"" if body is None else body(chance)
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    return Drawn(int(code), ext, content)


def _text(chance: Random) -> str:
    if chance.random() < 0.1:
        return "n" * chance.choice((128, 256, 40_000))
    return chance.choice(_BORDERS if chance.random() < 0.6 else _TEXTS)


def _bent(chance: Random, document: Any) -> Any:
    """Return a document with one value, anywhere in it, that is of another kind."""
    if chance.random() < 0.2 or not isinstance(document, dict | list) or not document:
        text = _text(chance)
        others: tuple[Any, ...] = (
            None,
            -1,
            1 << 70,
            1.5,
            True,
            text,
            [],
            {},
            [[]] * 300,
            {text: text},
        )
        return chance.choice(others)
    if isinstance(document, list):
        if chance.random() < 0.2:
            return document * chance.choice((2, 50, 1_000))
        at = chance.randrange(len(document))
        return [*document[:at], _bent(chance, document[at]), *document[at + 1 :]]
    name = chance.choice(list(document))
    return {**document, name: _bent(chance, document[name])}


def mutated(chance: Random, drawn: Drawn) -> Drawn:
    """Return a request that is wrong, or odd, in one way."""
    ext, body = dict(drawn.ext), drawn.body
    match chance.randrange(9):
        case 0 | 1 | 2 if ext:
            ext[chance.choice(list(ext))] = _text(chance)
        case 3 if ext:
            del ext[chance.choice(list(ext))]
        case 4:
            ext |= {name: _text(chance) for name in chance.sample(_FOREIGN, 3)}
        case 5:
            ext |= {f"field{n}": "v" for n in range(chance.choice((20, 240, 256, 600)))}
        case 6 | 7 if body[:1] == b"{":
            with suppress(RecursionError, ValueError):
                body = json.dumps(_bent(chance, json.loads(body))).encode()
        case 8:
            body = chance.choice((b"", _DEEP, b"[" * 9_000, body[: len(body) // 2], b"{}", b"[]"))
        case _:
            body = chance.randbytes(chance.choice((1, 60, 9_000)))
    return drawn._replace(ext=ext, body=body)


def draw(chance: Random) -> Drawn:
    """Return any request, or an answer that nobody asked for."""
    drawn = legal(chance, chance.choice(_CODES))
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 4))):
        drawn = mutated(chance, drawn)
    odd = chance.random()
    if odd < 0.08:
        drawn = drawn._replace(flag=chance.choice((RESPONSE, RESPONSE | ONEWAY, 7)))
    elif odd < 0.16:
        drawn = drawn._replace(flag=ONEWAY)
    elif odd < 0.18:
        drawn = drawn._replace(code=chance.choice((-20_812, -1, 0, 4711, 32_767)))
    is_short = -(1 << 15) <= drawn.code < 1 << 15
    fits = is_short and all(
        len(name) < 1 << 15 and not any("\ud800" <= c < "\ue000" for c in value)
        for name, value in drawn.ext.items()
    )
    return drawn._replace(is_binary=fits and chance.random() < 0.2)
