"""Errors about transactions, and about offsets that are stored under a condition.

Owns names, codes and texts, as `node.errors.common` does.
"""

from node.errors.common import NodeError


class UnknownTransactionError(NodeError):
    """No such transaction was begun here, or it ended too long ago for its outcome to be known."""

    code, status = "node.unknown_transaction", "NOT_FOUND"

    def __init__(self, transaction_id: int) -> None:
        super().__init__(transaction_id)
        self.transaction_id = transaction_id

    def __str__(self) -> str:
        return (
            f"no transaction {self.transaction_id} is open, and none that ended lately has this "
            f"id; use the position of the receipt of its half messages"
        )


class TransactionTooLargeError(NodeError):
    """A transaction has more messages than its limit. No message was stored."""

    code, status = "node.limit_exceeded", "INVALID_ARGUMENT"

    def __init__(self, record_count: int, limit: int) -> None:
        super().__init__(record_count, limit)
        self.record_count, self.limit = record_count, limit

    def __str__(self) -> str:
        return (
            f"the transaction has {self.record_count} messages or more, the limit is {self.limit}, "
            f"since all of them become visible at one moment; put less into one message each, or "
            f"use several transactions; nothing was stored"
        )


class TransactionEndedError(NodeError):
    """The transaction ended before with another outcome than asked for. The state is unchanged."""

    code, status = "node.transaction_ended", "FAILED_PRECONDITION"

    def __init__(self, transaction_id: int, outcome: str) -> None:
        super().__init__(transaction_id, outcome)
        self.transaction_id, self.ended_as = transaction_id, outcome

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction_id} was {self.ended_as} before; nothing was changed, "
            f"begin a new one if its messages are still wanted"
        )


class OffsetConflictError(NodeError):
    """A consumer group's offset is not what the caller expected: another consumer has moved it.

    Neither messages nor offsets were stored. The consumed messages belong to another consumer by
    now.
    """

    code, status = "node.conflict", "ABORTED"

    def __init__(self, group: str, topic: str, queue_id: int, expected: int, offset: int) -> None:
        super().__init__(group, topic, queue_id, expected, offset)
        self.group, self.topic, self.queue_id = group, topic, queue_id
        self.expected, self.offset = expected, offset

    def __str__(self) -> str:
        return (
            f"group {self.group}: the next offset of {self.topic}/{self.queue_id} is "
            f"{_offset(self.offset)} and not {_offset(self.expected)}, another consumer has moved "
            f"it; nothing was stored, forget what was made of these messages and read again"
        )


def _offset(offset: int) -> str:
    return str(offset) if offset >= 0 else "not set"
