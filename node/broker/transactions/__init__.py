"""The broker's part of transactions: half messages in, the end of each, and who is asked."""

from node.broker.transactions.calls import TransactionCalls

__all__ = ["TransactionCalls"]
