"""The log checker (fault-matrix 9.2): can a correct log have this history?

Owns the six rules for appends, reads, polls and final drains; registers are in `register`. Must not
know Raft, the simulator or the network: it sees calls and their results. O(n log n), and complete
for an append-only log, because every position is known from an ack, a read or the final drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from checkers.history import (
    AppendCall,
    Drain,
    FaultNote,
    HistoryDurability,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Seen,
    Value,
    acked,
)
from checkers.sweep import Sweep
from raft.errors import Outcome

_STRENGTH = {level: strength for strength, level in enumerate(HistoryDurability)}


class Violation(NamedTuple):
    """One broken rule with its witnesses, at most two operations."""

    rule: str
    queue: str
    detail: str
    witnesses: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.rule} in {self.queue!r}: {self.detail}"]
        lines += [f"    {witness}" for witness in self.witnesses]
        return "\n".join(lines)


def check_log(
    operations: Sequence[Operation],
    drains: Iterable[Drain] = (),
    faults: Sequence[FaultNote] = (),
    *,
    may_expire: bool = True,
) -> list[Violation]:
    """Return every violation found, in a stable order; an empty list means a clean history.

    Without `may_expire` nothing may be deleted by its age: every drain begins at offset 0.
    """
    by_queue: dict[str, _Queue] = {}
    processes: dict[int, dict[str, _Reader]] = {}
    violations: list[Violation] = []
    for operation in operations:
        queue = by_queue.get(operation.queue)
        if queue is None:
            queue = by_queue[operation.queue] = _Queue(operation.queue, violations, faults)
        kind = operation.kind
        if kind is Kind.APPEND:
            queue.take_append(operation)
        elif kind is Kind.ASSIGN:
            assigned = operation.request
            for name in assigned if isinstance(assigned, tuple) else ():
                processes.setdefault(operation.process, {}).pop(str(name), None)
    for drain in drains:
        queue = by_queue.setdefault(drain.queue, _Queue(drain.queue, violations, faults))
        queue.drains.append(drain)
    _check_reads(operations, by_queue, violations)
    for queue in by_queue.values():
        if not may_expire:
            queue.check_beginnings()
        queue.finish()
    return violations


def check_values(operations: Sequence[Operation]) -> list[Violation]:
    """Check rule 1 for a log that may have lost its end.

    Every value that was read, in a log or a register, had been sent, and no caller was told that it
    was not applied."""
    violations: list[Violation] = []
    queues: dict[str, _Queue] = {}
    for operation in operations:
        name, request = operation.queue, operation.request
        queue = queues.setdefault(name, _Queue(name, violations, ()))
        if operation.kind is Kind.APPEND and isinstance(request, AppendCall):
            queue.attempt(operation, request.value)
        elif operation.kind is Kind.PUT and isinstance(request, int | str):
            queue.attempt(operation, request)
    for operation in operations:
        result = operation.result
        if isinstance(result, Records):
            for _, value in result.records:
                queues[operation.queue].check_sent(value, operation)
        elif isinstance(result, Seen) and result.value is not None:
            queues[operation.queue].check_sent(result.value, operation)
    return violations


class _Reader:
    """Place of one process in one queue."""

    __slots__ = ("next_offset", "operation")

    def __init__(self, next_offset: int, operation: Operation) -> None:
        self.next_offset = next_offset
        self.operation = operation


def _check_reads(
    operations: Sequence[Operation], by_queue: dict[str, _Queue], violations: list[Violation]
) -> None:
    """Check rule 1 for reads, rule 5 for polls; give linearizable reads to the sweep of rule 4."""
    readers: dict[tuple[int, str], _Reader] = {}
    for operation in operations:
        kind = operation.kind
        if kind is Kind.ASSIGN and isinstance(operation.request, tuple):
            for name in operation.request:
                readers.pop((operation.process, str(name)), None)
        if not acked(operation):
            continue
        queue = by_queue[operation.queue]
        if kind is Kind.TAIL and isinstance(operation.result, int):
            queue.sweep.add_read(operation, end_max=operation.result, end_min=operation.result)
        elif kind in (Kind.READ, Kind.POLL) and isinstance(operation.result, Records):
            queue.take_records(operation, operation.result)
            if kind is Kind.READ:
                queue.order_read(operation, operation.result)
            else:
                _check_poll(operation, operation.result, readers, violations)


def _check_poll(
    operation: Operation,
    result: Records,
    readers: dict[tuple[int, str], _Reader],
    violations: list[Violation],
) -> None:
    key = (operation.process, operation.queue)
    reader = readers.get(key)
    for offset, _ in result.records:
        if reader is None:
            reader = readers[key] = _Reader(offset, operation)
        if offset != reader.next_offset:
            rule = "skip" if offset > reader.next_offset else "non_monotonic"
            detail = f"process {operation.process} got {offset}, expected {reader.next_offset}"
            violations.append(
                Violation(rule, operation.queue, detail, (reader.operation, operation))
            )
        reader.next_offset, reader.operation = offset + 1, operation


class _Queue:
    """Everything known of one queue."""

    __slots__ = (
        "acks",
        "appends",
        "drains",
        "faults",
        "name",
        "placed",
        "placed_by",
        "read_offsets",
        "sweep",
        "value_offset",
        "violations",
    )

    def __init__(self, name: str, violations: list[Violation], faults: Sequence[FaultNote]) -> None:
        self.name = name
        self.violations = violations
        self.faults = faults
        self.drains: list[Drain] = []
        self.appends: dict[Value, Operation] = {}
        """Every attempt by its value, whatever its outcome."""
        self.acks: list[tuple[Operation, AppendCall, HistoryReceipt]] = []
        self.placed: dict[int, Value] = {}
        """Offset to value, from every ack, read and drain: rule 1."""
        self.placed_by: dict[int, Operation | Drain] = {}
        self.value_offset: dict[Value, int] = {}
        self.read_offsets: set[int] = set()
        self.sweep = Sweep()

    def report(self, rule: str, detail: str, *witnesses: Operation | Drain | None) -> None:
        shown = tuple(found for found in witnesses if isinstance(found, Operation))
        self.violations.append(Violation(rule, self.name, detail, shown))

    def take_append(self, operation: Operation) -> None:
        call = operation.request
        assert isinstance(call, AppendCall), f"append with request {call!r}"
        if self.attempt(operation, call.value) and acked(operation):
            receipt = operation.result
            assert isinstance(receipt, HistoryReceipt), f"append with result {receipt!r}"
            self.acks.append((operation, call, receipt))
            self.place(receipt.offset, call.value, operation)

    def attempt(self, operation: Operation, value: Value) -> bool:
        """Note that a value was sent; return False if an earlier attempt counts instead.

        A value may be attempted again only after an attempt that certainly had no effect."""
        other = self.appends.get(value)
        if other is not None and other.outcome is not Outcome.NOT_APPLIED:
            assert operation.outcome is Outcome.NOT_APPLIED, f"{value!r} appended twice"
            return False
        self.appends[value] = operation
        return True

    def place(self, offset: int, value: Value, witness: Operation | Drain) -> None:
        """Check rule 1: one value per offset, one offset per value, and only values that were
        sent."""
        placed = self.placed.get(offset)
        if placed is None:
            self.placed[offset] = value
            self.placed_by[offset] = witness
            elsewhere = self.value_offset.setdefault(value, offset)
            if elsewhere != offset:
                detail = f"{value!r} is at {elsewhere} and at {offset}"
                self.report("duplicate", detail, self.placed_by.get(elsewhere), witness)
        elif placed != value:
            detail = f"offset {offset} is {placed!r} and {value!r} ({_who(witness)})"
            self.report("divergence", detail, self.placed_by[offset], witness)
            self.value_offset.setdefault(value, offset)

    def check_sent(self, value: Value, witness: Operation | Drain) -> None:
        """Report a value that was never sent, or whose sender was told that it was not applied."""
        append = self.appends.get(value)
        if append is None:
            self.report("phantom", f"{value!r} was never appended ({_who(witness)})", witness)
        elif append.outcome is Outcome.NOT_APPLIED:
            detail = f"{value!r} was reported as not applied ({_who(witness)})"
            self.report("aborted_read", detail, append, witness)

    def take_records(self, operation: Operation, result: Records) -> None:
        expected: int | None = None
        placed = self.placed
        for offset, value in result.records:
            if expected is not None and offset != expected and operation.kind is Kind.READ:
                self.report("skip", f"read got {offset}, expected {expected}", operation)
            expected = offset + 1
            self.read_offsets.add(offset)
            if placed.get(offset) != value:
                self.place(offset, value, operation)
            if value not in self.appends or not acked(self.appends[value]):
                self.check_sent(value, operation)
        call = operation.request
        if isinstance(call, ReadCall) and call.at_least:
            end = result.end
            if end is None or end < call.at_least:
                self.report("receipt", f"at_least {call.at_least} was answered at {end}", operation)

    def order_read(self, operation: Operation, result: Records) -> None:
        call = operation.request
        assert isinstance(call, ReadCall), f"read with request {call!r}"
        records = result.records
        low = records[-1][0] + 1 if records else None
        high = result.end
        if high is None and len(records) < call.count_max:
            high = low if low is not None else call.offset
        self.sweep.add_read(operation, end_max=high, end_min=low if result.end is None else high)

    def check_beginnings(self) -> None:
        """Check rule 2 for the first messages, which only a replica that may expire them lacks."""
        for drain in self.drains:
            if drain.first_offset > 0:
                detail = f"all before offset {drain.first_offset} is not on {drain.replica}"
                self.report("lost", detail)

    def finish(self) -> None:
        self._check_drains()
        self._check_unread()
        self._check_own_order()
        self._check_receipts()
        for value, offset in self.value_offset.items():
            append = self.appends.get(value)
            if append is not None and append.outcome is not Outcome.NOT_APPLIED:
                self.sweep.add_write(append, offset)
        self.sweep.run(self._report_order)

    def _report_order(self, later: Operation, earlier: Operation) -> None:
        rule = "real_time" if later.kind is Kind.APPEND else "stale_read"
        detail = f"operation {later.op_id} is placed before {earlier.op_id}, which had ended"
        self.report(rule, detail, earlier, later)

    def _check_drains(self) -> None:
        """Check rules 1 to 3 on the final state of each replica."""
        for drain in self.drains:
            for offset, value in enumerate(drain.values, drain.first_offset):
                if value is None:
                    self.report("hole", f"replica {drain.replica} lacks offset {offset}")
                    continue
                if self.placed.get(offset) != value:
                    self.place(offset, value, drain)
                append = self.appends.get(value)
                if append is None or append.outcome is Outcome.NOT_APPLIED:
                    self.check_sent(value, drain)
            end = drain.first_offset + len(drain.values)
            for operation, call, receipt in self.acks:
                offset = receipt.offset
                if offset < drain.first_offset:
                    continue
                is_there = offset < end and drain.values[offset - drain.first_offset] == call.value
                if not is_there and not self._is_loss_excused(operation, receipt):
                    detail = f"{call.value!r}, acked at {offset}, is not on {drain.replica}"
                    self.report("lost", detail, operation)
        ends = {drain.first_offset + len(drain.values) for drain in self.drains}
        if len(ends) > 1:
            self.report("divergence", f"replicas end at {sorted(ends)} after healing")

    def _check_unread(self) -> None:
        """Check rule 2, second part: no acked offset below the highest read one is unread.

        Only readers from the first offset on prove anything; the skips of others belong to rule
        5."""
        if self.drains or 0 not in self.read_offsets:
            return
        top = max(self.read_offsets)
        for operation, call, receipt in self.acks:
            if receipt.offset < top and receipt.offset not in self.read_offsets:
                self.report(
                    "unread", f"{call.value!r} at {receipt.offset}, read to {top}", operation
                )

    def _check_own_order(self) -> None:
        """Check rule 5: a process has one call open, so its appends land in call order."""
        last: dict[int, tuple[Operation, int]] = {}
        for operation, _, receipt in sorted(self.acks, key=lambda ack: ack[0].invoke_ns):
            before = last.get(operation.process)
            if before is not None and before[1] >= receipt.offset:
                detail = f"process {operation.process}: {receipt.offset} after {before[1]}"
                self.report("own_order", detail, before[0], operation)
            last[operation.process] = (operation, receipt.offset)

    def _is_loss_excused(self, operation: Operation, receipt: HistoryReceipt) -> bool:
        """Whether a power loss excuses the loss: the receipt is weaker than quorum-durable."""
        if receipt.durability is HistoryDurability.QUORUM_DURABLE:
            return False
        return any(
            note.kind == "power_loss" and note.at_ns >= operation.invoke_ns for note in self.faults
        )

    def _check_receipts(self) -> None:
        """Check rule 6: no receipt claims more than the mode in force at any moment of its call."""
        modes = [note for note in self.faults if note.kind == "mode"]
        if not modes:
            return
        for operation, _, receipt in self.acks:
            returned = operation.return_ns
            allowed = modes[0].durability
            for note in modes:
                if note.at_ns <= operation.invoke_ns:
                    allowed = note.durability
                elif returned is None or note.at_ns <= returned:
                    allowed = max(allowed, note.durability, key=_STRENGTH.__getitem__)
            if _STRENGTH[receipt.durability] > _STRENGTH[allowed]:
                detail = f"receipt claims {receipt.durability.value}, in force {allowed.value}"
                self.report("receipt", detail, operation)


def _who(witness: Operation | Drain) -> str:
    if isinstance(witness, Drain):
        return f"drain of replica {witness.replica}"
    return f"operation {witness.op_id}"
