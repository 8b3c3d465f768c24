"""The table of the services of `quorumlog.v1`: the method that answers each call.

Owns which part of the node has the methods of which service, by the names of the proto files. One
that no part has stops the node at start.
"""

import re
from collections.abc import AsyncIterator, Iterable
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
    users_pb2,
)

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")
_APPEND_STREAM = "LogService/AppendStream"
_MODULES: Final = (
    *(log_pb2, consumer_pb2, admin_pb2, retry_pb2, transaction_pb2, lookup_pb2, pop_pb2, delay_pb2),
    nameserver_pb2,
    users_pb2,
)
_BY_NAME: Final[dict[str, ServiceDescriptor]] = {
    name: service
    for module in _MODULES
    for name, service in module.DESCRIPTOR.services_by_name.items()
}
SERVICES: Final = tuple(_BY_NAME.values())
"""The services of a node."""


def handlers(
    calls: ServedCalls,
    broker: Broker,
    admin: object,
    nameserver: NameServerCalls,
    diagnosis: object,
    users: Iterable[object],
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the gRPC handler of each service; `admin` and `diagnosis` have the calls of
    AdminService that belong to the node, not to its broker; `users` have those of UserService."""

    def append_stream(requests: AsyncIterator[Any]) -> AsyncIterator[log_pb2.AppendResponse]:
        stream = AppendStream(
            broker.append_nowait, lambda error: calls.failed(_APPEND_STREAM, error)
        )
        return stream.responses(requests)

    owners: dict[str, tuple[object, ...]] = {
        "LogService": (broker, broker.queries, broker.incarnations),
        "ConsumerService": (broker.groups,),
        "AdminService": (broker.topics, broker.groups, admin, diagnosis),
        "RetryService": (
            *(broker.retry, broker.dead_letters, broker.group_settings, broker.config_files),
        ),
        "PopService": (broker.pop,),
        "DelayService": (broker.delay,),
        "TransactionService": (broker.transactions, broker.consumed),
        "LookupService": (broker.lookup,),
        "UserService": tuple(users),
    }
    own: dict[str, dict[str, Method]] = {"LogService": {"AppendStream": append_stream}}
    generic_handlers = {
        _BY_NAME[name]: calls.handler(
            _BY_NAME[name], _methods(_BY_NAME[name], *parts, **own.get(name, {}))
        )
        for name, parts in owners.items()
    }
    return generic_handlers | nameserver_handlers(calls, nameserver)


def nameserver_handlers(
    calls: ServedCalls, nameserver: NameServerCalls
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the handler of the name server's service, which also runs in its own process."""
    service = _BY_NAME["NameServerService"]
    return {service: calls.handler(service, _methods(service, nameserver))}


def _methods(service: ServiceDescriptor, *owners: object, **methods: Method) -> dict[str, Method]:
    """Return the methods of a service: those given, and the others from the first owner that has
    one under its name as Python writes it."""
    for name, owner in product(service.methods_by_name, owners):
        method = getattr(owner, _CAPITAL.sub("_", name).lower(), None)
        if method is not None:
            methods.setdefault(name, method)
    return methods
