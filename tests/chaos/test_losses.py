"""The loss of an async master: a reported end of a log is one, everything else is a breach."""

from dataclasses import replace
from typing import cast

import pytest
from chaos.losses import MessagePlace, find_losses, read_and_gone
from chaos.profile import ClusterMode, ScenarioOptions
from chaos.scenario import SCENARIOS
from chaos.scenarios.failovers import misstated
from chaos.target import Target
from chaos.trial import Trial

from checkers.checker import check_values
from checkers.history import (
    AppendCall,
    Drain,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Seen,
    Value,
)
from quorumlog.admin.types import HaLoss
from raft.errors import Outcome

PLACES: dict[Value, MessagePlace] = {
    f"v{n}": MessagePlace(1 if n < 8 else 2, 100 * n, "q0", n) for n in range(12)
}
REPORTED = HaLoss(0, 2, 500, 800, 800, True, 3, 3, "")


def drain(*gone: int) -> Drain:
    return Drain(1, "q0", 0, [f"v{n}" for n in range(12) if n not in gone])


LOW, HIGH = (replace(REPORTED, acked_record_count=count) for count in (2, 4))
VAGUE = replace(REPORTED, is_exact=False, acked_record_count=-1)


@pytest.mark.parametrize(
    ("gone", "reports", "problem"),
    [
        ((5, 6, 7), [REPORTED], None),
        ((), [], None),
        ((5, 7), [LOW], "'v6' behind it is not"),
        ((6, 7), [], "'v6' at 600 of epoch 1: loss not reported"),
        ((6, 7), [replace(REPORTED, first_log_position=700)], "'v6' at 600"),
        ((5, 6, 7), [LOW], "I19: of epoch 2 3 messages are lost, 2 are reported"),
        ((5, 6, 7), [HIGH], "I19: of epoch 2 3 messages are lost, 4 are reported"),
        ((), [REPORTED], "0 messages are lost, 3"),
        # A report that is not exact hides none that is.
        ((5, 6, 7), [VAGUE], None),
        ((5, 6, 7), [VAGUE, LOW], "3 messages are lost, 2"),
    ],
)
def test_a_reported_end_of_a_log_is_no_breach_and_all_else_is(
    gone: tuple[int, ...], reports: list[HaLoss], problem: str | None
) -> None:
    verdict = find_losses(PLACES, [drain(*gone)], reports)
    assert verdict.lost == {f"v{n}" for n in gone}
    assert bool(verdict.problems) is (problem is not None)
    assert str(problem) in (verdict.problems or ["None"])[0]


def test_a_hole_that_retention_cannot_make_is_a_loss() -> None:
    kept = Drain(1, "q0", 3, [f"v{n}" for n in range(3, 12) if n != 6])
    verdict = find_losses(PLACES, [kept, kept._replace(replica=2)], [])
    assert verdict.lost == {"v6"}
    assert len(verdict.problems) == 2


def append(
    number: int, outcome: Outcome = Outcome.APPLIED, *, term: int = 1, invoke_ns: int = 0
) -> Operation:
    is_open = outcome is Outcome.UNKNOWN
    result = HistoryReceipt(number) if outcome is Outcome.APPLIED else None
    call = AppendCall(f"v{number}")
    returned = None if is_open else invoke_ns + 10
    kind = Kind.APPEND
    return Operation(
        number, number, kind, "q0", invoke_ns, returned, outcome, call, result, 0, term
    )


def test_a_reported_loss_counts_no_more_than_could_be_there() -> None:
    losses = replace(REPORTED, epoch=1, acked_record_count=5)
    unknown = append(20, Outcome.UNKNOWN, invoke_ns=50)
    again = append(21, term=2, invoke_ns=40)  # Acked by the old master first, perhaps.
    first = append(8, term=2, invoke_ns=60)
    later = append(22, Outcome.UNKNOWN, term=0, invoke_ns=900)
    refused = append(23, Outcome.NOT_APPLIED, invoke_ns=50)
    over = [first._replace(return_ns=55, invoke_ns=51), later, refused]
    verdict = find_losses(PLACES, [drain(5, 6, 7)], [losses], [unknown, again, *over])
    assert not verdict.problems
    (problem,) = find_losses(PLACES, [drain(5, 6, 7)], [losses], over).problems
    assert "and at most 1 that no client heard of, 5 are reported" in problem


