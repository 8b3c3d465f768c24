"""The checkers are tested harder than what they test: against search, plants and clean runs."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random

import pytest

from checkers import history
from checkers.checker import check_log
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
)
from checkers.register import check_register_by_index, check_register_by_zones
from raft.errors import Outcome
from tests.checkers.histories import (
    QUEUE,
    call,
    clean_history,
    drain_of,
    is_legal_log,
    is_legal_register,
    random_log,
    random_register,
)

History = tuple[list[Operation], list[Drain]]


def test_log_checker_agrees_with_exhaustive_search() -> None:
    random = Random(1)
    illegal = 0
    for _ in range(4000):
        operations = random_log(random, random.randint(2, 7))
        expected = is_legal_log(operations)
        illegal += not expected
        violations = check_log(operations, [drain_of(operations)])
        assert (not violations) == expected, operations
    assert 500 < illegal < 3500


def test_zones_agree_with_exhaustive_search() -> None:
    random = Random(2)
    illegal = 0
    for _ in range(4000):
        operations = random_register(random, random.randint(2, 7))
        expected = is_legal_register(operations)
        illegal += not expected
        assert (not check_register_by_zones(operations)) == expected, operations
    assert 500 < illegal < 3500


def test_register_indexes_agree_with_zones_on_what_is_legal() -> None:
    """Give legal histories the indexes of one legal order: both judges must accept; with an order
    that breaks time the judge by index must refuse."""
    random = Random(3)
    refused = accepted = 0
    for _ in range(2000):
        count = random.randint(2, 7)
        operations = []
        value: int | None = None
        index = -1
        for op_id in range(count):
            moment = random.randrange(20) if random.random() < 0.2 else 3 * op_id + 10
            span = (moment - random.randrange(4), moment + random.randrange(4))
            if random.random() < 0.5:
                value, index = op_id, index + random.randint(1, 3)
                operations.append(call(op_id, Kind.PUT, span, value, index))
            else:
                operations.append(call(op_id, Kind.GET, span, None, Seen(value, index)))
        is_legal = not any(
            later.invoke_ns > (earlier.return_ns or 0)
            for at, later in enumerate(operations)
            for earlier in operations[at + 1 :]
            # Two reads of one value may swap; everything else is fixed by the indexes.
            if not (later.kind is earlier.kind is Kind.GET and later.result == earlier.result)
        )
        violations = check_register_by_index(operations)
        assert (not violations) == is_legal, operations
        if is_legal:
            assert check_register_by_zones(operations) == []
        accepted, refused = accepted + is_legal, refused + (not is_legal)
    assert min(accepted, refused) > 200


def test_clean_histories_are_not_reported() -> None:
    random = Random(4)
    for _ in range(300):
        operations, drains = clean_history(random, 120)
        assert check_log(operations, drains) == []


def _acked(operations: list[Operation]) -> list[int]:
    return [
        at
        for at, operation in enumerate(operations)
        if operation.kind is Kind.APPEND and operation.outcome is Outcome.APPLIED
    ]


def _drop(random: Random, history: History) -> str:
    operations, drains = history
    offset = operations[random.choice(_acked(operations))].result.offset  # type: ignore[union-attr]
    values = list(drains[0].values)
    del values[offset]
    drains[0] = drains[0]._replace(values=values)
    return "lost"


def _swap(random: Random, history: History) -> str:
    drains = history[1]
    values = list(drains[1].values)
    at = random.randrange(len(values) - 1)
    values[at], values[at + 1] = values[at + 1], values[at]
    drains[1] = drains[1]._replace(values=values)
    return "divergence"


def _double(random: Random, history: History) -> str:
    again = random.choice(history[1][0].values)
    history[1][:] = [drain._replace(values=[*drain.values, again]) for drain in history[1]]
    return "duplicate"


def _shift_time(random: Random, history: History) -> str:
    """An append is said to have begun after a later one had ended."""
    operations = history[0]
    at = random.choice(_acked(operations)[:-1])
    late = max(operation.return_ns or 0 for operation in operations) + 10
    operations[at] = operations[at]._replace(invoke_ns=late, return_ns=late + 5)
    return "real_time"


def _change_byte(random: Random, history: History) -> str:
    drains = history[1]
    values = list(drains[2].values)
    values[random.randrange(len(values))] = 10**9 + random.randrange(99)
    drains[2] = drains[2]._replace(values=values)
    return "phantom"


def _resurrect(random: Random, history: History) -> str:
    """What was refused for certain turns up in every replica."""
    operations, drains = history
    refused = [op for op in operations if op.outcome is Outcome.NOT_APPLIED]
    call_ = random.choice(refused).request
    assert isinstance(call_, AppendCall)
    drains[:] = [drain._replace(values=[*drain.values, call_.value]) for drain in drains]
    return "aborted_read"


def _stale_tail(random: Random, history: History) -> str:
    operations = history[0]
    late = max(operation.return_ns or 0 for operation in operations) + 10
    last = operations[_acked(operations)[-1]].result
    assert isinstance(last, HistoryReceipt)
    end = random.randrange(last.offset + 1)
    operations.append(call(10**6, Kind.TAIL, (late, late + 1), None, end))
    return "stale_read"


def _hole(random: Random, history: History) -> str:
    drains = history[1]
    values = list(drains[0].values)
    values[random.randrange(len(values))] = None
    drains[0] = drains[0]._replace(values=values)
    return "hole"


def _skip(random: Random, history: History) -> str:
    operations, drains = history
    at = random.randrange(len(drains[0].values) - 3)
    for step, offset in enumerate((at, at + 2)):
        records = Records(((offset, drains[0].values[offset]),))  # type: ignore[arg-type]
        late = 10**6 + 10 * step
        operations.append(
            call(late, Kind.POLL, (late, late + 1), ReadCall(offset, 1), records, process=77)
        )
    return "skip"


def _step_back(random: Random, history: History) -> str:
    _skip(random, history)
    operations = history[0]
    operations[-2], operations[-1] = operations[-1], operations[-2]
    return "non_monotonic"


def _own_order(random: Random, history: History) -> str:
    """One process gets its second append placed before its first, with overlapping time stamps."""
    operations = history[0]
    low, high = sorted(random.sample(_acked(operations), 2))
    first = operations[high]._replace(process=55, invoke_ns=0, return_ns=10**6)
    second = operations[low]._replace(process=55, invoke_ns=1, return_ns=10**6)
    operations[low], operations[high] = second, first
    return "own_order"


@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "plant",
    [
        _drop,
        _swap,
        _double,
        _shift_time,
        _change_byte,
        _resurrect,
        _stale_tail,
        _hole,
        _skip,
        _step_back,
        _own_order,
    ],
)
def test_planted_violation_is_always_found(
    plant: Callable[[Random, History], str], count: int
) -> None:
    for seed in range(count):
        random = Random(seed)
        history = clean_history(random, 250)
        rule = plant(random, history)
        rules = {violation.rule for violation in check_log(*history)}
        assert rule in rules, f"seed {seed}: planted {rule}, found {rules}"


def test_acked_record_that_readers_passed_over_is_found_without_a_drain() -> None:
    """Two readers begin at different places and together leave one acked record unread."""
    operations = [
        call(at, Kind.APPEND, (at, at + 1), AppendCall(at), HistoryReceipt(at)) for at in range(4)
    ]
    for at in (0, 1, 3):
        records = Records(((at, at),))
        operations.append(call(10 + at, Kind.POLL, (50, 51), ReadCall(at, 1), records))
    assert [violation.rule for violation in check_log(operations)] == ["unread"]


def test_new_assignment_restarts_only_the_named_queue() -> None:
    def poll(op_id: int, queue: str, offset: int) -> Operation:
        records = Records(((offset, f"{queue}{offset}"),))
        read = call(op_id, Kind.POLL, (op_id, op_id), ReadCall(offset, 1), records, process=7)
        return read._replace(queue=queue)

    appends = [
        call(at, Kind.APPEND, (0, 1), AppendCall(f"{queue}{at}"), HistoryReceipt(at))._replace(
            queue=queue
        )
        for queue in ("a", "b")
        for at in range(3)
    ]
    assigned = call(20, Kind.ASSIGN, (20, 20), ("a",), None, process=7)
    operations = [*appends, poll(10, "a", 0), poll(11, "b", 0), assigned]
    drains = [Drain(1, queue, 0, [f"{queue}{at}" for at in range(3)]) for queue in ("a", "b")]

    assert check_log([*operations, poll(30, "a", 2)], drains) == []
    violations = check_log([*operations, poll(30, "b", 2)], drains)
    assert [(violation.rule, violation.queue) for violation in violations] == [("skip", "b")]


def test_receipts_are_held_to_their_claim() -> None:
    weak = HistoryReceipt(0, HistoryDurability.REPLICATED)
    append = call(1, Kind.APPEND, (10, 20), AppendCall("x"), weak)
    empty = Drain(1, QUEUE, 0, [])
    power_loss = FaultNote("power_loss", 30)

    assert [found.rule for found in check_log([append], [empty])] == ["lost"]
    assert check_log([append], [empty], [power_loss]) == []
    strong = append._replace(result=HistoryReceipt(0, HistoryDurability.QUORUM_DURABLE))
    assert [found.rule for found in check_log([strong], [empty], [power_loss])] == ["lost"]
    mode = FaultNote("mode", 5, HistoryDurability.REPLICATED)
    full = Drain(1, QUEUE, 0, ["x"])
    assert [found.rule for found in check_log([strong], [full], [mode])] == ["receipt"]
    assert check_log([append], [full], [mode]) == []


def test_at_least_must_be_honoured() -> None:
    read = call(1, Kind.POLL, (0, 1), ReadCall(0, 5, at_least=3), Records((), end=2))
    assert [found.rule for found in check_log([read])] == ["receipt"]
    honoured = read._replace(result=Records((), end=3))
    assert check_log([honoured]) == []


def test_history_survives_its_file() -> None:
    operations, _ = clean_history(Random(5), 60)
    operations.append(call(900, Kind.ASSIGN, (1, 2), ("a", "b"), None))
    operations.append(call(901, Kind.GET, (1, 2), None, Seen("v", 3)))
    file = io.StringIO()
    history.write(operations, file)
    assert [history.from_json(line) for line in file.getvalue().splitlines()] == operations


@pytest.mark.parametrize("line", ["{}\n", '{"op_id":1,"kind":"dance"}\n', "[]\n", "x\n"])
def test_line_of_another_format_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not a |Expecting value"):
        history.from_json(line)
