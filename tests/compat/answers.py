"""RocketMQ itself and a cluster of ours: the same is done to both, and both are asked the same.

Owns RocketMQ's processes, what is done, the questions, and the form in which two answers are held
beside each other. The table of docs/rocketmq-answers.md says what may differ, and why.
"""

import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.peers.java_programs import java_words, write_properties
from bench.peers.processes import Processes
from bench.peers.rocketmq_settings import JAVA_OPTIONS, choose_ports
from deploy.local_process import free_ports
from store.record.message import decode_message
from tests.java import SHORT_LIVED
from tests.node.rocketmq.remoting.clients import ClassicClient, Heard, json_frame, send_fields
from tests.store.records import messages

NAME, TOPIC, GROUP, CLIENT = "g0-n1", "answers", "readers", "10.0.0.1@one"
PLAIN, TAGGED, DELAYED, RETRIED, COMMITTED, ORDERED, BATCH, EMPTY, TIMED, DEAD = range(10)
"""Queues of the topic, each with messages of one kind."""
_OPTIONS: Final = (*(o for o in JAVA_OPTIONS if "-X" not in o), *SHORT_LIVED, "-Xmx400m")
_PACKAGE: Final = "org.apache.rocketmq"
_WAIT_MS: Final = 15_000
_COMMIT: Final = 8


class Side(NamedTuple):
    """One of the two that are asked."""

    names: ClassicClient
    broker: ClassicClient
    ports: dict[str, str]
    """What stands for an address in answers."""
    cluster: str
    kept: dict[str, Heard]
    """What was answered while things were done, by the name of the question."""

    async def pull(self, topic: str, queue: int, offset: int = 0, **more: str) -> Heard:
        """Pull once; wait for a message."""
        ext = {"topic": topic, "consumerGroup": GROUP, "bname": NAME, "maxMsgNums": "1"}
        return await self.broker.pull(queue, offset, _WAIT_MS, ext | more)

    async def send(self, queue: int, topic: str = TOPIC, flag: int = 0, **more: str) -> Heard:
        key = f"0A0000090001272A58B4000000000{queue:03X}"
        return await self.broker.send(b"body", topic, queue, sys_flag=flag, UNIQ_KEY=key, **more)


@asynccontextmanager
async def rocketmq(directory: Path, cluster: str) -> AsyncIterator[tuple[int, int]]:
    """Run a name server and a broker of RocketMQ; yield their ports."""
    processes, (names, *_), (ports, *_) = Processes(str(directory)), free_ports(1), choose_ports()
    home = str(directory)
    settings = {
        "brokerClusterName": cluster,
        "brokerName": NAME,
        "brokerIP1": "127.0.0.1",
        "listenPort": str(ports.listen),
        "haListenPort": str(ports.ha),
        "namesrvAddr": f"127.0.0.1:{names}",
        "registerNameServerPeriod": "10000",
        "storePathRootDir": f"{home}/store",
        "storePathCommitLog": f"{home}/store/commitlog",
        "mappedFileSizeCommitLog": str(16 << 20),
        "maxIndexNum": "10000",
        "maxHashSlotNum": "1000",
        "autoCreateTopicEnable": "false",
        "autoCreateSubscriptionGroup": "true",
        "diskMaxUsedSpaceRatio": "95",
    }
    programs = {
        "namesrv": ("namesrv.NamesrvStartup", {"listenPort": str(names)}),
        "broker": ("broker.BrokerStartup", settings),
    }
    try:
        for name, (main, properties) in programs.items():
            path = f"{home}/{name}.conf"
            write_properties(path, properties)
            words = java_words("rocketmq", home, _OPTIONS, f"{_PACKAGE}.{main}", ("-c", path))
            processes.start(name, words, {"ROCKETMQ_HOME": home})
            await processes.until_listening(names, "the name server")
        # A broker that missed the name server tries again ten seconds later.
        await processes.until(partial(_is_known, names, ports.listen), "no broker is known")
        yield names, ports.listen
    finally:
        processes.kill_all()


async def _is_known(names: int, broker: int) -> bool:
    with socket.create_connection(("127.0.0.1", names)) as stream:
        stream.sendall(json_frame({"code": 106, "opaque": 1, "flag": 0, "extFields": {}}))
        return b":%d" % broker in stream.recv(65_536)


