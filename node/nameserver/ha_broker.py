"""The broker of a master-slave group for the name server in its process.

Owns the mapping of a replica's facts to the fields of a report, and the way of advice to it. Must
not know the machine behind the driver. A nonce is a number there and a text in the directory.
"""

from typing import Final, Self

from node.config.settings import Settings
from node.nameserver.brokers import MasterView, topics_of
from node.nameserver.directory.controller import ReplicaAck
from node.nameserver.directory.limits import HA_HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import NO_LOG, Binding, BrokerReport, LogEnd
from node.replication.ha.core.types import NO_EPOCH, HaRole, HaStanding
from node.replication.ha.driver import HaDriver
from node.runtime.clock import unix_ms
from node.state.machine import StateMachine


class HaBroker:
    """A replica of a master-slave group."""

    heartbeat_period_ms: int = HA_HEARTBEAT_PERIOD_MS

    def __init__(
        self,
        settings: Settings,
        address: str,
        ha_address: str,
        machine: StateMachine,
        driver: HaDriver,
    ) -> None:
        """Report the node of `settings`; clients dial `address`, replicas `ha_address`."""
        self.group: str = settings.group
        self.broker_id: int = settings.node_id
        self.start_ms: int = unix_ms()
        self._cluster_id: Final = settings.cluster_id
        self._address, self._ha_address = address, ha_address
        self._machine, self._driver = machine, driver

    @property
    def advised(self) -> Self:
        """The receiver of the controller's advice: this broker itself."""
        return self

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return everything that the directory should know of this broker."""
        state, own = self._machine.state, self._driver.report()
        bound, is_master = own.bound, own.role is HaRole.MASTER
        return BrokerReport(
            cluster=self._cluster_id,
            group=self.group,
            kind="ha",
            broker_id=self.broker_id,
            start_ms=self.start_ms,
            address=self._address,
            now_ms=now_ms,
            role="master" if is_master else "slave",
            # The controller must give out numbers higher than any that a replica has seen.
            epoch=bound.number if is_master else max(bound.number, own.highest_seen),
            ha_address=self._ha_address,
            # A replica without memory cannot become the master, however long its log is.
            log_end=(LogEnd(own.log_epoch, own.end) if own.standing is HaStanding.FULL else NO_LOG),
            bindings=(
                {bound.number: Binding(bound.master_id, str(bound.nonce))}
                if bound.number != NO_EPOCH
                else {}
            ),
            copy_count=own.copies,
            topics_version=(0, state.versions["topics"]),
            topics=topics_of(state) if with_topics else None,
        )

    def master_view(self) -> MasterView | None:
        """Return its view of the other replicas; None unless it is the serving master."""
        report = self._driver.report()
        if report.role is not HaRole.MASTER:
            return None
        replicas = {
            slave.replica_id: ReplicaAck(slave.acked, slave.caught_up_ms)
            for slave in report.slaves
            if slave.acked >= 0 and slave.caught_up_ms > 0
        }
        return MasterView(replicas, report.confirm, report.epoch_start, report.now_ms)

    def advise(self, number: int, binding: Binding) -> None:
        """Pass on to which broker the controller gave an epoch; ignore an invalid nonce."""
        if binding.nonce.isascii() and binding.nonce.isdecimal() and int(binding.nonce) < 1 << 64:
            self._driver.advise(number, binding.master_id, int(binding.nonce))
