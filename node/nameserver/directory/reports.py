"""A broker's reports about itself: the full report of a registration, and the short heartbeat.

Owns the shape of both; must not know how the directory uses them. A report contains everything that
the directory knows of this broker, so that a name server that has lost all its content is complete
again after each broker has registered once (rule C1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from node.nameserver.directory.fields import (
    BrokerId,
    BrokerIds,
    CopyCount,
    Epoch,
    Name,
    Number,
    Text,
)
from node.nameserver.directory.limits import DirectoryLimits

Kind = Literal["raft", "ha"]
Role = Literal["master", "slave"]
TOPIC_COST_BYTES: Final = 40
QUEUE_COUNT_MAX: Final = 65_536
QueueCount = Annotated[int, Field(strict=True, ge=0, le=QUEUE_COUNT_MAX)]
Flags = Annotated[int, Field(strict=True, ge=0, le=255)]


class Binding(NamedTuple):
    """The owner of an epoch number. The nonce tells two attempts of one broker apart."""

    master_id: BrokerId
    nonce: Name


Bindings = Annotated[dict[Epoch, Binding], Field(max_length=DirectoryLimits().epoch_count_max)]


class TopicQueues(NamedTuple):
    """The queues of a topic in one group, with the meaning of RocketMQ's routes."""

    read_queue_count: QueueCount
    write_queue_count: QueueCount
    permission: Flags
    system_flag: Flags = 0


class LogEnd(NamedTuple):
    """The end of a replica's log; logs compare by the last epoch, then by the position."""

    epoch: Number = 0
    position: Number = 0


NO_LOG: Final = LogEnd()


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A registration."""

    cluster: Name
    group: Name
    kind: Kind
    broker_id: BrokerId
    start_ms: Number
    """The start time of this process of the broker: a report of an older process is stale."""
    address: Name
    now_ms: Number
    role: Role = "slave"
    """A Raft leader is a master here."""
    epoch: Number = 0
    """The Raft term, or the highest HA epoch that this broker has bound."""
    ha_address: Text = ""
    log_end: LogEnd = NO_LOG
    bindings: Bindings = field(default_factory=dict)
    in_sync: BrokerIds = ()
    """The in-sync set of a master that the controller last granted, with its version below."""
    in_sync_version: Number = 0
    copy_count: CopyCount = 1
    """Copies that an ack needs, k of n; an in-sync set never gets smaller than that."""
    topics_version: tuple[Number, Number] = (0, 0)
    """RocketMQ's data version: timestamp, then counter."""
    topics: Mapping[Name, TopicQueues] | None = None
    """The topics; None: not sent again, the version tells whether the directory has them."""

    def command(self) -> dict[str, Any]:
        """Return the command `register`."""
        return {"op": "register", **_REPORT.dump_python(self, mode="json")}

    def heartbeat(self) -> dict[str, Any]:
        """Return the command `heartbeat`: the broker lives, and its log ends at `log_end`."""
        return {"op": "heartbeat", **_REPORT.dump_python(self, mode="json", include=_BEAT)}

    @property
    def topics_size_bytes(self) -> int:
        """The size of the topics as the directory counts it."""
        return sum(len(name.encode()) + TOPIC_COST_BYTES for name in self.topics or ())


_BEAT: Final = {"group", "broker_id", "start_ms", "now_ms", "epoch", "log_end"}
_REPORT: Final = TypeAdapter(BrokerReport)