@asynccontextmanager
async def side(names: int, broker: int, cluster: str) -> AsyncIterator[Side]:
    """Connect, and do what is asked about afterwards."""
    clients = [await ClassicClient.connect(port) for port in (names, broker)]
    ports = {f"127.0.0.1:{port}": "the broker" for port in (names, broker)}
    try:
        new_side = Side(clients[0], clients[1], ports, cluster, {})
        await _act(new_side)
        yield new_side
    finally:
        for client in clients:
            await client.close()


async def _act(side: Side) -> None:
    ask, kept = side.broker.ask, side.kept
    ext = {"topic": TOPIC, "readQueueNums": "10", "writeQueueNums": "10", "perm": "6"}
    ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    kept["a topic is made"] = await ask(17, ext | {"order": "false"})
    body = json.dumps({"groupName": GROUP, "retryMaxTimes": 5, "consumeEnable": True}).encode()
    kept["a group is made"] = await ask(200, body=body)
    kept["a heartbeat"] = await side.broker.heartbeat(CLIENT, GROUP, TOPIC)
    await side.broker.produce_for(CLIENT, "producers")
    kept["a send"] = await side.send(PLAIN)
    await side.send(TAGGED, KEYS="key1 key2", TAGS="tag", own="value")
    await side.send(DELAYED, DELAY="1")
    await side.send(TIMED, TIMER_DELAY_MS="500")
    await side.send(RETRIED)
    await side.send(DEAD)
    half = await side.send(COMMITTED, flag=4, TRAN_MSG="true", PGROUP="producers")
    kept["a half message"] = half
    ext = {"producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"]}
    ext |= {"commitLogOffset": str(int(half.ext["msgId"][16:], 16)), "msgId": half.ext["msgId"]}
    ext |= {"commitOrRollback": str(_COMMIT), "fromTransactionCheck": "false", "bname": NAME}
    kept["a commit"] = await ask(37, ext | {"transactionId": half.ext["transactionId"]})
    await side.send(ORDERED, __SHARDINGKEY="order-1")
    entries = b"".join(
        struct.pack(">iiiii", 22 + 1 + len(p), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(p)) + p
        for p in (f"UNIQ_KEY\x010A0000090001272A58B400000000{n:04X}".encode() for n in (80, 81))
    )
    fields = send_fields(TOPIC, BATCH, NAME) | {"m": "true", "i": ""}
    kept["a batch"] = await ask(320, fields, entries)
    for queue, level in ((RETRIED, "1"), (DEAD, "-1")):
        position = decode_message((await side.pull(TOPIC, queue)).body).position
        ext = {"offset": str(position), "group": GROUP, "delayLevel": level, "originTopic": TOPIC}
        ext |= {"originMsgId": "", "unitMode": "false", "maxReconsumeTimes": "5", "bname": NAME}
        kept["a message given back"] = await ask(36, ext)
    await ask(15, {"consumerGroup": GROUP, **_at(PLAIN), "commitOffset": "1"})
    kept["a key-value pair is put"] = await side.names.ask(
        100, {"namespace": "texts", "key": "one", "value": "two"}
    )
    kept["a retried message"] = await side.pull(f"%RETRY%{GROUP}", 0)
    kept["a dead letter"] = await side.pull(f"%DLQ%{GROUP}", 0)
    kept["a delayed message"] = await side.pull(TOPIC, DELAYED)
    kept["a message with a timer"] = await side.pull(TOPIC, TIMED)


def _at(queue: int) -> dict[str, str]:
    return {"topic": TOPIC, "queueId": str(queue), "bname": NAME}


Ask = Callable[[Side], Awaitable[Heard]]


def _names(code: int, **ext: str) -> Ask:
    return lambda side: side.names.ask(code, {k: v.format(side=side) for k, v in ext.items()})


def _broker(code: int, **ext: str) -> Ask:
    return lambda side: side.broker.ask(code, {k: v.format(side=side) for k, v in ext.items()})


def _pulled(queue: int, **more: str) -> Ask:
    return lambda side: side.pull(TOPIC, queue, 0, **more)


