"""QuorumLog: a message log that acknowledges a message once a quorum holds it.

Users import this package: the client. It imports no server code (store, raft, node). Names but
errors are loaded when they are first used, so that `import quorumlog` does not wait for gRPC.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from quorumlog import errors
from quorumlog.cluster import program_end  # noqa: F401 - Later it may be too late for it.
from quorumlog.version import __version__

if TYPE_CHECKING:
    from quorumlog import sync, testing
    from quorumlog.admin.admin import Admin
    from quorumlog.client import Client, connect
    from quorumlog.cluster.routes import Route, TopicRoute
    from quorumlog.cluster.tls import ClientTls
    from quorumlog.consume.consumer import PullConsumer
    from quorumlog.consume.group import GroupConsumer
    from quorumlog.consume.pop import PopConsumer, PopMessage
    from quorumlog.consume.reads import QueueOffsets
    from quorumlog.errors import *  # noqa: F403 - as `_ERRORS`.
    from quorumlog.produce.delivery import Delivery
    from quorumlog.produce.producer import Producer, ProducerStats
    from quorumlog.records.message import Message, MessageBatch, OutgoingMessage
    from quorumlog.records.options import Consistency, Decision, Durability, Position
    from quorumlog.records.queues import Queue
    from quorumlog.records.receipt import AppendStages, Receipt
    from quorumlog.transactions.consume import ConsumeTransaction
    from quorumlog.transactions.producer import Transaction, TransactionalProducer
    from quorumlog.transactions.types import CheckedTransaction

if "grpc" not in sys.modules:  # It reads the variable as it is imported; see `cluster.forks`.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_MODULE_OF = {
    name: module
    for module, names in {
        "admin.admin": "Admin",
        "client": "Client connect",
        "cluster.routes": "Route TopicRoute",
        "cluster.tls": "ClientTls",
        "consume.consumer": "PullConsumer",
        "consume.group": "GroupConsumer",
        "consume.pop": "PopConsumer PopMessage",
        "consume.reads": "QueueOffsets",
        "produce.delivery": "Delivery",
        "produce.producer": "Producer ProducerStats",
        "records.message": "Message MessageBatch OutgoingMessage",
        "records.options": "Consistency Decision Durability Position",
        "records.queues": "Queue",
        "records.receipt": "AppendStages Receipt",
        "transactions.consume": "ConsumeTransaction",
        "transactions.producer": "Transaction TransactionalProducer",
        "transactions.types": "CheckedTransaction",
    }.items()
    for name in names.split()
}
_MODULES = ("sync", "testing")
_ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and value.__module__ == errors.__name__
}
"""Every class of `errors`, which loads no gRPC."""
globals().update(_ERRORS)

__all__ = [
    "Admin", "AppendStages", "CheckedTransaction", "Client", "ClientTls", "Consistency",
    "ConsumeTransaction",
    "Decision", "Delivery", "Durability", "GroupConsumer", "Message", "MessageBatch",
    "OutgoingMessage", "PopConsumer", "PopMessage", "Position", "Producer", "ProducerStats",
    "PullConsumer", "Queue", "QueueOffsets", "Receipt", "Route", "TopicRoute", "Transaction",
    "TransactionalProducer", "__version__", "connect", "errors", "sync", "testing",
]  # fmt: skip
__all__ += list(_ERRORS)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"quorumlog.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"quorumlog.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'quorumlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
