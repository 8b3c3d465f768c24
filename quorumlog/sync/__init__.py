"""The same client for programs without asyncio.

The same names, blocking. These modules import the asynchronous client and add no rule of their own;
users import this package, and `pipeline` for its connection.
"""

from quorumlog.records.queues import Queue
from quorumlog.sync.client import (
    Admin,
    Client,
    ConsumeTransaction,
    Delivery,
    GroupConsumer,
    PopConsumer,
    Producer,
    PullConsumer,
    Transaction,
    TransactionalProducer,
    connect,
)
from quorumlog.sync.client import Raw as Raw

__all__ = [
    "Admin", "Client", "ConsumeTransaction", "Delivery", "GroupConsumer", "PopConsumer",
    "Producer", "PullConsumer", "Queue", "Transaction", "TransactionalProducer", "connect",
]  # fmt: skip
