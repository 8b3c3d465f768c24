"""The broker's part of transactions.

Half messages in, the end of each, and the questions to producers. These modules import `core`,
`append` and `records`; only the face of the broker imports them.
"""

from node.broker.transactions.calls import TransactionCalls

__all__ = ["TransactionCalls"]
