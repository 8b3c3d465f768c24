"""The broker beside a name server: what is asked of it, and how a node of a Raft group answers.

Owns which facts of a node become which words of a report. Must not know who carries the report, or
when: `registration` does.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from node.config.settings import Settings
from node.nameserver.directory.controller import Replication
from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import Binding, BrokerReport, TopicQueues
from node.runtime.clock import unix_ms
from node.state.state import State
from raft.messages import Term


class MasterView(Protocol):
    """What only the master of an HA group knows: how its replicas are."""

    @property
    def replicas(self) -> Mapping[int, Replication]: ...
    @property
    def confirmed_position(self) -> int: ...
    @property
    def epoch_start_position(self) -> int: ...
    @property
    def now_ms(self) -> int:
        """On the clock of `Replication.caught_up_ms`."""
        ...


class AdvisedBroker(Protocol):
    """What is asked of a replica of an HA group besides; nothing here waits."""

    def master_view(self) -> MasterView | None:
        """Return what it knows of the other replicas; None unless it is the serving master."""
        ...

    def advise(self, number: int, binding: Binding) -> None:
        """Tell it whom the controller gave the newest epoch of its group to."""
        ...


class LocalBroker(Protocol):
    """What the name server asks of the broker beside it; nothing here waits."""

    group: str
    broker_id: int
    start_ms: int
    heartbeat_period_ms: int

    @property
    def advised(self) -> AdvisedBroker | None:
        """Who takes the controller's advice; None in a Raft group, which elects by itself."""
        ...

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return all that the directory should know of it."""
        ...


class RaftDriver(Protocol):
    """What is asked of the driver of a Raft node."""

    @property
    def term(self) -> Term: ...
    @property
    def is_ready(self) -> bool: ...


class HasState(Protocol):
    """Whoever holds the replicated state."""

    @property
    def state(self) -> State: ...


class RaftBroker:
    """A replica of a Raft group."""

    heartbeat_period_ms: int = HEARTBEAT_PERIOD_MS
    advised: None = None

    def __init__(
        self, settings: Settings, address: str, machine: HasState, driver: RaftDriver
    ) -> None:
        """`address` is what clients dial."""
        self.group: str = settings.group
        self.broker_id: int = settings.node_id
        self.start_ms: int = unix_ms()
        self._cluster_id: Final = settings.cluster_id
        self._address, self._machine, self._driver = address, machine, driver

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return all that the directory should know of it. A leader is a master once it serves."""
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
            topics_version=(0, state.topics_version),
            topics=topics_of(state) if with_topics else None,
        )


def topics_of(state: State) -> dict[str, TopicQueues]:
    """Return the topics of a state as a report has them."""
    return {
        name: TopicQueues(topic.queue_count, topic.queue_count, topic.permission)
        for name, topic in state.topics.items()
    }
