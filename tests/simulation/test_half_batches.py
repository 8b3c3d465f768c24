"""The first records of a batch and the whole batch behind them are no duplicate, others are."""

from chaos.verdict import judge

from checkers.history import (
    AppendCall,
    Drain,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Value,
)
from raft.errors import Outcome
from simulation.half_batches import apart


def judged(values: list[Value], receipts: dict[str, int]) -> list[str]:
    """Judge a queue of these values that was written as the receipts say, and read once."""
    writes = [
        Operation(
            n, n, Kind.APPEND, "q0", 0, 1, Outcome.APPLIED, AppendCall(value), HistoryReceipt(at)
        )
        for n, (value, at) in enumerate(receipts.items())
    ]
    seen = Records(tuple(enumerate(values)))
    read = Operation(9, 9, Kind.POLL, "q0", 0, 1, Outcome.APPLIED, ReadCall(0, 64), seen)
    return judge(*apart([*writes, read], [Drain(1, "q0", 0, values)]))


def test_a_half_batch_before_the_whole_one_is_allowed() -> None:
    assert judged(["a", "b", "a", "b", "c"], {"a": 2, "b": 3, "c": 4}) == []


def test_a_copy_in_another_order_is_a_duplicate() -> None:
    (problem,) = judged(["b", "a", "a", "b"], {"a": 2, "b": 3})
    assert "'b' is at 3 and at 0" in problem


def test_a_receipt_of_the_half_that_was_not_acked_is_a_failure() -> None:
    assert any("offset 0" in problem for problem in judged(["a", "a", "b"], {"a": 0, "b": 2}))
