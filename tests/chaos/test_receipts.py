"""Receipts that nobody could give are found, one by one; those that somebody could are left."""

import pytest
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


EARLY, LATE = (900, 1_100), (1_001, 1_100)
OVER = Moment(1_000, 4, 500, until_ns=2_000)
TERM_4 = {"only_term": True}


@pytest.mark.parametrize(
    ("span", "at", "moment", "how", "why"),
    [
        (EARLY, (499, 4), MOMENT, {}, None),
        ((100, 200), (10_000, 9), MOMENT, {}, None),
        ((1_100, None), (10, 4), MOMENT, {}, None),
        (LATE, (10, 4), MOMENT, {}, "'a' at 10 of term 4: the call began"),
        (EARLY, (10, 5), MOMENT, {}, "no node led that term, the last was 4"),
        (EARLY, (500, 4), MOMENT, {}, "the log ends at 500"),
        (EARLY, (500, 4), Moment(1_000, 4), {}, None),
        # A later leader may ack where only the old one is judged.
        (LATE, (10, 5), MOMENT, TERM_4, None),
        (LATE, (10, 4), MOMENT, TERM_4, "the call began"),
        ((1_100, 2_001), (10, 4), OVER, {}, None),
        ((1_100, 2_000), (10, 4), OVER, {}, "the call began"),
    ],
)
@pytest.mark.parametrize("kind", [Kind.APPEND, Kind.PUT])
def test_receipts_that_no_node_could_give_are_found_and_no_others(
    span: tuple[int, int | None],
    at: tuple[int, int],
    moment: Moment,
    how: dict[str, bool],
    why: str | None,
    kind: Kind,
) -> None:
    position, term = at
    places: dict[Value, MessagePlace] = {"a": MessagePlace(term, position, "q0", 0)}
    problems = strays([call("a", *span, term, kind)], places, moment, **how)
    assert len(problems) == (why is not None)
    assert all(str(why) in problem for problem in problems)


def test_receipts_of_an_epoch_are_counted_by_the_beginning_of_their_calls() -> None:
    history = [call("a", 900, 1_100), call("b", 1_100, 1_200), call("c", 1_100, None),
               call("d", 1_100, 1_200, term=5)]  # fmt: skip
    assert acked_count(history, since_ns=1_000, term=4) == 1
