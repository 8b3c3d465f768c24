"""The replicated table of transactions: what commands do, its bounds, its way through a file."""

import pytest

from node.config.limits import Limits
from node.errors.common import LimitReachedError
from node.errors.transactions import UnknownTransactionError
from node.state.state import State
from node.state.tables.table import NOTHING, TableImage
from node.state.tables.transactions import TransactionsTable
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import (
    TRANSACTION_OUTCOME_COMMITTED,
    TRANSACTION_OUTCOME_ROLLED_BACK,
)
from store.errors import CorruptionError

LIMITS = Limits(open_transaction_count_max=3, ended_transaction_count_max=2)


def begin(size_bytes: int = 100, group: str = "g") -> Command:
    made = Command.BeginTransaction(
        producer_group=group,
        size_bytes=size_bytes,
        record_count=1,
        begun_unix_ms=5,
        check_unix_ms=9,
    )
    return Command(begin_transaction=made)


def end(position: int, outcome: int = TRANSACTION_OUTCOME_COMMITTED) -> Command:
    made = Command.EndTransaction(position=position, outcome=outcome)  # type: ignore[arg-type]
    return Command(end_transaction=made)


def filled() -> State:
    state = State(LIMITS)
    for position in (200, 400, 600):
        assert state.apply_command(begin(), position) is None
    check = Command.CheckTransactions(positions=[100, 7, 300], next_unix_ms=50)
    assert state.apply_command(Command(check_transactions=check), 700) is None
    assert state.apply_command(end(300), 800) is None
    return state


def test_commands_do_what_they_say() -> None:
    part = filled().table(TransactionsTable)
    assert list(part.open) == [100, 500]
    assert (part.open[100].check_count, part.open[100].next_check_unix_ms) == (1, 50)
    assert (part.open[500].check_count, part.open[500].next_check_unix_ms) == (0, 9)
    assert part.ended == {300: TRANSACTION_OUTCOME_COMMITTED}
    assert part.version == 5


def test_refused_commands_change_no_transaction() -> None:
    state = filled()
    assert isinstance(state.apply_command(end(300), 900), UnknownTransactionError)
    assert state.apply_command(begin(), 1_000) is None
    assert isinstance(state.apply_command(begin(), 1_200), LimitReachedError)
    assert list(state.table(TransactionsTable).open) == [100, 500, 900]
    assert state.refused_count == 2


def test_the_outcomes_of_the_last_ones_are_kept() -> None:
    state = filled()
    state.apply_command(end(100, TRANSACTION_OUTCOME_ROLLED_BACK), 900)
    state.apply_command(end(500), 1_000)
    ended = state.table(TransactionsTable).ended
    assert list(ended.items()) == [
        (100, TRANSACTION_OUTCOME_ROLLED_BACK),
        (500, TRANSACTION_OUTCOME_COMMITTED),
    ]


def test_a_newer_version_is_refused() -> None:
    assert not TransactionsTable(LIMITS, NOTHING).open
    with pytest.raises(CorruptionError, match="format of transactions"):
        TransactionsTable(LIMITS, TableImage(1, {"format": 2, "open": [], "ended": []}))
