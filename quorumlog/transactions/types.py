"""Values about transactions: a question, an open one, and one with its messages.

Owns values; must not know calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict

from quorumlog.errors import InvalidRequestError
from quorumlog.pb import transaction_pb2
from quorumlog.records import values
from quorumlog.records.message import Message
from quorumlog.records.options import Decision
from quorumlog.records.values import of_pb


def as_decision(value: Decision | str) -> Decision:
    """Accept a decision that ends a transaction. Raises InvalidRequestError."""
    decision = Decision.of(value)
    if decision is Decision.UNKNOWN:
        raise InvalidRequestError("a transaction does not end as unknown; use commit or rollback")
    return decision


PB_OUTCOMES: Final = {
    Decision.COMMIT: transaction_pb2.TRANSACTION_OUTCOME_COMMITTED,
    Decision.ROLLBACK: transaction_pb2.TRANSACTION_OUTCOME_ROLLED_BACK,
}
OUTCOMES: Final = {
    transaction_pb2.TRANSACTION_OUTCOME_UNSPECIFIED: "open",
    transaction_pb2.TRANSACTION_OUTCOME_COMMITTED: "committed",
    transaction_pb2.TRANSACTION_OUTCOME_ROLLED_BACK: "rolled back",
    transaction_pb2.TRANSACTION_OUTCOME_GIVEN_UP: "given up",
    transaction_pb2.TRANSACTION_OUTCOME_EXPIRED: "expired",
}


class HalfOptions(TypedDict, total=False):
    """Options of `TransactionalProducer.begin`, for the calls that hand them on to it. Calls of a
    producer have parameters, since passing options on costs a third of such a call; a test compares
    them."""

    key: str | None
    """Indexed for `query_by_key`, several with one blank between. Chooses group and queue."""
    tag: str | None
    """Consumers can filter by it."""
    queue_id: int | None
    """The queue; None: chosen by `key`, or round robin a batch at a time."""
    properties: Mapping[str, str] | None
    broker_group: str
    """Name of the broker group; empty: chosen by `queue_id` or `key`."""


@dataclass(frozen=True, slots=True)
class CheckedTransaction:
    """A transaction that the cluster asks about, because it is still open after a while.

    `transaction_id` is unique within its `broker_group`. `check_count` counts this question.
    """

    transaction_id: int
    broker_group: str
    producer_group: str
    check_count: int
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """One transaction that is open. `is_orphaned`: it is due, and no producer can be asked."""

    transaction_id: int
    broker_group: str
    producer_group: str
    begun_unix_ms: int
    message_count: int
    size_bytes: int
    check_count: int
    next_check_unix_ms: int
    is_orphaned: bool

    @classmethod
    def of(cls, info: Any, broker_group: str) -> Self:
        """Decode the answer of a node."""
        return of_pb(cls, info, broker_group=broker_group, message_count=info.record_count)

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction: open, with its messages, or ended, with its outcome only."""

    transaction_id: int
    broker_group: str
    outcome: str
    """open, committed, rolled back, given up or expired."""
    info: TransactionInfo | None
    messages: list[Message]
