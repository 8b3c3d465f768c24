"""Silence is what this process observed: clocks of brokers, and its own, may say anything."""

from node.nameserver.directory.controller import FailoverWatch, expired
from node.nameserver.directory.directory import Directory
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import LogEnd
from node.nameserver.directory.routes import alive_brokers
from node.nameserver.replica.last_seen import LastSeen
from tests.node.nameserver.brokers import NOW_MS, accepted, ha_master, ha_report

LIMITS = DirectoryLimits()
STEP_S = LIMITS.master_silence_ms / 1000 / 2
YEARS_MS = 75 * 365 * 24 * 3600 * 1000


class Case:
    """Three brokers whose clocks differ by years, and a replica whose clock jumps."""

    def __init__(self) -> None:
        self.now_s, self.wall_ms = 50.0, NOW_MS
        self.directory, self.watch = Directory(), FailoverWatch()
        self.last_seen = LastSeen(monotonic_s=lambda: self.now_s)
        self.clocks = {1: NOW_MS, 2: NOW_MS + YEARS_MS, 3: NOW_MS - 3_600_000}
        for broker_id in (2, 3):
            report = ha_report(broker_id, now_ms=self.clocks[broker_id])
            accepted(self.directory, report)
        accepted(self.directory, ha_master(1, now_ms=self.clocks[1]))
        self.view()

    def view(self) -> Directory:
        return self.last_seen.view(self.directory, self.wall_ms)

    def beat(self, *broker_ids: int) -> None:
        """Let time pass, and these brokers report."""
        self.now_s += STEP_S
        for broker_id in broker_ids:
            now_ms = self.clocks[broker_id]
            report = ha_report(broker_id, now_ms=now_ms, log_end=LogEnd(1, 90))
            accepted(self.directory, report.heartbeat())
        self.last_seen.note(self.directory)

    def ops(self) -> list[str]:
        return [
            str(command["op"]) for command in self.watch.commands(self.view(), self.wall_ms, "x")
        ]


def test_clocks_that_differ_and_jump_make_nobody_silent() -> None:
    case = Case()
    for jump_ms in (0, YEARS_MS, -YEARS_MS, 3_600_000):
        case.wall_ms += jump_ms
        case.clocks = {broker_id: abs(ms - jump_ms) for broker_id, ms in case.clocks.items()}
        case.beat(1, 2, 3)
        assert case.ops() == []
        alive = alive_brokers(case.view().groups["ha"], case.wall_ms, LIMITS.broker_expiry_ms)
        assert [broker.broker_id for broker in alive] == [1, 2, 3]


def test_a_broker_without_reports_is_silent_under_any_clock() -> None:
    case = Case()
    case.clocks[1] += YEARS_MS
    case.beat(1, 2, 3)
    for _ in range(2):
        case.beat(2, 3)
        assert case.ops() == []
    case.beat(2, 3)
    assert case.ops() == ["elect"]


def test_a_dead_broker_is_forgotten_and_the_state_keeps_what_was_reported() -> None:
    case = Case()
    before = case.directory.snapshot()
    for _ in range(int(LIMITS.broker_expiry_ms / 1000 / STEP_S) + 1):
        case.beat()
    broker_ids = [broker.broker_id for _, broker in expired(case.view(), case.wall_ms)]
    assert sorted(broker_ids) == [1, 2, 3]
    assert before == case.directory.snapshot(), "views are copies"
    case.beat(2, 3)
    broker_ids = [broker.broker_id for _, broker in expired(case.view(), case.wall_ms)]
    assert broker_ids == [1]
