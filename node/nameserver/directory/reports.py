"""A broker's reports about itself: the full report of a registration, and the short heartbeat.

Owns the shape of both and their strict reading; must not know how the directory uses them. A report
contains everything that the directory knows of this broker, so that a name server that has lost all
its content is complete again after each broker has registered once (rule C1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from node.nameserver.directory.fields import (
    a_broker_id,
    a_choice,
    a_list,
    a_text,
    an_integer,
    an_object,
    exactly,
    ids,
)
from node.nameserver.directory.limits import DirectoryLimits
from store.files.meta_file import Json

KINDS: Final = ("raft", "ha")
ROLES: Final = ("master", "slave")
TOPIC_COST_BYTES: Final = 40
QUEUE_COUNT_MAX: Final = 65_536


class Binding(NamedTuple):
    """The owner of an epoch number. The nonce tells two attempts of one broker apart."""

    master_id: int
    nonce: str


class TopicQueues(NamedTuple):
    """The queues of a topic in one group, with the meaning of RocketMQ's routes."""

    read_queue_count: int
    write_queue_count: int
    permission: int
    system_flag: int = 0


class LogEnd(NamedTuple):
    """The end of a replica's log; logs compare by the last epoch, then by the position."""

    epoch: int = 0
    position: int = 0


NO_LOG: Final = LogEnd()


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A registration."""

    cluster: str
    group: str
    kind: str
    """`raft` or `ha`."""
    broker_id: int
    start_ms: int
    """The start time of this process of the broker: a report of an older process is stale."""
    address: str
    now_ms: int
    role: str = "slave"
    """`master` or `slave`; a Raft leader is a master here."""
    epoch: int = 0
    """The Raft term, or the highest HA epoch that this broker has bound."""
    ha_address: str = ""
    log_end: LogEnd = NO_LOG
    bindings: Mapping[int, Binding] = field(default_factory=dict)
    in_sync: tuple[int, ...] = ()
    """The in-sync set of a master that the controller last granted, with its version below."""
    in_sync_version: int = 0
    copy_count: int = 1
    """Copies that an ack needs, k of n; an in-sync set never gets smaller than that."""
    topics_version: tuple[int, int] = (0, 0)
    """RocketMQ's data version: timestamp, then counter."""
    topics: Mapping[str, TopicQueues] | None = None
    """The topics; None: not sent again, the version tells whether the directory has them."""

    def command(self) -> dict[str, Json]:
        """Return the command `register`."""
        topics: Json = None
        if self.topics is not None:
            topics = {name: list(queues) for name, queues in self.topics.items()}
        return {
            "op": "register",
            "cluster": self.cluster,
            "group": self.group,
            "kind": self.kind,
            "broker_id": self.broker_id,
            "start_ms": self.start_ms,
            "address": self.address,
            "now_ms": self.now_ms,
            "role": self.role,
            "epoch": self.epoch,
            "ha_address": self.ha_address,
            "log_end": list(self.log_end),
            "bindings": bindings_json(self.bindings),
            "in_sync": list(self.in_sync),
            "in_sync_version": self.in_sync_version,
            "copy_count": self.copy_count,
            "topics_version": list(self.topics_version),
            "topics": topics,
        }

    @property
    def topics_size_bytes(self) -> int:
        """The size of the topics as the directory counts it."""
        return sum(len(name.encode()) + TOPIC_COST_BYTES for name in self.topics or ())


def heartbeat(
    group: str, broker_id: int, start_ms: int, now_ms: int, *, epoch: int = 0, log_end: LogEnd
) -> dict[str, Json]:
    """Return the command `heartbeat`: the broker lives, and its log ends at `log_end`."""
    return {
        "op": "heartbeat",
        "group": group,
        "broker_id": broker_id,
        "start_ms": start_ms,
        "now_ms": now_ms,
        "epoch": epoch,
        "log_end": list(log_end),
    }


def parse_report(command: Mapping[str, Json], limits: DirectoryLimits) -> BrokerReport:
    """Read the command `register`. Raises Refusal."""
    names = limits.name_size_chars_max

    def text(name: str, *, may_be_empty: bool = False) -> str:
        return a_text(command.get(name), name, names, may_be_empty=may_be_empty)

    def integer(name: str, lo: int = 0) -> int:
        return an_integer(command.get(name), name, lo)

    version = exactly(command.get("topics_version"), "topics_version", 2)
    return BrokerReport(
        cluster=text("cluster"),
        group=text("group"),
        kind=a_choice(command.get("kind"), "kind", KINDS),
        broker_id=a_broker_id(command.get("broker_id"), "broker_id"),
        start_ms=integer("start_ms"),
        address=text("address"),
        now_ms=integer("now_ms"),
        role=a_choice(command.get("role"), "role", ROLES),
        epoch=integer("epoch"),
        ha_address=text("ha_address", may_be_empty=True),
        log_end=parse_log_end(command.get("log_end")),
        bindings=parse_bindings(command.get("bindings"), limits),
        in_sync=ids(command.get("in_sync"), "in_sync", limits.broker_count_max),
        in_sync_version=integer("in_sync_version"),
        copy_count=an_integer(command.get("copy_count"), "copy_count", 1, limits.broker_count_max),
        topics_version=(
            an_integer(version[0], "topics_version"),
            an_integer(version[1], "topics_version"),
        ),
        topics=parse_topics(command.get("topics"), limits),
    )


def parse_log_end(value: Json) -> LogEnd:
    """Read a log's end. Raises Refusal."""
    parts = exactly(value, "log_end", 2)
    return LogEnd(an_integer(parts[0], "log_end epoch"), an_integer(parts[1], "log_end position"))


def bindings_json(bindings: Mapping[int, Binding]) -> Json:
    """Return bindings as a list, in order of the numbers."""
    return [[number, *bindings[number]] for number in sorted(bindings)]


def parse_bindings(value: Json, limits: DirectoryLimits) -> dict[int, Binding]:
    """Read the bindings that `bindings_json` wrote. Raises Refusal."""
    bindings: dict[int, Binding] = {}
    for entry in a_list(value, "bindings", limits.epoch_count_max):
        parts = exactly(entry, "binding", 3)
        number = an_integer(parts[0], "epoch", 1)
        nonce = a_text(parts[2], "nonce", limits.name_size_chars_max, may_be_empty=False)
        bindings[number] = Binding(a_broker_id(parts[1], "master id"), nonce)
    return bindings


def parse_topics(value: Json, limits: DirectoryLimits) -> dict[str, TopicQueues] | None:
    """Read a topic table; None stays None. Raises Refusal."""
    if value is None:
        return None
    topics: dict[str, TopicQueues] = {}
    for name, row in an_object(value, "topics").items():
        a_text(name, "topic", limits.name_size_chars_max, may_be_empty=False)
        parts = exactly(row, f"topic {name}", 4)
        read, write = (an_integer(part, "queues", 0, QUEUE_COUNT_MAX) for part in parts[:2])
        permission, flag = (an_integer(part, "flags", 0, 255) for part in parts[2:])
        topics[name] = TopicQueues(read, write, permission, flag)
    return topics
