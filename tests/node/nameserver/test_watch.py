"""What is said of the groups in the directory: who came, who moved, and who has no master."""

import logging

import pytest

from node.nameserver.directory.directory import Directory, unregister_command
from node.nameserver.watch import NO_MASTER_AFTER_MS, SETTLE_MS, GroupWatch, sights
from tests.node.nameserver.brokers import (
    NOW_MS,
    accepted,
    elect,
    ha_directory,
    ha_master,
    raft_leader,
    raft_report,
)


class Case:
    """A directory that is looked at, and the clock."""

    def __init__(self, directory: Directory) -> None:
        self.directory, self.now_s = directory, 50.0
        self.watch = GroupWatch(monotonic_s=lambda: self.now_s)

    def look(self, after_ms: int = 0, *, has_leader: bool = True) -> dict[str, str]:
        self.now_s += after_ms / 1000
        self.watch.note(sights(self.directory, NOW_MS), has_leader=has_leader)
        return self.watch.problems

    def settled(self) -> "Case":
        self.look()
        self.look(SETTLE_MS)
        return self


def test_a_group_without_a_master_is_named_after_a_while() -> None:
    case = Case(ha_directory())
    accepted(case.directory, raft_leader(1, 4))
    assert case.look() == {}
    accepted(case.directory, elect(2, 2, (1, 3)))
    accepted(case.directory, raft_report(1, epoch=5))
    assert case.look() == {}
    assert case.look(NO_MASTER_AFTER_MS - 1) == {}
    groups = case.look(1)
    assert sorted(groups) == ["ha", "raft"]
    assert groups["ha"] == (
        "broker group ha has had no master for 15 s, as far as the name server knows; "
        "alive: node 1, 2, 3"
    )
    accepted(case.directory, ha_master(2, 2, "x"))
    assert sorted(case.look()) == ["raft"]
    accepted(case.directory, raft_leader(1, 5))
    assert case.look() == {}


def test_no_master_is_missed_while_no_leader_is_there() -> None:
    case = Case(ha_directory())
    accepted(case.directory, elect(2, 2, (1, 3)))
    case.look()
    assert case.look(NO_MASTER_AFTER_MS, has_leader=False) == {}
    assert case.look() == {}, "the time without a leader does not count"
    assert sorted(case.look(NO_MASTER_AFTER_MS)) == ["ha"]
    case.watch.clear()
    assert (case.watch.problems, case.watch.groups) == ({}, ())


def test_new_groups_and_addresses_are_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    case = Case(ha_directory()).settled()
    assert case.watch.new_group_count == 0, "they were there before"
    assert "broker group ha of cluster c: 1 at ha:10001" in caplog.text
    accepted(case.directory, raft_leader(7, 1, "far"))
    case.look()
    assert (case.watch.new_group_count, case.watch.new_address_count) == (1, 0)
    accepted(case.directory, raft_leader(7, 1, "far", address="far:1"))
    case.look()
    case.look()
    assert (case.watch.new_group_count, case.watch.new_address_count) == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "broker group far of cluster c: 7 at far:10007",
        "broker 7 of group far is at far:1, was far:10007",
    ]
    accepted(case.directory, raft_report(8, "far"))
    accepted(case.directory, unregister_command("far", 8, 1))
    case.look()
    assert case.watch.new_address_count == 1
    assert list(case.watch.groups) == ["ha", "far"]
    accepted(case.directory, unregister_command("far", 7, 1))
    case.look()
    assert list(case.watch.groups) == ["ha"]
    accepted(case.directory, raft_leader(7, 1, "far", address="far:1"))
    case.look()
    counts = (case.watch.new_group_count, case.watch.new_address_count)
    assert counts == (1, 1), "to come back is no news"


def test_the_memory_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.nameserver.watch._KNOWN_GROUP_COUNT_MAX", 2)
    case = Case(Directory()).settled()
    for at, name in enumerate("abca"):
        accepted(case.directory, raft_leader(1, 1, name))
        case.look()
        accepted(case.directory, unregister_command(name, 1, 1))
        case.look()
        assert case.watch.new_group_count == at + 1, "of a only two were seen since"
        assert len(case.watch._addresses) <= 2
