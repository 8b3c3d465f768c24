"""Errors about transactions, and about offsets that are stored under a condition.

Owns names, codes and texts, as `node.errors.common` does.
"""

from node.errors.common import NodeError


class UnknownTransactionError(NodeError):
    """No such transaction was begun here, or it ended too long ago for its outcome to be known."""

    code, status = "node.unknown_transaction", "NOT_FOUND"
    text = (
        "no transaction {transaction_id} is open, and none that ended lately has this id; use the "
        "position of the receipt of its half messages"
    )
    transaction_id: int


class TransactionTooLargeError(NodeError):
    """A transaction has more messages than its limit. No message was stored."""

    code, status = "node.limit_exceeded", "INVALID_ARGUMENT"
    text = (
        "the transaction has {record_count} messages or more, the limit is {limit}, since all of "
        "them become visible at one moment; put less into one message each, or use several "
        "transactions; nothing was stored"
    )
    record_count: int
    limit: int


class TransactionEndedError(NodeError):
    """The transaction ended before with another outcome than asked for. The state is unchanged."""

    code, status = "node.transaction_ended", "FAILED_PRECONDITION"
    text = (
        "transaction {transaction_id} was {ended_as} before; nothing was changed, begin a new one "
        "if its messages are still wanted"
    )
    transaction_id: int
    ended_as: str


class OffsetConflictError(NodeError):
    """A consumer group's offset is not what the caller expected: another consumer has moved it.

    Neither messages nor offsets were stored. The consumed messages belong to another consumer by
    now.
    """

    code, status = "node.conflict", "ABORTED"
    group: str
    topic: str
    queue_id: int
    expected: int
    offset: int

    def __str__(self) -> str:
        is_moved = "and was moved there by a tool since these messages were read"
        if self.offset != self.expected:
            is_moved = f"and not {_offset(self.expected)}, another consumer has moved it"
        return (
            f"group {self.group}: the next offset of {self.topic}/{self.queue_id} is "
            f"{_offset(self.offset)} {is_moved}; nothing was stored, forget what was "
            f"made of these messages and read again"
        )


def _offset(offset: int) -> str:
    return str(offset) if offset >= 0 else "not set"
