"""The broker in the process of a name server: what the directory should know of it.

Owns the mapping of a node's facts to the fields of a report; `node.replication.ha.local_broker` has
the fields of a master-slave group. Must not know how or when a report is sent: `registration` does.
"""

from collections.abc import Mapping

from node.config.settings import Settings
from node.contract import Driver
from node.nameserver.directory.directory import Command
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import Binding, BrokerReport, Kind, TopicQueues
from node.runtime.clock import unix_ms
from node.state.machine import StateMachine
from node.state.state import Member
from raft.messages import NodeId


class LocalBroker:
    """A replica of a group that elects its leader alone. None of its methods waits."""

    kind: Kind = "raft"
    heartbeat_period_ms = HEARTBEAT_PERIOD_MS
    is_advised = False
    """Whether the controller gives the epochs of its group out."""

    def __init__(
        self, settings: Settings, address: str, machine: StateMachine, driver: Driver
    ) -> None:
        """Report the node of `settings`; clients dial `address`."""
        self.group: str = settings.broker_group
        self.broker_id: int = settings.node_id
        self.start_ms: int = unix_ms()
        self._cluster_id, self._address = settings.cluster_id, address
        self._machine, self._driver = machine, driver

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return everything that the directory should know of this broker.

        A leader is a master once it serves.
        """
        state = self._machine.state
        topics = {
            name: TopicQueues(topic.queue_count, topic.queue_count, topic.permission)
            for name, topic in (state.topics.items() if with_topics else ())
        }
        return BrokerReport(
            cluster=self._cluster_id,
            group=self.group,
            kind=self.kind,
            broker_id=self.broker_id,
            start_ms=self.start_ms,
            address=self._address,
            now_ms=now_ms,
            role="master" if self._driver.is_ready else "slave",
            epoch=self._driver.term,
            topics_version=(0, state.versions["topics"]),
            topics=topics if with_topics else None,
        )

    def members(self) -> Mapping[NodeId, Member]:
        """Return the replicated addresses of the nodes of this group."""
        return self._machine.state.members

    def in_sync_change(self, group: Group) -> Command | None:
        """Return the change of the in-sync set that the serving master wants; None: it wants none,
        or this broker is no serving master."""
        return None

    def advise(self, number: int, binding: Binding) -> None:
        """Pass on to which broker the controller gave the newest epoch of the group."""
        raise NotImplementedError
