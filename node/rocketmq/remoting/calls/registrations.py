"""Brokers of RocketMQ that register here: routes name their topics too, to be read only.

Owns what each of them told. They register at every name server that they know, every 30 s, so each
node keeps what was told to it in memory. A broker is listed in `rocketmq_brokers`, and registers
from the host of its address: a stranger adds no address to a route. Source: protocol appendix B.
"""

import asyncio
import binascii
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from node.rocketmq.remoting.calls.json_bodies import json_body
from node.rocketmq.remoting.conversation import RemotingConnection, Request
from node.rocketmq.remoting.places import parsed_host
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.fields import INT64_MAX, bool_of, int_of, text_of
from node.state.checkpoint_tables import load_table
from node.state.state import PERMISSION_WRITE
from store.record.topic_names import is_of_group, is_reserved

TIMEOUT_MS: Final = 120_000
"""A broker that is silent for this long is away, unless it told another time."""
TIMEOUT_MS_MAX: Final = 600_000
TOPIC_COUNT_MAX: Final = 20_000
"""Of one broker."""
NAME_LENGTH_MAX: Final = 255
QUEUE_COUNT_MAX: Final = 65_536
_log: Final = structlog.get_logger(component="remoting")

Version = tuple[int, int, int]
"""State version, timestamp and counter of a broker's topics."""


@dataclass(slots=True)
class _Replica:
    """One address of a broker name."""

    address: str
    connection: RemotingConnection
    seen_s: float
    timeout_s: float


@dataclass(slots=True)
class _Broker:
    """One broker name."""

    cluster: str
    replicas: dict[int, _Replica] = field(default_factory=dict)
    """By broker id; 0 is the master."""
    version: Version | None = None
    topics: dict[str, dict[str, int]] = field(default_factory=dict)