def _at_offset(code: int, queue: int, **more: str) -> Ask:
    return _broker(code, **_at(queue), **more)


async def _by_id(side: Side) -> Heard:
    sent = side.kept["a send"].ext["msgId"]
    return await side.broker.ask(33, {"offset": str(int(sent[16:], 16)), "topic": TOPIC})


async def _popped(side: Side) -> Heard:
    ext = {"consumerGroup": "poppers", "maxMsgNums": "1", "invisibleTime": "60000", "exp": "*"}
    ext |= {"pollTime": "0", "bornTime": "0", "initMode": "0", "order": "false", "expType": "TAG"}
    return await side.broker.ask(200050, _at(PLAIN) | ext)


_SPAN: Final = {"beginTimestamp": "0", "endTimestamp": "9000000000000", "maxNum": "8"}
QUESTIONS: Final[dict[str, Ask]] = {
    "route": _names(105, topic=TOPIC),
    "route of a missing topic": _names(105, topic="missing"),
    "brokers of the cluster": _names(106),
    "topics": _names(206),
    "topics of the cluster": _names(224, cluster="{side.cluster}"),
    "system topics of the name server": _names(304),
    "settings of the name server": _names(319),
    "a value": _names(101, namespace="texts", key="one"),
    "a missing value": _names(101, namespace="texts", key="none"),
    "values of a namespace": _names(219, namespace="texts"),
    "system topics of the broker": _broker(305),
    "settings of the broker": _broker(26),
    "runtime": _broker(28),
    "topic settings": _broker(351, topic=TOPIC),
    "all topic settings": _broker(21),
    "topic status": _broker(202, topic=TOPIC),
    "group settings": _broker(352, group=GROUP),
    "all group settings": _broker(201),
    "group progress": _broker(208, consumerGroup=GROUP, topic=TOPIC),
    "progress of all groups": _broker(317, isOrder="false"),
    "groups of a topic": _broker(300, topic=TOPIC),
    "topics of a group": _broker(343, group=GROUP),
    "subscription": _broker(345, group=GROUP, topic=TOPIC),
    "consumers": _broker(203, consumerGroup=GROUP),
    "consumers of a missing group": _broker(203, consumerGroup="missing"),
    "consumer ids": _broker(38, consumerGroup=GROUP),
    "producers": _broker(204, producerGroup="producers"),
    "all producers": _broker(328),
    "running info of a missing consumer": _broker(307, consumerGroup=GROUP, clientId="missing"),
    "stats of a topic": _broker(315, statsName="TOPIC_PUT_NUMS", statsKey=TOPIC),
    "stats of a group": _broker(315, statsName="GROUP_GET_NUMS", statsKey=f"{TOPIC}@{GROUP}"),
    "copies": _broker(907),
    "a send to a missing topic": lambda side: side.send(0, "missing"),
    "a plain message": _pulled(PLAIN),
    "a message with keys and tags": _pulled(TAGGED),
    "a committed message": _pulled(COMMITTED),
    "an ordered message": _pulled(ORDERED),
    "messages of a batch": _pulled(BATCH, maxMsgNums="2"),
    "a pull of another tag": _pulled(TAGGED, subscription="other"),
    "a pull past the end": lambda side: side.pull(TOPIC, EMPTY, 5),
    "a lite pull": lambda side: side.broker.ask(361, _lite()),
    "a popped message": _popped,
    "first offset": _at_offset(31, BATCH),
    "next offset": _at_offset(30, BATCH),
    "offset at a time": _at_offset(29, BATCH, timestamp="0"),
    "time of the first message": _at_offset(32, PLAIN),
    "time of no message": _at_offset(32, EMPTY),
    "offset of a group": _at_offset(14, PLAIN, consumerGroup=GROUP),
    "missing offset of a group": _at_offset(14, PLAIN, consumerGroup="nobody"),
    "units of a queue": _at_offset(321, BATCH, index="0", count="2", consumerGroup=GROUP),
    "messages by key": _broker(12, topic=TOPIC, key="key2", **_SPAN),
    "messages by unique key": _broker(
        12, topic=TOPIC, key="0A0000090001272A58B4000000000000", _UNIQUE_KEY_QUERY="true", **_SPAN
    ),
    "a message by its id": _by_id,
    "a lock": lambda side: side.broker.ask(41, body=_lock()),
}


