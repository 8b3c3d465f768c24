"""How a node of a master-slave group answers the name server beside it.

Owns which facts of a replica become which words of a report, and the way of advice to it. Must not
know the machine behind the driver. Nonces are numbers there and texts in the directory.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, Self

from node.config.settings import Settings
from node.nameserver.brokers import HasState, topics_of
from node.nameserver.directory.controller import Replication
from node.nameserver.directory.limits import HA_HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import NO_LOG, Binding, BrokerReport, LogEnd
from node.replication.ha.core.types import NO_EPOCH, Role, Standing
from node.replication.ha.report import HaReport
from node.runtime.clock import unix_ms


class HaDriver(Protocol):
    """What is asked of the driver of a replica."""

    def report(self) -> HaReport: ...
    def advise(self, number: int, master_id: int, nonce: int) -> None: ...


class HaMasterView(NamedTuple):
    """What a serving master knows of its replicas."""

    replicas: Mapping[int, Replication]
    confirmed_position: int
    epoch_start_position: int
    now_ms: int


class HaBroker:
    """A replica of a master-slave group."""

    heartbeat_period_ms: int = HA_HEARTBEAT_PERIOD_MS

    def __init__(
        self,
        settings: Settings,
        address: str,
        ha_address: str,
        machine: HasState,
        driver: HaDriver,
    ) -> None:
        """`address` is what clients dial, `ha_address` what replicas do."""
        self.group: str = settings.group
        self.broker_id: int = settings.node_id
        self.start_ms: int = unix_ms()
        self._cluster_id: Final = settings.cluster_id
        self._address, self._ha_address = address, ha_address
        self._machine, self._driver = machine, driver

    @property
    def advised(self) -> Self:
        """Return itself."""
        return self

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return all that the directory should know of it."""
        state, found = self._machine.state, self._driver.report()
        bound, is_master = found.bound, found.role is Role.MASTER
        return BrokerReport(
            cluster=self._cluster_id,
            group=self.group,
            kind="ha",
            broker_id=self.broker_id,
            start_ms=self.start_ms,
            address=self._address,
            now_ms=now_ms,
            role="master" if is_master else "slave",
            # The controller must give out higher numbers than anybody has heard of.
            epoch=bound.number if is_master else max(bound.number, found.highest_seen),
            ha_address=self._ha_address,
            # One that has no memory cannot become the master, however long its log is.
            log_end=(
                LogEnd(found.log_epoch, found.end) if found.standing is Standing.FULL else NO_LOG
            ),
            bindings=(
                {bound.number: Binding(bound.master_id, str(bound.nonce))}
                if bound.number != NO_EPOCH
                else {}
            ),
            copy_count=found.copies,
            topics_version=(0, state.topics_version),
            topics=topics_of(state) if with_topics else None,
        )

    def master_view(self) -> HaMasterView | None:
        """Return what it knows of its replicas; None unless it is the serving master."""
        found = self._driver.report()
        if found.role is not Role.MASTER:
            return None
        replicas = {
            slave.replica_id: Replication(slave.acked, slave.caught_up_ms)
            for slave in found.slaves
            if slave.acked >= 0 and slave.caught_up_ms > 0
        }
        return HaMasterView(replicas, found.confirm, found.epoch_start, found.now_ms)

    def advise(self, number: int, binding: Binding) -> None:
        """Tell the replica whom the controller gave an epoch to; a strange nonce is nobody's."""
        if binding.nonce.isdecimal() and int(binding.nonce) < 1 << 64:
            self._driver.advise(number, binding.master_id, int(binding.nonce))
