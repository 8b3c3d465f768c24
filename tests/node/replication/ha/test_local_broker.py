"""What a replica of a master-slave group tells the directory, and what it takes from it."""

from types import SimpleNamespace
from typing import Any, cast

from node.config.limits import Limits
from node.config.load import load
from node.nameserver.directory.controller import propose_master
from node.nameserver.directory.directory import Directory
from node.nameserver.directory.reports import Binding, LogEnd, TopicQueues
from node.replication.ha.core.copies import Copies
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import (
    EpochStart,
    HaBinding,
    HaRole,
    HaSettings,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.driver import HaDriver
from node.replication.ha.local_broker import HaBroker
from node.replication.ha.report import SlaveReport
from node.state.machine import StateMachine
from node.state.state import State
from node.state.tables.topic_types import TopicSettings
from tests.node.nameserver.brokers import NOW_MS, accepted, elect, ha_report
from tests.node.replication.ha.core.machines import Log

GROUP = HaSettings("ha", (1, 2, 3))
SLAVES = [SlaveReport(2, True, 900, 0, True, 5_000), SlaveReport(3, False, -1, -1, False, 0)]


class Machine:
    def __init__(self) -> None:
        self.state = State(Limits())
        self.state.topics["orders"] = TopicSettings(4, 6)


def master() -> HaState:
    """A master of epoch 4 from 500 to 1000, of which readers see 900."""
    replica = ReplicaState(HaBinding(4, 1, 2**64 - 1), HaStanding.FULL, 1)
    epochs = Epochs([EpochStart(4, 500)])
    state = HaState(GROUP, 1, Log(), replica, epochs, 1_000)
    state.role, state.highest_seen, state.now_ms = HaRole.MASTER, 6, 6_000
    state.confirm, state.copies = 900, Copies(GROUP, 500)
    return state


class FakeDriver:
    """Is in the state that a test gives; notes advice."""

    def __init__(self, state: HaState, slaves: list[SlaveReport]) -> None:
        self.machine, self.slaves = SimpleNamespace(state=state), lambda: slaves
        self.advice = list[tuple[int, int, int]]()
        self.is_ready, self.term = False, 0

    def advise(self, number: int, master_id: int, nonce: int) -> None:
        self.advice.append((number, master_id, nonce))


def broker(
    role: HaRole = HaRole.MASTER, slaves: list[SlaveReport] = SLAVES, **replica: Any
) -> tuple[HaBroker, FakeDriver]:
    state = master()
    state.role, state.replica = role, state.replica._replace(**replica)
    driver = FakeDriver(state, slaves)
    flags = {"node_id": "1", "directory": "d", "cluster_id": "c", "broker_group": "ha"}
    settings = load(None, flags, {}).settings
    machine = cast(StateMachine, Machine())
    return HaBroker(settings, "a:1", "a:2", machine, cast(HaDriver, driver)), driver


def test_a_master_reports_its_epoch_its_binding_and_its_topics() -> None:
    report = broker()[0].report(NOW_MS, with_topics=True)
    assert (report.kind, report.role, report.epoch, report.copy_count) == ("ha", "master", 4, 2)
    assert report.bindings == {4: Binding(1, str(2**64 - 1))}
    assert (report.log_end, report.ha_address) == (LogEnd(4, 1_000), "a:2")
    assert report.topics == {"orders": TopicQueues(4, 4, 6)}
    directory = Directory()
    accepted(directory, report)
    assert directory.groups["ha"].master_id == 1


def test_a_slave_reports_the_highest_number_that_it_ever_met() -> None:
    report = broker(role=HaRole.SLAVE)[0].report(NOW_MS, with_topics=False)
    assert (report.role, report.epoch, report.topics) == ("slave", 6, None)
    unbound = broker(role=HaRole.SLAVE, bound=HaBinding())[0]
    assert unbound.report(NOW_MS, with_topics=False).bindings == {}


def test_a_replica_without_memory_is_the_last_choice() -> None:
    report = broker(role=HaRole.SLAVE, standing=HaStanding.JOINING)[0].report(
        NOW_MS, with_topics=False
    )
    assert report.log_end == LogEnd(0, 0)


def test_only_a_master_knows_of_its_replicas() -> None:
    directory = Directory()
    accepted(directory, broker()[0].report(NOW_MS, with_topics=True))
    accepted(directory, ha_report(2))
    group = directory.groups["ha"]
    change = broker()[0].in_sync_change(group)
    assert change is not None
    assert (change["requester"], change["members"]) == (1, [1, 2])
    behind = SLAVES[0]._replace(acked=899)
    without = broker(slaves=[behind])[0].in_sync_change(group)
    assert without is not None
    assert without["members"] == [1]
    assert broker(role=HaRole.CANDIDATE)[0].in_sync_change(group) is None


def test_advice_is_passed_on_with_its_nonce_as_a_number() -> None:
    of, driver = broker()
    of.advise(7, Binding(2, str(2**64 - 1)))
    for strange in ("x", "-1", str(2**64)):
        of.advise(8, Binding(2, strange))
    assert driver.advice == [(7, 2, 2**64 - 1)]


def test_an_elected_master_that_never_serves_is_replaced() -> None:
    directory = Directory()
    for broker_id, position in ((1, 300), (2, 200)):
        bound = {"bindings": {1: Binding(3, "n")}, "epoch": 1}
        end = LogEnd(1, position)
        accepted(directory, ha_report(broker_id, log_end=end, **bound))
    group = directory.groups["ha"]
    chosen = []
    for number in (2, 3, 4):
        command = propose_master(group, NOW_MS, 3_000, "x")
        assert command is not None
        chosen.append(command["master_id"])
        accepted(directory, elect(number, int(str(command["master_id"])), (number - 1, 0)))
    assert chosen == [1, 2, 1]