def _lite() -> dict[str, str]:
    ext = {"consumerGroup": GROUP, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    return _at(PLAIN) | ext | {"subVersion": "1"}


def _lock() -> bytes:
    queues = [{"topic": TOPIC, "brokerName": NAME, "queueId": ORDERED}]
    return json.dumps({"consumerGroup": GROUP, "clientId": CLIENT, "mqSet": queues}).encode()


# --- The form of an answer ---

_KEY: Final = re.compile(rb"([{,])(\{[^{}]*\}|-?\d+):")
"""Keys that are objects or numbers, which RocketMQ writes and JSON does not have."""
_UNIX_MS: Final = re.compile(r"\b1[5-9]\d{11}\b")
_ID: Final = re.compile(r"7F000001[0-9A-F]{24}")
_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
Row = dict[str, object]
MEASURED: Final = (
    *("*.position", "*.size_bytes", "*.prepared_transaction_position", "*.phys*", "*.consumeTps"),
    *("*.clientAddr", "*.remoteIP", "ext.invisibleTime", "body.stats*", "body.table.*Tps"),
    *("body.table.*Max", "body.table.*Ratio", "body.table.commitLog*", "body.table.msg*"),
    *("body.table.put*", "body.table.*Capacity", "body.table.remain*", "body.table.runtime"),
    "body.topicPutTps",
)
"""Values of which the type alone is compared: places in a log, times, rates and sizes."""


async def answers(side: Side) -> dict[str, Row]:
    """Return all answers, by question."""
    heard_by_name = side.kept | {name: await ask(side) for name, ask in QUESTIONS.items()}
    return {name: document(heard, side) for name, heard in heard_by_name.items()}


def document(heard: Heard, side: Side) -> Row:
    """Return an answer as values by path; what only one run has is replaced by its type."""
    values: dict[str, Any] = {"code": heard.code, "ext": heard.ext, "remark": heard.remark}
    body = heard.body
    if body[:1] in (b"{", b"["):
        values["body"] = json.loads(
            _KEY.sub(lambda key: key[1] + json.dumps(key[2].decode()).encode() + b":", body)
        )
    elif body[4:8] in _MAGICS:
        values["body"] = list(_messages(body))
    else:
        lines = (line.partition("=") for line in body.decode().splitlines())
        values["body"] = {name: value for name, _, value in lines}
    return {path: _plain(path, value, side) for path, value in _rows(values, "")}


def _messages(body: bytes) -> Iterator[dict[str, Any]]:
    for message in messages(body):
        store_host = "{}:{}".format(*message.store_host)
        hosts = {"born_host": message.born_host[0], "store_host": store_host}
        yield asdict(message) | hosts | {"body": message.body.decode()}


def _rows(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _rows(one, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            if isinstance(one, str):
                yield f"{path}.{one}", True
            else:
                # A list of tables with one key each is a table.
                is_table = isinstance(one, dict) and len(one) == 1
                yield from _rows(one, path if is_table else f"{path}.{number}")
    else:
        yield path, value


def _plain(path: str, value: Any, side: Side) -> object:
    if any(fnmatch(path, pattern) for pattern in MEASURED):
        is_number = isinstance(value, str) and value.replace(".", "").isdigit()
        return f"{type(value).__name__}{' of digits' if is_number else ''}"
    if isinstance(value, int) and _UNIX_MS.fullmatch(str(value)):
        return "a time"
    if isinstance(value, str):
        for address, name in side.ports.items():
            value = value.replace(address, name)
        return _UNIX_MS.sub("a time", _ID.sub("an id", value))
    return value


def unlike(theirs: Row, ours: Row) -> dict[str, tuple[object, object]]:
    """Return the paths whose values differ, or have other types; "-": one has none."""
    return {
        path: (first, other)
        for path in sorted({*theirs, *ours})
        if (first := theirs.get(path, "-")) != (other := ours.get(path, "-"))
        or type(first) is not type(other)
    }
