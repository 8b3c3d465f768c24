"""The table of the services of `quorumlog.v1`: the method that answers each call.

Owns the table. A call of a proto file that the table lacks stops the node at start.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

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


class AdminMethods(Protocol):
    """The calls of AdminService that belong to the node, not to its broker, and the drain of its
    stop."""

    async def node_status(self, request: admin_pb2.NodeStatusRequest, /) -> Any: ...
    async def transfer_leadership(self, request: admin_pb2.TransferLeadershipRequest, /) -> Any: ...
    async def change_member(self, request: admin_pb2.ChangeMemberRequest, /) -> Any: ...
    async def drain(self, request: admin_pb2.DrainRequest, /) -> Any: ...
    async def accept_loss(self, request: admin_pb2.AcceptLossRequest, /) -> Any: ...
    async def chain_digest(self, request: admin_pb2.ChainDigestRequest, /) -> Any: ...
    async def ha_status(self, request: admin_pb2.HaStatusRequest, /) -> Any: ...
    async def ha_promote(self, request: admin_pb2.HaPromoteRequest, /) -> Any: ...
    async def retire(self, timeout_ms: int, /) -> None:
        """Give leadership up and answer the pending appends; new ones are refused already."""
        ...


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
    calls: ServedCalls, broker: Broker, admin: AdminMethods, nameserver: NameServerCalls
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the gRPC handler of each service."""

    def append_stream(requests: AsyncIterator[Any]) -> AsyncIterator[log_pb2.AppendResponse]:
        stream = AppendStream(
            broker.append_nowait, lambda error: calls.failed(_APPEND_STREAM, error)
        )
        return stream.responses(requests)

    log: dict[str, Method] = {
        "Append": broker.append,
        "AppendStream": append_stream,
        "Pull": broker.pull,
        "Tail": broker.tail,
        "GetMessage": broker.queries.get_message,
        "QueryByKey": broker.queries.query_by_key,
        "QueueOffsets": broker.queries.queue_offsets,
        "OffsetByTime": broker.queries.offset_by_time,
        "ClaimProducer": broker.incarnations.claim_producer,
        "Route": broker.route,
    }
    consumer: dict[str, Method] = {
        "Heartbeat": broker.groups.heartbeat,
        "LeaveGroup": broker.groups.leave_group,
        "CommitOffsets": broker.groups.commit_offsets,
        "FetchOffsets": broker.groups.fetch_offsets,
    }
    administration: dict[str, Method] = {
        "CreateTopic": broker.topics.create_topic,
        "DeleteTopic": broker.topics.delete_topic,
        "ListTopics": broker.topics.list_topics,
        "DescribeTopic": broker.topics.describe_topic,
        "ListGroups": broker.groups.list_groups,
        "DescribeGroup": broker.groups.describe_group,
        "DeleteGroup": broker.groups.delete_group,
        "NodeStatus": admin.node_status,
        "TransferLeadership": admin.transfer_leadership,
        "ChangeMember": admin.change_member,
        "Drain": admin.drain,
        "AcceptLoss": admin.accept_loss,
        "ChainDigest": admin.chain_digest,
        "HaStatus": admin.ha_status,
        "HaPromote": admin.ha_promote,
    }
    tables = {_LOG: log, _CONSUMER: consumer, _ADMIN: administration, **_features(broker)}
    found = {service: calls.handler(service, methods) for service, methods in tables.items()}
    return found | nameserver_handlers(calls, nameserver)


def _features(broker: Broker) -> dict[ServiceDescriptor, dict[str, Method]]:
    """Return the methods of the services that each serve one feature."""
    retry: dict[str, Method] = {
        "RetryLater": broker.retry.retry_later,
        "ResendDeadLetters": broker.dead_letters.resend_dead_letters,
        "ListDeadLetters": broker.dead_letters.list_dead_letters,
        "GetGroupSettings": broker.group_settings.get_group_settings,
        "SetGroupSettings": broker.group_settings.set_group_settings,
        "ExportConfigFiles": broker.config_files.export_config_files,
        "ImportConfigFiles": broker.config_files.import_config_files,
    }
    pop: dict[str, Method] = {
        "Receive": broker.pop.receive,
        "Ack": broker.pop.ack,
        "ChangeInvisible": broker.pop.change_invisible,
        "GiveUp": broker.pop.give_up,
        "DescribePop": broker.pop.describe_pop,
    }
    delay: dict[str, Method] = {
        "CancelDelayed": broker.delay.cancel_delayed,
        "DelayStatus": broker.delay.delay_status,
    }
    transaction: dict[str, Method] = {
        "EndTransaction": broker.transactions.end_transaction,
        "CheckTransactions": broker.transactions.check_transactions,
        "ListTransactions": broker.transactions.list_transactions,
        "DescribeTransaction": broker.transactions.describe_transaction,
        "CommitConsumed": broker.consumed.commit_consumed,
    }
    lookup: dict[str, Method] = {
        "TraceMessage": broker.lookup.trace_message,
        "TopicSizes": broker.lookup.topic_sizes,
    }
    return {
        _RETRY: retry,
        _POP: pop,
        _DELAY: delay,
        _TRANSACTION: transaction,
        _LOOKUP: lookup,
    }


def nameserver_handlers(
    calls: ServedCalls, nameserver: NameServerCalls
) -> dict[ServiceDescriptor, grpc.GenericRpcHandler]:
    """Return the handler of the name server's service, which also runs in its own process."""
    methods: dict[str, Method] = {
        "NameServerStatus": nameserver.name_server_status,
        "TopicRoute": nameserver.topic_route,
        "GetValues": nameserver.get_values,
        "PutValue": nameserver.put_value,
        "DeleteValue": nameserver.delete_value,
        "Report": nameserver.report,
    }
    return {_NAMESERVER: calls.handler(_NAMESERVER, methods)}
