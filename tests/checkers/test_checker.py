"""The checkers are tested harder than what they test: against search here, and with planted
violations in `tests/chaos/test_checker.py`."""

from __future__ import annotations

import io
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
