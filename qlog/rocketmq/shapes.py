"""Answers of a RocketMQ cluster, read with suspicion: JSON, routes, names, numbers.

Owns their forms and the limits of what a foreign process may make this one hold. Must not know how
an answer came. Java writes maps with whole numbers as bare keys (`{0:"10.0.0.1:10911"}`), which is
no JSON; they are read as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from node.rocketmq.remoting.protocol.fields import INT64_MAX
from node.state.registry import load_table
from quorumlog.cluster.routes import is_address
from quorumlog.command_errors import CliError
from store.record.topic_names import TRACE_TOPIC, is_reserved

TOPIC_COUNT_MAX: Final = 100_000
"""Topics of a source, those of the system included: a few MiB of names."""
GROUP_COUNT_MAX: Final = 100_000
BROKER_COUNT_MAX: Final = 1_024
QUEUE_COUNT_MAX: Final = 65_536
"""Read queues of a topic, over all brokers."""
QUEUE_TOTAL_MAX: Final = 262_144
"""Read queues of all topics of a copy: some 500 bytes each."""
NAME_SIZE_BYTES_MAX: Final = 255
_SHOWN_LENGTH_MAX: Final = 200

_DEPTH_MAX: Final = 12
"""Levels of objects and lists; documents of RocketMQ have six at most."""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{},]', re.DOTALL)
"""A string, with or without an end, or what begins, parts or ends values."""
_MASTER: Final = "0"
_READ: Final = 4
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)
_SYSTEM_TOPICS: Final = frozenset({"BenchmarkTest", TRACE_TOPIC})
_LITE_PREFIX: Final = "%LMQ%"


class Bounds(NamedTuple):
    """What a document of one kind may have."""

    size_bytes: int
    value_count: int


TABLE: Final = Bounds(4 << 20, 262_144)
"""All topics, or a page of groups."""
ROUTE: Final = Bounds(1 << 20, 32_768)
"""Brokers and what each has of a topic."""
SETTINGS: Final = Bounds(64 << 10, 1_024)
"""Those of one topic."""


class SourceError(CliError):
    """The source gave no answer, refused, or answered what cannot be trusted."""

    @classmethod
    def foreign(cls, where: str, why: str) -> "SourceError":
        """Return the error of an answer that is not one of RocketMQ."""
        return cls(
            f"{where}: an answer that cannot be trusted, nothing of it was stored",
            why[:_SHOWN_LENGTH_MAX],
            "check the address and the broker's log, then run it again: it goes on from here",
        )


class NoMasterError(SourceError):
    """A broker of the source has no master now."""


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """A queue of the source, at the master of its broker."""

    topic: str
    broker: str
    address: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}/{self.queue_id}"


def document_of(body: bytes, where: str, bounds: Bounds) -> dict[str, Any]:
    """Read a JSON object, with bare numbers as keys or without. Raises SourceError.

    Size, count of values and depth are checked before anything is made of it.
    """
    if len(body) > bounds.size_bytes:
        raise SourceError.foreign(where, f"{len(body)} bytes, at most {bounds.size_bytes} are read")
    depth, count = 0, 0
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        depth += (first in b"[{") - (first in b"]}")
        count += first in b"[{,"
        if depth > _DEPTH_MAX:
            raise SourceError.foreign(where, f"values nested more than {_DEPTH_MAX} deep")
        if count > bounds.value_count:
            raise SourceError.foreign(where, f"more than {bounds.value_count} values")
    try:
        return load_table(body.decode())
    except (ValueError, TypeError) as error:
        raise SourceError.foreign(where, f"a body that is no JSON: {error}") from None


def mapping_of(value: object, where: str, count_max: int = TOPIC_COUNT_MAX) -> dict[str, Any]:
    """Return an object as it is. Raises SourceError for another value or too many members."""
    if type(value) is not dict or len(value) > count_max:
        raise SourceError.foreign(where, f"no object of at most {count_max} members")
    return value


def list_of(value: object, where: str, count_max: int) -> list[Any]:
    """Return a list as it is. Raises SourceError for another value or too many items."""
    if type(value) is not list or len(value) > count_max:
        raise SourceError.foreign(where, f"no list of at most {count_max} items")
    return value


def name_of(value: object, where: str) -> str:
    """Return a name. Raises SourceError for what is none."""
    if type(value) is not str:
        raise SourceError.foreign(where, f"a name that is a {type(value).__name__}")
    # A lone surrogate has no bytes and is not printable.
    if value.isprintable() and 0 < len(value.encode()) <= NAME_SIZE_BYTES_MAX:
        return value
    raise SourceError.foreign(where, f"{value[:40]!r} is no name")


def number_of(ext: Mapping[str, str], name: str, where: str) -> int:
    """Return a whole number from 0 on of an ext field. Raises SourceError."""
    text = ext.get(name, "")
    if _NUMBER.match(text) and 0 <= int(text) <= INT64_MAX:
        return int(text)
    raise SourceError.foreign(where, f"{name} is {text[:40]!r}, no offset")


def masters_of(rows: Mapping[str, object], where: str) -> dict[str, str]:
    """Return the address of each broker's master, by the broker's name. Raises NoMasterError,
    SourceError."""
    masters: dict[str, str] = {}
    for name, row in rows.items():
        broker = name_of(name, where)
        addresses = mapping_of(mapping_of(row, where).get("brokerAddrs"), where, BROKER_COUNT_MAX)
        address = addresses.get(_MASTER)
        if address is None:
            raise NoMasterError(
                f"{where}: broker {broker} has no master now",
                "only a master has all messages of its broker",
                "wait until it is back, then run it again",
            )
        if not is_address(name_of(address, where)):
            raise SourceError.foreign(where, f"{address[:40]!r} is no address")
        masters[broker] = address
    return masters


def queues_of(route: Mapping[str, object], topic: str, where: str) -> list[SourceQueue]:
    """Return the read queues of a route, by broker and number. Raises SourceError."""
    brokers = list_of(route.get("brokerDatas"), where, BROKER_COUNT_MAX)
    masters = masters_of(
        {name_of(mapping_of(row, where).get("brokerName"), where): row for row in brokers}, where
    )
    counts: dict[str, int] = {}
    for row in list_of(route.get("queueDatas"), where, BROKER_COUNT_MAX):
        broker = name_of(mapping_of(row, where).get("brokerName"), where)
        count = row.get("readQueueNums")
        if broker not in masters or type(count) is not int or not 0 <= count <= QUEUE_COUNT_MAX:
            raise SourceError.foreign(where, f"queues of broker {broker[:40]!r}")
        if not (type(row.get("perm")) is int and row["perm"] & _READ):
            raise SourceError(
                f"{where}: broker {broker} lets no client read the topic",
                "its permission has no 4 (read)",
                "give it one with mqadmin updateTopicPerm, or choose topics with --topic",
            )
        counts[broker] = count
    if not 0 < sum(counts.values()) <= QUEUE_COUNT_MAX:
        raise SourceError.foreign(where, f"a topic of {sum(counts.values())} queues")
    return [
        SourceQueue(topic, broker, masters[broker], queue_id)
        for broker in sorted(counts)
        for queue_id in range(counts[broker])
    ]


def is_system_topic(topic: str, own_names: frozenset[str]) -> bool:
    """Whether a topic is RocketMQ's own. `own_names` are those of clusters and brokers."""
    return (
        is_reserved(topic)
        or topic in _SYSTEM_TOPICS
        or topic in own_names
        or topic.startswith(_LITE_PREFIX)
        or any(topic == f"{name}_REPLY_TOPIC" for name in own_names)
    )
