"""The register checkers (fault-matrix 9.3): one register per queue name, unique values.

Owns two judgements. With the index that a put returns and a get shows, the real-time sweep of the
log decides. Without it, zones do (Gibbons and Korach's idea): each value occupies the time from its
earliest end to its latest start, and two values that both must have been current at once cannot be
put in an order. Must not know the origin of the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from checkers.checker import Violation
from checkers.history import NEVER_NS, Kind, Operation, Seen, Value, acked
from checkers.sweep import Sweep
from raft.errors import Outcome


def check_register_by_index(operations: Sequence[Operation]) -> list[Violation]:
    """Return the violations of a history whose puts and gets show log indexes."""
    registers: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.kind in (Kind.PUT, Kind.GET):
            registers.setdefault(operation.queue, []).append(operation)
    violations: list[Violation] = []
    for queue, found in registers.items():
        _check_indexes(queue, found, violations)
    return violations


def _check_indexes(queue: str, operations: list[Operation], violations: list[Violation]) -> None:
    puts = _puts_of(operations)
    placed: dict[Value, int] = {}
    sweep = Sweep()

    def report(rule: str, detail: str, *witnesses: Operation) -> None:
        violations.append(Violation(rule, queue, detail, witnesses))

    def place(value: Value, index: int, witness: Operation) -> None:
        first_index = placed.setdefault(value, index)
        if first_index != index:
            report("duplicate", f"{value!r} is at {first_index} and at {index}", witness)

    for operation in operations:
        if not acked(operation):
            continue
        if operation.kind is Kind.PUT:
            assert isinstance(operation.result, int), f"put with result {operation.result!r}"
            place(_value(operation), operation.result, operation)
            continue
        seen = operation.result
        assert isinstance(seen, Seen), f"get with result {seen!r}"
        sweep.add_read(operation, end_max=seen.index + 1, end_min=seen.index + 1)
        if seen.value is not None:
            put = puts.get(seen.value)
            if put is None:
                report("phantom", f"{seen.value!r} was never put", operation)
                continue
            if put.outcome is Outcome.NOT_APPLIED:
                report("aborted_read", f"{seen.value!r} was not applied", put, operation)
            place(seen.value, seen.index, operation)
    at_index: dict[int, Value] = {}
    for value, index in placed.items():
        other = at_index.setdefault(index, value)
        if other != value:
            report("divergence", f"index {index} is {other!r} and {value!r}", puts[value])
        if puts[value].outcome is not Outcome.NOT_APPLIED:
            sweep.add_write(puts[value], index)

    def misplaced(later: Operation, earlier: Operation) -> None:
        rule = "real_time" if later.kind is Kind.PUT else "stale_read"
        report(rule, f"{later.op_id} is placed before {earlier.op_id}", earlier, later)

    sweep.run(misplaced)


def _value(put: Operation) -> Value:
    assert isinstance(put.request, int | str), f"put with request {put.request!r}"
    return put.request


def _puts_of(operations: Sequence[Operation]) -> dict[Value, Operation]:
    puts: dict[Value, Operation] = {}
    for operation in operations:
        if operation.kind is Kind.PUT:
            value = _value(operation)
            assert value not in puts, f"{value!r} is put twice: values must be unique"
            puts[value] = operation
    return puts


class _Zone:
    """Time of one value: from the earliest end to the latest start of its calls."""

    __slots__ = ("earliest_end", "latest_start", "put", "value")

    def __init__(self, value: Value | None, start: int, end: int, put: Operation | None) -> None:
        self.value = value
        self.earliest_end = end
        self.latest_start = start
        self.put = put

    def add(self, start: int, end: int) -> None:
        self.earliest_end = min(self.earliest_end, end)
        self.latest_start = max(self.latest_start, start)

    @property
    def is_forward(self) -> bool:
        """Whether the value was current during the whole zone; otherwise one moment suffices."""
        return self.earliest_end < self.latest_start


def check_register_by_zones(operations: Sequence[Operation]) -> list[Violation]:
    """Return the violations of a history of unique puts and of gets without usable indexes."""
    registers: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.kind in (Kind.PUT, Kind.GET):
            registers.setdefault(operation.queue, []).append(operation)
    violations: list[Violation] = []
    for queue, found in registers.items():
        zones = _zones_of(queue, found, violations)
        _check_zones(queue, zones, violations)
    return violations


def _zones_of(queue: str, operations: list[Operation], violations: list[Violation]) -> list[_Zone]:
    puts = _puts_of(operations)
    zones: dict[Value | None, _Zone] = {None: _Zone(None, -NEVER_NS, -NEVER_NS, None)}
    for value, put in puts.items():
        if acked(put) and put.return_ns is not None:
            zones[value] = _Zone(value, put.invoke_ns, put.return_ns, put)
    for operation in operations:
        if operation.kind is not Kind.GET or not acked(operation):
            continue
        seen = operation.result
        assert isinstance(seen, Seen), f"get with result {seen!r}"
        returned = NEVER_NS if operation.return_ns is None else operation.return_ns
        matching = puts.get(seen.value) if seen.value is not None else None
        if seen.value is not None:
            problem = None
            if matching is None:
                problem = "phantom"
            elif matching.outcome is Outcome.NOT_APPLIED:
                problem = "aborted_read"
            elif returned < matching.invoke_ns:
                problem = "real_time"
            if problem is not None:
                detail = f"{seen.value!r} was read by {operation.op_id}"
                violations.append(Violation(problem, queue, detail, (operation,)))
                continue
        zone = zones.get(seen.value)
        if zone is None:
            # An unknown put that was read did take effect, and its own call never ended.
            assert matching is not None, f"no put for {seen.value!r}"
            zone = zones[seen.value] = _Zone(seen.value, matching.invoke_ns, NEVER_NS, matching)
        zone.add(operation.invoke_ns, returned)
    return list(zones.values())


def _check_zones(queue: str, zones: list[_Zone], violations: list[Violation]) -> None:
    def report(rule: str, first: _Zone, second: _Zone) -> None:
        detail = f"{first.value!r} and {second.value!r} cannot be put in an order"
        witnesses = tuple(zone.put for zone in (first, second) if zone.put is not None)
        violations.append(Violation(rule, queue, detail, witnesses))

    forward = sorted(
        (zone for zone in zones if zone.is_forward), key=lambda zone: zone.earliest_end
    )
    widest: _Zone | None = None
    for zone in forward:
        if widest is not None and zone.earliest_end < widest.latest_start:
            report("zones_overlap", widest, zone)
        if widest is None or zone.latest_start > widest.latest_start:
            widest = zone
    lows = [zone.earliest_end for zone in forward]
    for zone in zones:
        if zone.is_forward:
            continue
        # A backward zone runs from its latest start to its earliest end.
        at = bisect_right(lows, zone.latest_start) - 1
        while at >= 0 and lows[at] == zone.latest_start:
            at -= 1
        if at >= 0 and zone.earliest_end < forward[at].latest_start:
            report("zone_inside", forward[at], zone)
