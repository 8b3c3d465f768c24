"""The broker of a master-slave group for the name server in its process.

Owns the mapping of a replica's facts to the fields of a report, and the way of advice to it. Must
not know the machine behind the driver. A nonce is a number there and a text in the directory.
"""

from dataclasses import replace

from node.config.settings import Settings
from node.nameserver.directory.controller import ReplicaAck, change_in_sync
from node.nameserver.directory.directory import Command
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import HA_HEARTBEAT_PERIOD_MS
from node.nameserver.directory.reports import NO_LOG, Binding, BrokerReport, Kind, LogEnd
from node.nameserver.local_broker import LocalBroker
from node.replication.ha.core.types import NO_EPOCH, HaRole, HaStanding
from node.replication.ha.driver import HaDriver
from node.state.machine import StateMachine


class HaBroker(LocalBroker):
    """A replica of a master-slave group."""

    kind: Kind = "ha"
    heartbeat_period_ms = HA_HEARTBEAT_PERIOD_MS
    is_advised = True

    def __init__(
        self,
        settings: Settings,
        address: str,
        peer_address: str,
        machine: StateMachine,
        driver: HaDriver,
    ) -> None:
        """Report the node of `settings`; clients dial `address`, replicas `peer_address` unless the
        settings have another one."""
        super().__init__(settings, address, machine, driver)
        peer = settings.peers.get(settings.node_id)
        self._ha_address = peer_address if peer is None else str(peer.peer_address)
        self._ha_driver = driver

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        """Return everything that the directory should know of this broker."""
        own = self._ha_driver.machine.state
        bound, is_master = own.bound, own.role is HaRole.MASTER
        is_full = own.replica.standing is HaStanding.FULL
        return replace(
            super().report(now_ms, with_topics=with_topics),
            role="master" if is_master else "slave",
            # The controller must give out numbers higher than any that a replica has seen.
            epoch=bound.number if is_master else own.highest_epoch,
            ha_address=self._ha_address,
            # A replica without memory cannot become the master, however long its log is.
            log_end=LogEnd(own.epochs.last.number, own.end) if is_full else NO_LOG,
            bindings=(
                {bound.number: Binding(bound.master_id, str(bound.nonce))}
                if bound.number != NO_EPOCH
                else {}
            ),
            copy_count=own.settings.copies,
        )

    def in_sync_change(self, group: Group) -> Command | None:
        """Return the change that follows from this master's view of the other replicas."""
        state = self._ha_driver.machine.state
        if state.role is not HaRole.MASTER:
            return None
        replicas = {
            slave.replica_id: ReplicaAck(slave.acked, slave.caught_up_ms)
            for slave in self._ha_driver.slaves()
            if slave.acked >= 0 and slave.caught_up_ms > 0
        }
        return change_in_sync(
            group,
            self.broker_id,
            replicas,
            confirmed_position=state.confirm,
            epoch_start_position=state.copies.epoch_start,
            now_ms=state.now_ms,
        )

    def advise(self, number: int, binding: Binding) -> None:
        """Pass on to which broker the controller gave an epoch; ignore an invalid nonce."""
        if binding.nonce.isascii() and binding.nonce.isdecimal() and int(binding.nonce) < 1 << 64:
            self._ha_driver.advise(number, binding.master_id, int(binding.nonce))
