"""QuorumLog: a message log that is replicated to a quorum before it says so.

This package is what users import: the client and the command line. It imports no server code
(store, raft, node), except for single commands of `quorumlog.cli` that work on local files. Names
are loaded when they are first used, so that `import quorumlog` does not wait for gRPC.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog import errors, sync, testing
    from quorumlog.admin import Admin
    from quorumlog.client import Client, connect
    from quorumlog.consume_transactions import ConsumeTransaction
    from quorumlog.consumer import PullConsumer
    from quorumlog.delivery import Delivery, Receipt
    from quorumlog.errors import Outcome, QuorumlogError
    from quorumlog.group import GroupConsumer
    from quorumlog.message import Message, MessageBatch, OutgoingMessage
    from quorumlog.options import Consistency, Durability, Position
    from quorumlog.pop import PopConsumer, PopMessage
    from quorumlog.producer import Producer, ProducerStats
    from quorumlog.queues import Queue
    from quorumlog.reads import QueueOffsets
    from quorumlog.routing import Route, TopicRoute
    from quorumlog.tls import ClientTls
    from quorumlog.transaction_types import CheckedTransaction, Decision
    from quorumlog.transactions import Transaction, TransactionalProducer

__version__ = "0.1.0"

_MODULE_OF = {
    "Admin": "admin",
    "Client": "client",
    "connect": "client",
    "PullConsumer": "consumer",
    "Delivery": "delivery",
    "Receipt": "delivery",
    "Outcome": "errors",
    "QuorumlogError": "errors",
    "GroupConsumer": "group",
    "Message": "message",
    "MessageBatch": "message",
    "OutgoingMessage": "message",
    "Consistency": "options",
    "Durability": "options",
    "Position": "options",
    "PopConsumer": "pop",
    "PopMessage": "pop",
    "Producer": "producer",
    "ProducerStats": "producer",
    "Queue": "queues",
    "QueueOffsets": "reads",
    "Route": "routing",
    "TopicRoute": "routing",
    "ClientTls": "tls",
    "ConsumeTransaction": "consume_transactions",
    "CheckedTransaction": "transaction_types",
    "Decision": "transaction_types",
    "Transaction": "transactions",
    "TransactionalProducer": "transactions",
}
_MODULES = ("errors", "sync", "testing")

__all__ = [
    "Admin",
    "CheckedTransaction",
    "Client",
    "ClientTls",
    "Consistency",
    "ConsumeTransaction",
    "Decision",
    "Delivery",
    "Durability",
    "GroupConsumer",
    "Message",
    "MessageBatch",
    "Outcome",
    "OutgoingMessage",
    "PopConsumer",
    "PopMessage",
    "Position",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "Queue",
    "QueueOffsets",
    "QuorumlogError",
    "Receipt",
    "Route",
    "TopicRoute",
    "Transaction",
    "TransactionalProducer",
    "__version__",
    "connect",
    "errors",
    "sync",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"quorumlog.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"quorumlog.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'quorumlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