def test_a_loss_is_counted_by_the_first_report_of_its_place() -> None:
    """Positions are used again by later epochs, which may lose them as well."""
    places: dict[Value, MessagePlace] = {
        "a": MessagePlace(1, 500, "q0", 5),
        "b": MessagePlace(2, 500, "q0", 5),
    }
    reports = [replace(REPORTED, epoch=n, record_count=1, acked_record_count=1) for n in (2, 1)]
    assert not find_losses(places, [Drain(1, "q0", 0, [])], reports).problems


def read(kind: Kind, value: Value, number: int) -> Operation:
    if kind is Kind.GET:
        result: Records | Seen = Seen(value, 0)
    else:
        result = Records(((0, value),))
    call = None if kind is Kind.GET else ReadCall(0, 1)
    return Operation(number, number, kind, "q0", 100, 110, Outcome.APPLIED, call, result)


def test_a_read_value_was_sent_even_if_lost_later() -> None:
    sent = [append(1), append(2, Outcome.UNKNOWN), append(3, Outcome.NOT_APPLIED)]
    put = append(4)._replace(kind=Kind.PUT, request="v4", result=4)
    for kind in (Kind.READ, Kind.POLL, Kind.GET):
        good = [read(kind, value, 9) for value in ("v1", "v2", "v4")]
        assert check_values([*sent, put, *good]) == []
        phantom = read(kind, "damaged:00", 9)
        assert [found.rule for found in check_values([*sent, phantom])] == ["phantom"]
        refused = read(kind, "v3", 9)
        assert [found.rule for found in check_values([*sent, refused])] == ["aborted_read"]


def test_what_was_read_may_be_gone_after_a_failover_only() -> None:
    seen = Records(tuple((n, f"v{n}") for n in range(3, 9)))
    polled = Operation(0, 9, Kind.POLL, "q0", 0, 1, Outcome.APPLIED, ReadCall(3, 0), seen)
    before, after = append(1), append(9, term=2)
    assert read_and_gone([before, polled], [drain(7, 8)]) == frozenset(), "one master"
    history = [before, polled, after]
    assert read_and_gone(history, [drain(7, 8, 10)]) == {"v7", "v8"}
    assert read_and_gone(history, [drain()]) == frozenset()
    expired = drain()._replace(first_offset=5, values=[f"v{n}" for n in range(5, 12)])
    assert read_and_gone(history, [expired]) == frozenset()


def test_a_record_with_a_receipt_of_copies_is_never_lost() -> None:
    places = {**PLACES, "v6": replace(PLACES["v6"], is_copied=True)}
    assert not find_losses(places, [drain()], []).problems
    problems = find_losses(places, [drain(5, 6, 7)], [REPORTED]).problems
    assert len(problems) == 1
    assert "'v6' of epoch 1 is lost, and its receipt says that others hold it" in problems[0]


def test_a_receipt_that_claims_another_mode_is_found() -> None:
    sync, alone = MessagePlace(1, 0, "q0", 0, is_copied=True), MessagePlace(1, 0, "q0", 0)
    assert not misstated({"a": sync}, {1: "sync"})
    assert not misstated({"a": alone}, {1: "async"})
    assert not misstated({"a": sync}, {2: "async"}), "of an epoch that nobody looked at"
    assert "others hold it" in misstated({"a": sync}, {1: "async"})[0]
    assert "the master alone" in misstated({"a": alone}, {1: "sync"})[0]
    # A later master acks again what it has, and speaks for itself; an earlier one cannot.
    again = replace(alone, is_duplicate=True)
    assert not misstated({"a": again}, {1: "sync", 2: "async"})
    assert misstated({"a": again}, {0: "async", 1: "sync"})
    assert misstated({"a": replace(again, is_copied=True)}, {1: "async", 2: "async"})


def test_a_scenario_that_makes_masters_async_may_lose_in_any_mode() -> None:
    """Who dies as one of these has acked more than others have; what it reports is no violation."""

    def may_lose(name: str, mode: ClusterMode) -> bool:
        return Trial(SCENARIOS[name], cast(Target, None), ScenarioOptions(1, mode), 1, "t").may_lose

    assert may_lose("mode-changes", ClusterMode.SYNC_MASTER)
    assert may_lose("kill-leader", ClusterMode.ASYNC_MASTER)
    assert not may_lose("kill-leader", ClusterMode.SYNC_MASTER)
    assert not may_lose("kill-leader", ClusterMode.RAFT)
