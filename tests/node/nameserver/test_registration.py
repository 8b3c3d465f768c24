"""How a broker keeps itself known: what it says when, against a real directory."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from node.errors.nameserver import NoQuorumError
from node.nameserver.directory.directory import Command, Directory
from node.nameserver.directory.fields import Result
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import (
    HEARTBEAT_PERIOD_MS,
    REGISTER_PERIOD_MS,
    DirectoryLimits,
)
from node.nameserver.directory.reports import Binding, BrokerReport, TopicQueues
from node.nameserver.local_broker import LocalBroker
from node.nameserver.registration import REFUSED_PAUSE_MS, Registration, RegistrationRefusedError
from tests.node.nameserver.brokers import NOW_MS, ORDERS, raft_leader, raft_report, send
from tests.patience import eventually

_T = TypeVar("_T")


class LocalDirectory:
    """A directory that commits at once, as long as somebody leads."""

    def __init__(self, limits: DirectoryLimits | None = None) -> None:
        self.directory = Directory(limits)
        self.leader = "a:1"
        self.said: list[Command] = []

    async def change(self, command: Command, *, timeout_ms: int = 0) -> Result:
        if not self.leader:
            raise NoQuorumError(timeout_ms)
        self.said.append(command)
        return send(self.directory, command)

    async def report(self, command: Command, *, timeout_ms: int = 0) -> Result:
        return await self.change(command, timeout_ms=timeout_ms)

    def look(self, reader: Callable[[Directory], _T]) -> _T:
        return reader(self.directory)

    def take(self) -> list[str]:
        """What was said since the last time: the operations, with `+topics`."""
        said, self.said = self.said, []
        return [f"{c['op']}{'+topics' if c.get('topics') is not None else ''}" for c in said]


class FakeBroker(LocalBroker):
    """A broker whose facts the test changes."""

    def __init__(self, facts: BrokerReport) -> None:
        self.facts = facts
        self.group, self.broker_id = facts.group, facts.broker_id
        self.start_ms, self.is_advised = facts.start_ms, facts.kind == "ha"
        self.heartbeat_period_ms = HEARTBEAT_PERIOD_MS
        self.advice: list[tuple[int, Binding]] = []
        self.in_sync: Callable[[Group], Command | None] = lambda _group: None

    def report(self, now_ms: int, *, with_topics: bool) -> BrokerReport:
        return replace(self.facts, now_ms=now_ms, topics=self.facts.topics if with_topics else None)

    def in_sync_change(self, group: Group) -> Command | None:
        return self.in_sync(group)

    def advise(self, number: int, binding: Binding) -> None:
        self.advice.append((number, binding))


class Case:
    """One registration with its clock."""

    def __init__(self, facts: BrokerReport, limits: DirectoryLimits | None = None) -> None:
        self.access, self.broker, self.now_s = LocalDirectory(limits), FakeBroker(facts), 100.0
        self.registration = Registration(self.access, self.broker, monotonic_s=lambda: self.now_s)

    def look(self, after_ms: int = 0) -> list[str]:
        """Let time pass and look once; return what was said."""
        self.now_s += after_ms / 1000
        asyncio.run(self.registration.look())
        return self.access.take()

    def change(self, **facts: Any) -> None:
        self.broker.facts = replace(self.broker.facts, **facts)


def test_a_broker_registers_at_once_then_beats_and_registers_again_in_time() -> None:
    case = Case(raft_leader(1, 3))
    assert case.look() == ["register+topics"]
    assert case.look(1_000) == []
    said = [case.look(1_000) for _ in range(60)]
    flat = [word for words in said for word in words]
    assert flat.count("register") == 60_000 // REGISTER_PERIOD_MS
    assert flat.count("heartbeat") == 60_000 // HEARTBEAT_PERIOD_MS - flat.count("register")
    assert case.access.directory.groups["raft"].topics == ORDERS


def test_changes_of_a_broker_are_reported_at_the_next_look() -> None:
    case = Case(raft_report(1))
    assert case.look() == ["register"]
    case.change(role="master", epoch=4, topics=ORDERS, topics_version=(0, 1))
    assert case.look() == ["register+topics"]
    case.change(topics={**ORDERS, "new": TopicQueues(1, 1, 6)}, topics_version=(0, 2))
    assert case.look() == ["register+topics"]
    assert set(case.access.directory.groups["raft"].topics) == {"orders", "new"}
    case.change(role="slave", epoch=5)
    assert case.look() == ["register"]
    case.change(epoch=6)
    assert case.look() == [], "the term of a follower is of no interest"


def test_a_directory_gets_what_it_lacks_with_the_next_report() -> None:
    case = Case(raft_leader(1, 3))
    case.look()
    case.access.directory = Directory()
    assert case.look(HEARTBEAT_PERIOD_MS) == ["heartbeat", "register+topics"]
    assert case.access.directory.groups["raft"].topics == ORDERS
    case.access.directory.groups["raft"].topics_version = (0, 0)
    assert case.look(REGISTER_PERIOD_MS) == ["register"]
    assert case.look() == ["register+topics"]


def test_a_new_leader_hears_of_everybody_at_once() -> None:
    case = Case(raft_report(1))
    case.look()
    case.access.leader = "b:1"
    assert case.look(1) == ["heartbeat"]
    case.access.leader = ""
    with pytest.raises(NoQuorumError):
        case.look(HEARTBEAT_PERIOD_MS)
    case.access.leader = "b:1"
    assert case.look(1) == ["heartbeat"]


def test_a_refused_report_is_not_repeated_at_once() -> None:
    case = Case(raft_report(1))
    case.look()
    send(case.access.directory, raft_leader(2, 9))
    case.change(role="master", epoch=3)
    with pytest.raises(RegistrationRefusedError, match="stale_epoch"):
        case.look(HEARTBEAT_PERIOD_MS - 2_000)
    case.access.take()
    assert case.look(1_000) == []
    assert case.look(1_000) == ["heartbeat"]
    with pytest.raises(RegistrationRefusedError, match="epoch 3 is over"):
        case.look(REFUSED_PAUSE_MS - 2_000)
    case.access.take()
    case.change(epoch=10)
    assert case.look() == ["register"], "something else is worth a word at once"


def test_too_many_topics_leave_the_broker_known_without_them() -> None:
    case = Case(raft_leader(1, 3), DirectoryLimits(topics_size_bytes_max=10))
    with pytest.raises(RegistrationRefusedError, match="state_full"):
        case.look()
    assert case.access.take() == ["register+topics", "register"]
    group = case.access.directory.groups["raft"]
    assert (list(group.brokers), group.topics, group.master_id) == ([1], {}, 1)

    async def main() -> None:
        task = asyncio.create_task(case.registration.run())
        await eventually(lambda: "no route" in case.registration.problem, "a look without a report")
        assert case.access.take() == ["heartbeat"]
        case.change(topics={}, topics_version=(5, 2))
        case.registration.changed()
        await eventually(lambda: not case.registration.problem, "success")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_broker_that_stops_says_so() -> None:
    case = Case(raft_leader(1, 3))
    case.look()
    asyncio.run(case.registration.leave())
    assert case.access.take() == ["unregister"]
    assert "raft" not in case.access.directory.groups
    case.access.leader = ""
    asyncio.run(case.registration.leave())


def test_the_loop_goes_on_whatever_fails_and_is_woken_by_a_change() -> None:
    case = Case(raft_leader(1, 3))
    case.access.leader = ""

    async def main() -> None:
        task = asyncio.create_task(case.registration.run())
        await eventually(lambda: "no leader" in case.registration.problem, "trouble")
        case.access.leader = "a:1"
        case.registration.changed()
        await eventually(lambda: not case.registration.problem, "success")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert case.access.directory.groups["raft"].brokers[1].last_seen_ms > NOW_MS