class Registrations:
    """Answers the requests of brokers. One per gateway."""

    def __init__(
        self,
        addresses: Iterable[str],
        is_own_name: Callable[[str], bool],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`addresses` are those of the brokers that may register."""
        self._addresses = frozenset(addresses)
        self._is_own_name = is_own_name
        self._monotonic_s = monotonic_s
        self._brokers: dict[str, _Broker] = {}

    # --- Requests of brokers ---

    async def register(self, request: Request) -> Answer:
        """Take what a broker tells of itself."""
        ext, body = request.command.ext, request.command.body
        name, broker_id, address = self._checked(request)
        cluster = _name_of(text_of(ext, "clusterName"), "clusterName")
        if bool_of(ext, "compressed"):
            text = "compressed registrations are not read; set compressedRegister=false"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        checksum = int_of(ext, "bodyCrc32", 0)
        if checksum and checksum != binascii.crc32(body) & 0x7FFFFFFF:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        timeout_ms = int_of(ext, "heartbeatTimeoutMillis", TIMEOUT_MS, lo=-INT64_MAX)
        timeout_ms = min(timeout_ms, TIMEOUT_MS_MAX) if timeout_ms > 0 else TIMEOUT_MS
        # Thousands of topics take tenths of a second, in which a loop would answer no peer.
        told = await asyncio.to_thread(_topics_of, body) if broker_id == 0 else None
        # An address stands for one broker, so there are at most as many as are listed.
        self._forget_if(
            lambda other, number, replica: (
                replica.address == address and (other, number) != (name, broker_id)
            )
        )
        broker = self._brokers.get(name)
        if broker is None or broker.cluster != cluster:
            broker = self._brokers[name] = _Broker(cluster)
        if broker_id not in broker.replicas:
            _log.info("a broker of RocketMQ registered", broker=name, id=broker_id, at=address)
        seen_s = self._monotonic_s()
        broker.replicas[broker_id] = _Replica(
            address, request.connection, seen_s, timeout_ms / 1000
        )
        if told is not None:
            broker.version, broker.topics = told
            for own in (name, cluster):  # Brokers have a topic of each name, for themselves.
                broker.topics.pop(own, None)
        master = broker.replicas.get(0)
        found = {}
        if broker_id and master is not None:
            found = {"masterAddr": master.address, "haServerAddr": text_of(ext, "haServerAddr", "")}
        return Answer(ext=found, body=json_body({"table": {}}))

    async def unregister(self, request: Request) -> Answer:
        """Forget a broker that stops."""
        name, broker_id, address = self._checked(request)
        broker = self._brokers.get(name)
        replica = None if broker is None else broker.replicas.get(broker_id)
        if replica is not None and replica.address == address:
            self._forget(name, broker_id)
        return Answer()

    async def version(self, request: Request) -> Answer:
        """Say whether a broker has to register again; it is a sign of life, too."""
        name, broker_id, address = self._checked(request)
        broker = self._brokers.get(name)
        replica = None if broker is None else broker.replicas.get(broker_id)
        if broker is None or replica is None or replica.address != address:
            return Answer(ext={"changed": "true"})
        replica.seen_s, replica.connection = self._monotonic_s(), request.connection
        is_same = broker_id != 0 or broker.version == _version_of(_document(request.command.body))
        return Answer(ext={"changed": "false" if is_same else "true"})

    def _checked(self, request: Request) -> tuple[str, int, str]:
        """Return name, id and address of the broker that sent a request. Raises RefusedError."""
        ext = request.command.ext
        name = _name_of(text_of(ext, "brokerName"), "brokerName")
        address = text_of(ext, "brokerAddr")
        if address not in self._addresses:
            text = f"{address[:NAME_LENGTH_MAX]!r} is not listed in rocketmq_brokers of this node"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        there, here = parsed_host(address), parsed_host(request.connection.remote)
        if there is None or here is None or there[0] != here[0]:
            text = f"a broker at {address} registers from that IP address (brokerIP1)"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        if self._is_own_name(name):
            text = f"{name!r} is a broker name of this cluster; give the broker another brokerName"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        return name, int_of(ext, "brokerId"), address

    # --- Ends ---

    def on_closed(self, connection: RemotingConnection) -> None:
        """Forget the brokers of a connection."""
        self._forget_if(lambda _name, _number, replica: replica.connection is connection)

    def expire(self) -> None:
        """Forget the brokers that are silent for too long."""
        now_s = self._monotonic_s()
        self._forget_if(lambda _name, _number, replica: now_s - replica.seen_s > replica.timeout_s)

    def _forget_if(self, is_gone: Callable[[str, int, _Replica], bool]) -> None:
        for name, broker in list(self._brokers.items()):
            for broker_id, replica in list(broker.replicas.items()):
                if is_gone(name, broker_id, replica):
                    self._forget(name, broker_id)

    def _forget(self, name: str, broker_id: int) -> None:
        broker = self._brokers[name]
        address = broker.replicas.pop(broker_id).address
        _log.info("a broker of RocketMQ is gone", broker=name, id=broker_id, at=address)
        if not broker.replicas:
            del self._brokers[name]

    # --- Routes ---

    def route(self, topic: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield a broker and its queues for each broker that has a topic."""
        for name, broker in sorted(self._brokers.items()):
            row = broker.topics.get(topic)
            if row is not None:
                yield _row_of(name, broker), {"brokerName": name, **row}

    def brokers(self) -> dict[str, dict[str, Any]]:
        """Return the brokers by name, as rows of a cluster's document."""
        return {name: _row_of(name, broker) for name, broker in sorted(self._brokers.items())}

    def topic_names(self, cluster: str | None = None) -> set[str]:
        """Return the topics of all brokers, or of those of one cluster."""
        return {
            topic
            for broker in self._brokers.values()
            if cluster in (None, broker.cluster)
            for topic in broker.topics
        }


def _row_of(name: str, broker: _Broker) -> dict[str, Any]:
    addresses = {str(at): replica.address for at, replica in sorted(broker.replicas.items())}
    return {
        "brokerAddrs": addresses,
        "brokerName": name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def _name_of(text: str, what: str) -> str:
    if 0 < len(text) <= NAME_LENGTH_MAX:
        return text
    rule = f"{what} has {len(text)} characters, it must have 1 to {NAME_LENGTH_MAX}"
    raise RefusedError(ResponseCode.INVALID_PARAMETER, rule)


def _document(body: bytes) -> dict[str, Any]:
    """Read a body; brokers write keys that are numbers without quotes. Raises RefusedError."""
    try:
        return load_table(body.decode())
    except (ValueError, TypeError) as error:
        text = f"a registration that is no JSON object: {error}"[:NAME_LENGTH_MAX]
        raise RefusedError(ResponseCode.INVALID_PARAMETER, text) from None


def _version_of(row: object) -> Version | None:
    if not isinstance(row, dict):
        return None
    found = (row.get("stateVersion", 0), row.get("timestamp", 0), row.get("counter", 0))
    return found if all(type(number) is int for number in found) else None


def _topics_of(body: bytes) -> tuple[Version | None, dict[str, dict[str, int]]]:
    """Read version and topics of a registration. Raises RefusedError."""
    wrapper = _document(body).get("topicConfigSerializeWrapper")
    table = wrapper.get("topicConfigTable") if isinstance(wrapper, dict) else None
    if not isinstance(wrapper, dict) or not isinstance(table, dict):
        text = "a registration without a topicConfigTable"
        raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
    topics = {
        topic: _queues_of(topic, row)
        for topic, row in table.items()
        if is_of_group(topic) or not is_reserved(topic)
    }
    if len(topics) > TOPIC_COUNT_MAX:
        text = f"a broker with {len(topics)} topics; at most {TOPIC_COUNT_MAX} are kept"
        raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
    return _version_of(wrapper.get("dataVersion")), topics


def _queues_of(topic: str, row: object) -> dict[str, int]:
    _name_of(topic, "a topic")
    found = {}
    names = ("perm", "readQueueNums", "topicSysFlag", "writeQueueNums")
    for name, default in zip(names, (6, 0, 0, 0), strict=True):
        number = row.get(name, default) if isinstance(row, dict) else None
        if type(number) is not int or not 0 <= number <= QUEUE_COUNT_MAX:
            text = f"{name} of topic {topic!r} is {number!r:.40}"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, text)
        found[name] = number
    found["perm"] &= ~PERMISSION_WRITE
    return found
