"""Random histories for the tests of the checkers, and the slow search that says what is legal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

from checkers.history import (
    NEVER_NS,
    AppendCall,
    Drain,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Seen,
)
from raft.errors import Outcome

QUEUE = "q"


def call(
    op_id: int,
    kind: Kind,
    span: tuple[int, int | None],
    request: object,
    result: object,
    *,
    process: int | None = None,
    outcome: Outcome = Outcome.APPLIED,
) -> Operation:
    """Build an operation; each has a process of its own unless one is given."""
    return Operation(
        op_id,
        1000 + op_id if process is None else process,
        kind,
        QUEUE,
        span[0],
        span[1],
        outcome,
        request,  # type: ignore[arg-type]
        result,  # type: ignore[arg-type]
    )


def returned(operation: Operation) -> int:
    return NEVER_NS if operation.return_ns is None else operation.return_ns


def random_log(random: Random, count: int, *, span: int = 12) -> list[Operation]:
    """Return appends with distinct dense offsets and tails, at random times: often illegal."""
    operations = []
    appends = random.randint(1, count - 1)
    offsets = list(range(appends))
    random.shuffle(offsets)
    for op_id in range(count):
        begin = random.randrange(span)
        end = begin + random.randrange(1, span)
        if op_id < appends:
            receipt = HistoryReceipt(offsets[op_id])
            operations.append(call(op_id, Kind.APPEND, (begin, end), AppendCall(op_id), receipt))
        else:
            tail = random.randint(0, appends)
            operations.append(call(op_id, Kind.TAIL, (begin, end), None, tail))
    random.shuffle(operations)
    return operations


def drain_of(operations: Sequence[Operation]) -> Drain:
    """Return the log that the acks describe."""
    by_offset: dict[int, int] = {}
    for operation in operations:
        if operation.kind is Kind.APPEND and isinstance(operation.result, HistoryReceipt):
            assert isinstance(operation.request, AppendCall)
            assert isinstance(operation.request.value, int)
            by_offset[operation.result.offset] = operation.request.value
    return Drain(1, QUEUE, 0, [by_offset[offset] for offset in range(len(by_offset))])


def random_register(random: Random, count: int, *, span: int = 12) -> list[Operation]:
    """Return unique puts, some of unknown outcome, and gets of any value, at random times."""
    operations = []
    puts = random.randint(1, count - 1)
    for op_id in range(count):
        begin = random.randrange(span)
        end = begin + random.randrange(1, span)
        if op_id < puts:
            if random.random() < 0.2:
                outcome, until = Outcome.UNKNOWN, None
            else:
                outcome, until = Outcome.APPLIED, end
            operations.append(call(op_id, Kind.PUT, (begin, until), op_id, 0, outcome=outcome))
        else:
            value = random.choice([None, *range(puts)])
            operations.append(call(op_id, Kind.GET, (begin, end), None, Seen(value, -1)))
    return operations


def is_legal_log(operations: Sequence[Operation]) -> bool:
    """Search for an order of all calls that respects time and gives every result."""

    def effect(state: object, at: int) -> object:
        operation = operations[at]
        if operation.kind is Kind.APPEND:
            assert isinstance(operation.result, HistoryReceipt)
            assert isinstance(state, tuple)
            return (state[0] + 1,) if (operation.result.offset,) == state else None
        return state if (operation.result,) == state else None

    return _search(operations, (0,), effect)


def is_legal_register(operations: Sequence[Operation]) -> bool:
    """The same for a register; an unknown put may also never have happened."""

    def effect(state: object, at: int) -> object:
        operation = operations[at]
        if operation.kind is Kind.PUT:
            return (operation.request,)
        assert isinstance(operation.result, Seen)
        return state if state == (operation.result.value,) else None

    return _search(operations, (None,), effect)


def _search(
    operations: Sequence[Operation], initial: object, effect: Callable[[object, int], object]
) -> bool:
    count = len(operations)
    must = sum(1 << at for at in range(count) if operations[at].outcome is Outcome.APPLIED)

    @cache
    def reachable(done: int, state: object) -> bool:
        if done & must == must:
            return True
        pending = [at for at in range(count) if not done >> at & 1]
        first_end = min(returned(operations[at]) for at in pending)
        for at in pending:
            if operations[at].invoke_ns <= first_end:
                following = effect(state, at)
                if following is not None and reachable(done | 1 << at, following):
                    return True
        return False

    return reachable(0, initial)


def clean_history(random: Random, count: int) -> tuple[list[Operation], list[Drain]]:
    """Simulate honest clients of one honest log: every kind of call, always legal."""
    log: list[int] = []
    operations: list[Operation] = []
    clock = 0
    pollers = {900: 0, 901: 0}
    for op_id in range(count):
        clock += random.randrange(1, 5)
        begin = clock - random.randrange(0, 4)
        kind = random.choice([Kind.APPEND, Kind.APPEND, Kind.TAIL, Kind.READ, Kind.POLL])
        end: int | None = clock + random.randrange(0, 4)
        outcome = Outcome.APPLIED
        request: object = None
        result: object = None
        process = 1000 + op_id
        if kind is Kind.APPEND:
            request = AppendCall(op_id, process, 0)
            draw = random.random()
            if draw < 0.1:
                outcome, end = Outcome.NOT_APPLIED, clock
            else:
                result = HistoryReceipt(len(log))
                log.append(op_id)
                if draw < 0.2:
                    outcome, end, result = Outcome.UNKNOWN, None, None
        elif kind is Kind.TAIL:
            result = len(log)
        else:
            offset = random.randint(0, len(log))
            if kind is Kind.POLL:
                process = random.choice(list(pollers))
                offset = pollers[process]
            wanted = random.randint(1, 4)
            records = tuple(enumerate(log[offset : offset + wanted], offset))
            request, result = ReadCall(offset, wanted), Records(records)
            if kind is Kind.POLL:
                pollers[process] += len(records)
        operations.append(
            call(op_id, kind, (begin, end), request, result, process=process, outcome=outcome)
        )
    return operations, [Drain(replica, QUEUE, 0, list(log)) for replica in (1, 2, 3)]
