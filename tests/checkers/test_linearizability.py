"""The search for an order of compare-and-set calls: against all orders, and with planted faults."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from checkers.history import CasCall, Kind, Operation, Swapped, from_json, to_json
from checkers.linearizability import INITIAL, OPEN_COUNT_MAX, OPERATION_COUNT_MAX, check_cas
from raft.errors import Outcome


def call(
    invoke_ns: int,
    return_ns: int | None,
    request: CasCall,
    result: Swapped | None,
    *,
    outcome: Outcome | None = None,
    op_id: int = 0,
) -> Operation:
    ending = Outcome.UNKNOWN if return_ns is None else Outcome.APPLIED
    return Operation(
        op_id,
        op_id,
        Kind.CAS,
        "cell",
        invoke_ns,
        return_ns,
        outcome or ending,
        request,
        result,
    )


def effect(request: CasCall, value: int) -> tuple[Swapped, int]:
    """Return what a register that holds `value` answers, and what it holds then."""
    if request.new is not None and request.expected in (None, value):
        return Swapped(True, value), request.new
    return Swapped(False, value), value


def serial_history(random: Random, count: int, *, unknown: float = 0.15) -> list[Operation]:
    """Return a history that is right: calls take effect at a moment between begin and end."""
    value = INITIAL
    made = []
    for number in range(count):
        moment = 100 * (number + 1)
        expected = random.choice((None, 0, 1, 2))
        request = CasCall(expected, random.choice((None, 0, 1, 2)))
        result, value = effect(request, value)
        began, ended = moment - random.randrange(1, 250), moment + random.randrange(1, 250)
        if random.random() < unknown and request.new is not None:
            made.append(call(began, None, request, None, op_id=number))
        else:
            made.append(call(began, ended, request, result, op_id=number))
    return made


def has_order(calls: Sequence[Operation]) -> bool:
    """Try every order of every choice of the calls that nobody knows about."""
    finished = [found for found in calls if found.return_ns is not None]
    unknown = [found for found in calls if found.return_ns is None]
    for mask in range(1 << len(unknown)):
        chosen = finished + [found for at, found in enumerate(unknown) if mask >> at & 1]
        if any(_explains(order) for order in permutations(chosen)):
            return True
    return False


def _explains(order: Sequence[Operation]) -> bool:
    value = INITIAL
    latest_invoke = -(1 << 60)
    for found in order:
        if found.return_ns is not None and found.return_ns < latest_invoke:
            return False
        latest_invoke = max(latest_invoke, found.invoke_ns)
        assert isinstance(found.request, CasCall)
        result, value = effect(found.request, value)
        if found.result is not None and found.result != result:
            return False
    return True


def test_agrees_with_exhaustive_search() -> None:
    """Right histories, and the same with one answer changed: most of those are wrong."""
    random = Random(1)
    illegal = 0
    for _ in range(600):
        calls = serial_history(random, random.randrange(1, 6))
        assert check_cas(calls) == []
        at = random.randrange(len(calls))
        if calls[at].result is not None:
            changed = Swapped(random.random() < 0.5, random.randrange(3))
            calls[at] = calls[at]._replace(result=changed)
        legal = has_order(calls)
        illegal += not legal
        assert (check_cas(calls) == []) is legal, calls
    assert illegal > 100


def test_long_right_histories_are_passed() -> None:
    for seed in range(5):
        random = Random(seed)
        calls = serial_history(random, OPERATION_COUNT_MAX, unknown=0.0)
        assert check_cas(calls) == []


WRITE_1 = call(0, 10, CasCall(None, 1), Swapped(True, 0), op_id=1)


@pytest.mark.parametrize(
    "later",
    [
        [call(20, 30, CasCall(None, None), Swapped(False, 0))],  # A stale read.
        [call(20, 30, CasCall(1, 2), Swapped(False, 1))],  # A refusal for no reason.
        [call(20, 30, CasCall(0, 2), Swapped(True, 0))],  # A swap of what is not there.
        [call(20, 30, CasCall(None, None), Swapped(False, 3))],  # A value out of nothing.
        [  # Both of two that expect the same swapped.
            call(20, 40, CasCall(1, 2), Swapped(True, 1)),
            call(20, 40, CasCall(1, 3), Swapped(True, 1)),
        ],
        [  # A swap that was answered and is gone.
            call(20, 30, CasCall(1, 2), Swapped(True, 1)),
            call(40, 50, CasCall(None, None), Swapped(False, 1)),
        ],
        [  # Unknown once, seen, and then undone.
            call(20, None, CasCall(1, 2), None),
            call(40, 50, CasCall(None, None), Swapped(False, 2)),
            call(60, 70, CasCall(None, None), Swapped(False, 1)),
        ],
    ],
)
def test_planted_fault_is_found(later: list[Operation]) -> None:
    violations = check_cas([WRITE_1, *later])
    assert [violation.rule for violation in violations] == ["cas"]
    assert violations[0].witnesses


def test_refused_call_that_took_effect_is_found() -> None:
    refused = call(20, 30, CasCall(1, 2), None, outcome=Outcome.NOT_APPLIED)
    seen = call(40, 50, CasCall(None, None), Swapped(False, 2))
    assert check_cas([WRITE_1, refused, seen])
    assert not check_cas([WRITE_1, refused, seen._replace(result=Swapped(False, 1))])


def test_unknown_call_may_take_effect_late_or_never() -> None:
    unknown = call(20, None, CasCall(1, 2), None)
    for values in ([1, 1], [1, 2], [2, 2]):
        reads = [
            call(40 + 20 * at, 50 + 20 * at, CasCall(None, None), Swapped(False, value))
            for at, value in enumerate(values)
        ]
        assert check_cas([WRITE_1, unknown, *reads]) == []


def test_undecided_counts_as_a_violation() -> None:
    many = [WRITE_1] * (OPERATION_COUNT_MAX + 1)
    assert "undecided" in check_cas(many)[0].detail
    open_calls = [call(0, None, CasCall(None, 1), None)] * (OPEN_COUNT_MAX + 1)
    assert "undecided" in check_cas(open_calls)[0].detail


def test_calls_of_other_registers_do_not_matter() -> None:
    other = call(20, 30, CasCall(None, None), Swapped(False, 0))._replace(queue="other")
    assert check_cas([WRITE_1, other]) == []


def test_calls_survive_the_file() -> None:
    for found in (WRITE_1, call(1, None, CasCall(2, None), None)):
        assert from_json(to_json(found)) == found
