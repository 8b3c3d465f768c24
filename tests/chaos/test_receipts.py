"""Receipts that nobody could give are found, one by one; those that somebody could are left."""

from chaos.losses import MessagePlace
from chaos.receipts import Moment, acked_count, strays

from checkers.history import AppendCall, HistoryReceipt, Kind, Operation, Value
from raft.errors import Outcome

MOMENT = Moment(at_ns=1_000, term=4, end_position=500)


def call(
    value: str, invoke_ns: int, return_ns: int | None, term: int = 4, kind: Kind = Kind.APPEND
) -> Operation:
    outcome = Outcome.UNKNOWN if return_ns is None else Outcome.APPLIED
    request = AppendCall(value) if kind is Kind.APPEND else value
    result = HistoryReceipt(0) if kind is Kind.APPEND else 0
    return Operation(0, 1, kind, "q0", invoke_ns, return_ns, outcome, request, result, 1, term)


def place(position: int, term: int = 4) -> MessagePlace:
    return MessagePlace(term, position, "q0", 0)


def found(
    operation: Operation, at: MessagePlace, moment: Moment = MOMENT, **how: bool
) -> list[str]:
    request = operation.request
    value = request.value if isinstance(request, AppendCall) else request
    assert isinstance(value, str)
    places: dict[Value, MessagePlace] = {value: at}
    return strays([operation], places, moment, **how)


def test_a_receipt_may_arrive_after_the_decision() -> None:
    assert not found(call("a", 900, 1_100), place(499))
    assert not found(call("a", 100, 200), place(10_000, term=9))
    assert not found(call("a", 1_100, None), place(10))


def test_a_single_call_that_began_later_and_was_acked_is_found() -> None:
    (text,) = found(call("a", 1_001, 1_100), place(10))
    assert "the call began" in text
    (text,) = found(call("a", 1_001, 1_100, kind=Kind.PUT), place(10))
    assert "'a' at 10 of term 4" in text


def test_a_receipt_of_a_term_that_nobody_led_is_found() -> None:
    (text,) = found(call("a", 900, 1_100, term=5), place(10, term=5))
    assert "no node led that term, the last was 4" in text


def test_a_receipt_behind_the_end_of_its_leaders_log_is_found() -> None:
    (text,) = found(call("a", 900, 1_100), place(500))
    assert "the log ends at 500" in text
    assert not found(call("a", 900, 1_100), place(500), Moment(1_000, 4))


def test_a_later_leader_may_ack_where_only_the_old_one_is_judged() -> None:
    assert not found(call("a", 1_100, 1_200, term=5), place(10, term=5), only_term=True)
    assert found(call("a", 1_100, 1_200), place(10), only_term=True)


def test_receipts_after_the_end_are_left_alone() -> None:
    over = Moment(1_000, 4, 500, until_ns=2_000)
    assert not found(call("a", 1_100, 2_001), place(10), over)
    assert found(call("a", 1_100, 2_000), place(10), over)


def test_receipts_of_an_epoch_are_counted_by_the_beginning_of_their_calls() -> None:
    history = [call("a", 900, 1_100), call("b", 1_100, 1_200), call("c", 1_100, None),
               call("d", 1_100, 1_200, term=5)]  # fmt: skip
    assert acked_count(history, since_ns=1_000, term=4) == 1
