"""The table of the services of `quorumlog.v1`: the method that answers each call.

Owns which part of the node has the methods of which service, by the names of the proto files. One
that no part has stops the node at start.
"""

import re
from collections.abc import AsyncIterator
from itertools import product
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from node.broker import Broker
from node.nameserver.calls import NameServerCalls
from node.services.append_stream import AppendStream
from node.services.calls import Method, ServedCalls
from quorumlog.pb import (
    admin_pb2,
    consumer_pb2,
    delay_pb2,
    log_pb2,
    lookup_pb2,
    nameserver_pb2,
    pop_pb2,
    retry_pb2,
    transaction_pb2,
)

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")
_APPEND_STREAM = "LogService/AppendStream"
_LOG = log_pb2.DESCRIPTOR.services_by_name["LogService"]
_CONSUMER = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
_RETRY = retry_pb2.DESCRIPTOR.services_by_name["RetryService"]
_TRANSACTION = transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"]
_POP = pop_pb2.DESCRIPTOR.services_by_name["PopService"]
_DELAY = delay_pb2.DESCRIPTOR.services_by_name["DelayService"]
_LOOKUP = lookup_pb2.DESCRIPTOR.services_by_name["LookupService"]
_NAMESERVER = nameserver_pb2.DESCRIPTOR.services_by_name["NameServerService"]
SERVICES = (_LOG, _CONSUMER, _ADMIN, _RETRY, _TRANSACTION, _LOOKUP, _POP, _DELAY, _NAMESERVER)
"""The services of a node."""


def handlers(
    calls: ServedCalls, broker: Broker, admin: object, nameserver: NameServerCalls
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the gRPC handler of each service; `admin` has the calls of AdminService that belong to
    the node, not to its broker."""

    def append_stream(requests: AsyncIterator[Any]) -> AsyncIterator[log_pb2.AppendResponse]:
        stream = AppendStream(
            broker.append_nowait, lambda error: calls.failed(_APPEND_STREAM, error)
        )
        return stream.responses(requests)

    log = _methods(_LOG, broker, broker.queries, broker.incarnations, AppendStream=append_stream)
    tables = {
        _LOG: log,
        _CONSUMER: _methods(_CONSUMER, broker.groups),
        _ADMIN: _methods(_ADMIN, broker.topics, broker.groups, admin),
        _RETRY: _methods(
            _RETRY, broker.retry, broker.dead_letters, broker.group_settings, broker.config_files
        ),
        _POP: _methods(_POP, broker.pop),
        _DELAY: _methods(_DELAY, broker.delay),
        _TRANSACTION: _methods(_TRANSACTION, broker.transactions, broker.consumed),
        _LOOKUP: _methods(_LOOKUP, broker.lookup),
    }
    generic_handlers = {
        service: calls.handler(service, methods) for service, methods in tables.items()
    }
    return generic_handlers | nameserver_handlers(calls, nameserver)


def nameserver_handlers(
    calls: ServedCalls, nameserver: NameServerCalls
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the handler of the name server's service, which also runs in its own process."""
    return {_NAMESERVER: calls.handler(_NAMESERVER, _methods(_NAMESERVER, nameserver))}


def _methods(service: ServiceDescriptor, *owners: object, **methods: Method) -> dict[str, Method]:
    """Return the methods of a service: those given, and the others from the first owner that has
    one under its name as Python writes it."""
    for name, owner in product(service.methods_by_name, owners):
        method = getattr(owner, _CAPITAL.sub("_", name).lower(), None)
        if method is not None:
            methods.setdefault(name, method)
    return methods
