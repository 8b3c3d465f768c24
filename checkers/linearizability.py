"""The search for an order: can these calls of one compare-and-set register be put in a line?

Owns the tree search of Wing and Gong with the memory of Lowe: each set of ordered calls, with the
value they lead to, is examined once. Exponential at worst, so a register has few calls and few open
at a time, and a history that cannot be decided within the limits counts as a violation
(fault-matrix 9.3). Must not know the origin of the history.

A call either swaps (`new` is given) or reads. A swap happens if the register holds `expected`, or
always if `expected` is None; either way the caller gets the value it held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from checkers.checker import Violation
from checkers.history import NEVER_NS, CasCall, Kind, Operation, Swapped
from raft.errors import Outcome

OPERATION_COUNT_MAX: Final = 300
OPEN_COUNT_MAX: Final = 10
"""Calls of one register open at one time, including calls that never returned."""
STEP_COUNT_MAX: Final = 1_000_000
"""Steps of the search; about 2 s."""
INITIAL: Final = 0
"""Value of a register before any swap."""


class _Call(NamedTuple):
    invoke_ns: int
    return_ns: int
    request: CasCall
    result: Swapped | None
    """None: it is unknown whether the call took effect."""
    operation: Operation


def check_cas(operations: Sequence[Operation]) -> list[Violation]:
    """Return a violation for each register whose calls have no order, or none within the limits."""
    registers: dict[str, list[_Call]] = {}
    for operation in operations:
        if operation.kind is Kind.CAS and operation.outcome is not Outcome.NOT_APPLIED:
            call = _call_of(operation)
            # A read without an answer proves nothing.
            if call.result is not None or call.request.new is not None:
                registers.setdefault(operation.queue, []).append(call)
    violations = []
    for queue, calls in registers.items():
        calls.sort(key=lambda call: call.invoke_ns)
        problem = _problem(calls)
        if problem is not None:
            detail, witnesses = problem
            violations.append(Violation("cas", queue, detail, witnesses))
    return violations


def _call_of(operation: Operation) -> _Call:
    request, result = operation.request, operation.result
    assert isinstance(request, CasCall), f"call {request!r}"
    if operation.outcome is Outcome.UNKNOWN:
        return _Call(operation.invoke_ns, NEVER_NS, request, None, operation)
    assert isinstance(result, Swapped), f"result {result!r}"
    assert operation.return_ns is not None, f"{operation} was answered"
    return _Call(operation.invoke_ns, operation.return_ns, request, result, operation)


def _problem(calls: list[_Call]) -> tuple[str, tuple[Operation, ...]] | None:
    if len(calls) > OPERATION_COUNT_MAX:
        return f"undecided: {len(calls)} calls, at most {OPERATION_COUNT_MAX}", ()
    open_count = _open_count(calls)
    if open_count > OPEN_COUNT_MAX:
        return f"undecided: {open_count} calls open at a time, at most {OPEN_COUNT_MAX}", ()
    return _search(calls)


def _open_count(calls: list[_Call]) -> int:
    """Return the largest number of calls that were open at one time."""
    edges = [(call.invoke_ns, 1) for call in calls] + [(call.return_ns, -1) for call in calls]
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def _applied(call: _Call, value: int) -> int | None:
    """Return the value of a register after a call on `value`; None if the call cannot be next."""
    expected, new = call.request
    swaps = new is not None and (expected is None or expected == value)
    if call.result is not None and call.result != (swaps, value):
        return None
    return new if swaps and new is not None else value


def _search(calls: list[_Call]) -> tuple[str, tuple[Operation, ...]] | None:
    """Walk all orders that respect real time; return None as soon as one explains every answer."""
    wanted = sum(1 << at for at, call in enumerate(calls) if call.result is not None)
    seen = {(0, INITIAL)}
    stack = [(0, INITIAL)]
    deepest, steps = 0, 0
    while stack:
        done, value = stack.pop()
        if done & wanted == wanted:
            return None
        if (done & wanted).bit_count() > (deepest & wanted).bit_count():
            deepest = done
        steps += 1
        if steps > STEP_COUNT_MAX:
            return f"undecided after {STEP_COUNT_MAX} steps", ()
        for at in _next_of(calls, done):
            after = _applied(calls[at], value)
            if after is not None:
                state = (done | 1 << at, after)
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
    stuck = tuple(calls[at].operation for at in _next_of(calls, deepest))
    return f"no order explains the calls after the first {deepest.bit_count()}", stuck


def _next_of(calls: list[_Call], done: int) -> list[int]:
    """Return the calls that may be next: invoked before any other remaining call had returned."""
    next_ones = []
    first_return_ns = NEVER_NS
    for at, call in enumerate(calls):
        if call.invoke_ns > first_return_ns:
            break
        if not done >> at & 1:
            next_ones.append(at)
            first_return_ns = min(first_return_ns, call.return_ns)
    return [at for at in next_ones if calls[at].invoke_ns <= first_return_ns]
