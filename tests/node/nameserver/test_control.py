"""When the controller decides, and how a broker hears of it; the time that silence is judged by."""

import asyncio
from functools import partial
from typing import Any

from node.nameserver.control import LOOK_PERIOD_MS, SETTLE_MS, Adviser, Controller
from node.nameserver.directory.controller import ReplicaAck, change_in_sync
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import Binding, LogEnd
from node.nameserver.watch import SETTLE_MS as CONTACT_AFTER_MS
from node.nameserver.watch import TrustedTime
from node.runtime.clock import unix_ms
from tests.node.nameserver.brokers import accepted, ha_master, ha_report
from tests.node.nameserver.test_registration import FakeBroker, LocalDirectory

LIMITS = DirectoryLimits()


class Case:
    """A controller over an HA group of three, whose master 1 was last heard of long ago."""

    def __init__(self) -> None:
        self.access, self.now_s, self.is_leader = LocalDirectory(), 100.0, True
        self.controller = Controller(
            self.access, lambda: self.is_leader, monotonic_s=lambda: self.now_s
        )
        old_ms = unix_ms() - LIMITS.master_silence_ms - 1_000
        for broker_id in (2, 3):
            end = LogEnd(1, 90 + broker_id)
            self.accept(ha_report(broker_id, now_ms=unix_ms() + 3_600_000, log_end=end))
        self.accept(ha_master(1, now_ms=old_ms))

    def accept(self, report: Any) -> None:
        accepted(self.access.directory, report)

    def look(self, after_ms: int) -> list[str]:
        """Let time pass in the steps of the controller; return what was sent."""
        for _ in range(after_ms // LOOK_PERIOD_MS):
            self.now_s += LOOK_PERIOD_MS / 1000
            asyncio.run(self.controller.look())
        return self.access.take()


def test_a_leader_waits_for_heartbeats_before_it_calls_anybody_silent() -> None:
    case = Case()
    assert case.look(SETTLE_MS) == []
    assert case.look(LOOK_PERIOD_MS) == ["elect"]
    group = case.access.directory.groups["ha"]
    assert group.epochs[2].master_id == 3, "the longest log of those alive"
    assert int(group.epochs[2].nonce) > 0
    assert case.look(1_000) == [], "it may be fencing"


def test_a_controller_that_does_not_lead_or_stood_still_decides_nothing() -> None:
    case = Case()
    case.is_leader = False
    assert case.look(4 * SETTLE_MS) == []
    case.is_leader = True
    assert case.look(SETTLE_MS) == []
    case.is_leader = False
    case.look(LOOK_PERIOD_MS)
    case.is_leader = True
    assert case.look(SETTLE_MS) == []
    case.now_s += 3_600
    assert case.look(SETTLE_MS) == [], "a leader that stood still for a while had no contact"


def test_without_a_quorum_the_controller_goes_on_later() -> None:
    case = Case()
    case.look(SETTLE_MS)
    case.access.leader = ""
    assert case.look(2 * LOOK_PERIOD_MS) == []
    case.access.leader = "a:1"
    assert case.look(LOOK_PERIOD_MS) == ["elect"]


def test_a_broker_is_told_once_of_an_epoch_that_nobody_serves() -> None:
    case = Case()
    broker = FakeBroker(ha_report(2))
    adviser = Adviser(case.access, broker)
    adviser.advise()
    assert broker.advice == [], "epoch 1 has its master"
    case.look(SETTLE_MS + LOOK_PERIOD_MS)
    adviser.advise()
    adviser.advise()
    nonce = case.access.directory.groups["ha"].epochs[2].nonce
    assert broker.advice == [(2, Binding(3, nonce))]


def test_a_master_keeps_the_in_sync_set() -> None:
    case = Case()
    broker = FakeBroker(ha_master(1))
    adviser = Adviser(case.access, broker)
    asyncio.run(adviser.keep_in_sync())
    assert case.access.take() == [], "it is no master as far as it knows"
    replicas = {2: ReplicaAck(100, 999_000), 3: ReplicaAck(10, 999_000)}
    broker.in_sync = partial(
        change_in_sync,
        master_id=1,
        replicas=replicas,
        confirmed_position=50,
        epoch_start_position=50,
        now_ms=1_000_000,
    )
    asyncio.run(adviser.keep_in_sync())
    assert case.access.take() == ["alter_in_sync"]
    assert case.access.directory.groups["ha"].in_sync == (1, 2)
    asyncio.run(adviser.keep_in_sync())
    assert case.access.take() == []


def test_time_stands_still_while_no_contact_is_possible() -> None:
    now_s = 10.0
    trusted = TrustedTime(monotonic_s=lambda: now_s)
    now_ms = 1_700_000_000_000
    trusted.note(now_ms, has_leader=True)
    assert trusted.at(now_ms) < now_ms, "at the start everybody who was known counts as alive"
    now_s += CONTACT_AFTER_MS / 1000
    trusted.note(now_ms, has_leader=True)
    assert trusted.at(now_ms + 5) == now_ms + 5
    trusted.note(now_ms + 10, has_leader=False)
    trusted.note(now_ms + 20, has_leader=False)
    assert trusted.at(now_ms + 100_000) == now_ms + 10
    trusted.note(now_ms + 100_000, has_leader=True)
    assert trusted.at(now_ms + 100_000) == now_ms + 10, "the others still have to be heard"
    now_s += CONTACT_AFTER_MS / 1000
    trusted.note(now_ms + 110_000, has_leader=True)
    assert trusted.at(now_ms + 110_000) == now_ms + 110_000
