"""The broker in the process of a name server: its interface, and the broker of a Raft group.

Owns the mapping of a node's facts to the fields of a report. Must not know how or when a report is
sent: `registration` does.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from node.config.settings import Settings
from node.nameserver.directory.controller import ReplicaAck
from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import Binding, BrokerReport, TopicQueues
from node.replication.raft.driver import RaftDriver
from node.runtime.clock import unix_ms
from node.state.machine import StateMachine
from node.state.state import State


class MasterView(NamedTuple):
    """Facts about replicas that only the serving master of an HA group knows."""

    replicas: Mapping[int, ReplicaAck]
    confirmed_position: int
    epoch_start_position: int
    now_ms: int
    """The time on the clock of `ReplicaAck.caught_up_ms`."""


class AdvisedBroker(Protocol):
    """Additional methods of a replica of an HA group; none of them waits."""

    def master_view(self) -> MasterView | None:
        """Return its view of the other replicas; None unless it is the serving master."""
        ...

    def advise(self, number: int, binding: Binding) -> None:
        """Pass on to which broker the controller gave the newest epoch of the group."""
        ...


class LocalBroker(Protocol):
    """The methods that the name server calls on the broker in its process; none of them waits."""

    group: str
    broker_id: int
    start_ms: int
    heartbeat_period_ms: int

    @property
    def advised(self) -> AdvisedBroker | None:
        """The receiver of the controller's advice; None in a Raft group, which elects alone."""
        ...

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return everything that the directory should know of this broker."""
        ...


class RaftBroker:
    """A replica of a Raft group."""

    heartbeat_period_ms: int = HEARTBEAT_PERIOD_MS
    advised: None = None

    def __init__(
        self, settings: Settings, address: str, machine: StateMachine, driver: RaftDriver
    ) -> None:
        """Report the node of `settings`; clients dial `address`."""
        self.group: str = settings.group
        self.broker_id: int = settings.node_id
        self.start_ms: int = unix_ms()
        self._cluster_id: Final = settings.cluster_id
        self._address, self._machine, self._driver = address, machine, driver

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return everything that the directory should know of this broker.

        A leader is a master once it serves.
        """
        state = self._machine.state
        return BrokerReport(
            cluster=self._cluster_id,
            group=self.group,
            kind="raft",
            broker_id=self.broker_id,
            start_ms=self.start_ms,
            address=self._address,
            now_ms=now_ms,
            role="master" if self._driver.is_ready else "slave",
            epoch=self._driver.term,
            topics_version=(0, state.versions["topics"]),
            topics=topics_of(state) if with_topics else None,
        )


def topics_of(state: State) -> dict[str, TopicQueues]:
    """Return the topics of a state in the form of a report."""
    return {
        name: TopicQueues(topic.queue_count, topic.queue_count, topic.permission)
        for name, topic in state.topics.items()
    }
