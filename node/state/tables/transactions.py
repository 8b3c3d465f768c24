"""The open transactions of producers, and how the last ones ended.

Owns which are open and what commands do to them; must not know half messages, producers or clocks.
A transaction is named by the position of its first half message: positions grow and are the same on
every replica. The outcome is kept for a while, so that a repeated call gets the same answer.
"""

from typing import Final, NamedTuple, cast

from node.config.limits import Limits
from node.errors.common import LimitReachedError, NodeError
from node.errors.transactions import UnknownTransactionError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import TransactionOutcome
from store.errors import CorruptionError
from store.files.meta_file import Json

_FORMAT: Final = 1


class OpenTransaction(NamedTuple):
    """A transaction that is neither committed nor rolled back."""

    position: int
    """Log position of the first half message."""
    producer_group: str
    size_bytes: int
    """Size of the half messages, which lie back to back."""
    record_count: int
    begun_unix_ms: int
    check_count: int
    """Count of the questions to a producer about it."""
    next_check_unix_ms: int


class TransactionsTable(Table):
    """Position to open transaction, and to the outcome of one that has ended. Half messages of a
    deleted topic stay: their commit is refused."""

    name, file_name = "transactions", "transactions.json"
    commands = frozenset({"begin_transaction", "check_transactions", "end_transaction"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        form = image.content.get("format", _FORMAT)
        if form != _FORMAT:
            expected = str(_FORMAT)
            raise CorruptionError("state", 0, "format of transactions", expected, str(form))
        rows = cast("list[tuple[int, str, int, int, int, int, int]]", image.content.get("open", []))
        self.open: Final = {row[0]: OpenTransaction(*row) for row in rows}
        """By position, ascending."""
        ended = cast("list[tuple[int, int]]", image.content.get("ended", []))
        self.ended: Final = dict(ended)
        """Outcomes of the last ones, as numbers of TransactionOutcome; the oldest end first."""

    def apply(self, _state: Core, command: Command, position: int) -> NodeError | None:
        """Apply a command; return the refusal if it changes nothing, else None."""
        self.version += 1
        match command.WhichOneof("command"):
            case "begin_transaction":
                return self._begin(command.begin_transaction, position)
            case "check_transactions":
                self._check(command.check_transactions)
            case "end_transaction":
                end = command.end_transaction
                return self._end(end.position, end.outcome)
        return None

    def _begin(self, begin: Command.BeginTransaction, position: int) -> NodeError | None:
        limit = self._limits.open_transaction_count_max
        if len(self.open) >= limit:
            return LimitReachedError("open transactions", len(self.open) + 1, limit)
        first = position - begin.size_bytes
        self.open[first] = OpenTransaction(
            first,
            begin.producer_group,
            begin.size_bytes,
            begin.record_count,
            begin.begun_unix_ms,
            0,
            begin.check_unix_ms,
        )
        return None

    def _check(self, check: Command.CheckTransactions) -> None:
        for position in check.positions:
            transaction = self.open.get(position)
            if transaction is not None:  # Else ended meanwhile.
                self.open[position] = transaction._replace(
                    check_count=transaction.check_count + 1, next_check_unix_ms=check.next_unix_ms
                )

    def _end(self, position: int, outcome: int) -> NodeError | None:
        if self.open.pop(position, None) is None:
            return UnknownTransactionError(position)
        self.ended[position] = outcome
        if len(self.ended) > self._limits.ended_transaction_count_max:
            del self.ended[next(iter(self.ended))]
        return None

    def content(self) -> TableContent:
        """Return all of it; rows never change, so only the lists are copied."""
        return {
            "format": _FORMAT,
            "open": cast("list[Json]", list(self.open.values())),
            "ended": cast("list[Json]", list(self.ended.items())),
        }


def outcome_name(outcome: int) -> str:
    """Return an outcome as people say it."""
    name = str(TransactionOutcome.Name(outcome))
    return name.removeprefix("TRANSACTION_OUTCOME_").lower().replace("_", " ")
