"""The calls of NameServerService: protobuf in, protobuf out.

Owns the effect of each call and the mapping of refusals to errors. Must not know gRPC. The replica
in this process answers reads without waiting; a change is confirmed before it is answered.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from node.errors.common import BadRequestError
from node.errors.nameserver import (
    DirectoryRefusedError,
    NameServerOffError,
    ReplicaFailedError,
    ValueChangedError,
    ValueNotFoundError,
)
from node.nameserver.directory.directory import (
    PAIR_SIZE_BYTES_MAX,
    Command,
    Directory,
    delete_pair_command,
    pair_size_bytes,
    put_pair_command,
)
from node.nameserver.directory.fields import RESULT, Result
from node.nameserver.directory.groups import GROUP, Group, RegisteredBroker
from node.nameserver.directory.routes import (
    KnownGroupRoute,
    groups,
    other_groups,
    route,
    version_of,
)
from node.nameserver.service import NameServerService
from node.runtime.accounts import Kind
from node.runtime.clock import unix_ms
from node.runtime.shares import Shares
from quorumlog.pb import nameserver_pb2 as pb

_UNCONFIRMED: Final = frozenset({"heartbeat", "unregister"})


class NameServerCalls:
    """The calls of the name server; one per process."""

    def __init__(self, service: NameServerService) -> None:
        self._service: Final = service
        self._values: Final = Shares(
            Kind.VALUES, self._held_bytes, lambda: time.monotonic_ns() // 1_000_000
        )

    async def name_server_status(
        self, _request: pb.NameServerStatusRequest
    ) -> pb.NameServerStatusResponse:
        """Return the status of the replica. Raises NameServerOffError."""
        service = self._service
        settings, status, broker = service.settings, service.status(), service.broker
        registration = service.registration
        if settings is None and registration is not None and broker is not None:
            return pb.NameServerStatusResponse(
                state="remote",
                leader=registration.leader,
                node_id=broker.broker_id,
                broker_group=broker.group,
                problem=registration.problem,
            )
        if settings is None or status is None:
            raise NameServerOffError
        return pb.NameServerStatusResponse(
            state=status.state,
            address=settings.address,
            leader=status.leader,
            members=settings.members,
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            journal_size_bytes=status.journal_size_bytes,
            directory_size_bytes=status.directory_size_bytes,
            directory_size_bytes_max=status.directory_size_bytes_max,
            refused_connections=status.refused_count,
            failure=status.failure,
            is_encrypted=settings.password is not None,
            node_id=broker.broker_id if broker is not None else 0,
            broker_group=broker.group if broker is not None else "",
            problem=registration.problem if registration is not None else "",
            refused_reports=service.report_judge.refused_count,
            broker_group_problems=[
                pb.BrokerGroupProblem(broker_group=group, problem=problem)
                for group, problem in sorted(service.watch.problems.items())
            ],
        )

    async def topic_route(self, request: pb.TopicRouteRequest) -> pb.TopicRouteResponse:
        """Return the groups that serve a topic; without a topic all groups."""
        service, now_ms = self._service, self._service.trusted_ms
        server = service.server
        if not request.topic:
            shares = server.look(lambda directory: groups(directory, now_ms))
            return pb.TopicRouteResponse(shares=[_share(share) for share in shares])
        routed = server.look(lambda directory: route(directory, request.topic, now_ms))
        # Clients follow the route, so it has no share of another cluster, which a false report may
        # have brought into the directory.
        own = service.report_judge.cluster_id
        routed = replace(routed, shares=tuple(s for s in routed.shares if s.cluster == own))
        return pb.TopicRouteResponse(
            shares=[_share(share) for share in routed.shares],
            rocketmq_json=json.dumps(routed.rocketmq_json()),
        )

    async def get_values(self, request: pb.GetValuesRequest) -> pb.GetValuesResponse:
        """Return one value of a namespace, or all. Raises ValueNotFoundError."""
        namespace, key = request.namespace, request.key
        if not namespace:
            raise BadRequestError("namespace", "a name", "empty")

        def read(directory: Directory) -> dict[str, str]:
            return dict(directory.pairs.get(namespace, {}))

        values = self._service.server.look(read)
        if not key:
            return pb.GetValuesResponse(values=values)
        if key not in values:
            raise ValueNotFoundError(namespace, key)
        return pb.GetValuesResponse(values={key: values[key]})

    async def put_value(self, request: pb.PutValueRequest) -> pb.PutValueResponse:
        """Set a value. Raises ValueChangedError, DirectoryRefusedError, and BusyError beyond what
        one address may put: counted here, since replicas know no callers."""
        pair = request.namespace, request.key, request.value
        command = put_pair_command(*pair)
        if (size_bytes := pair_size_bytes(*pair)) <= PAIR_SIZE_BYTES_MAX:  # Else it is refused.
            self._values.check(json.dumps(pair[:2]), size_bytes)
        if request.HasField("expected"):
            command["expected"] = request.expected
        await self._change(command, request.namespace, request.key)
        return pb.PutValueResponse()

    def _held_bytes(self, name: str) -> int:
        namespace, key = json.loads(name)
        values = self._service.server.look(lambda directory: directory.pairs.get(namespace, {}))
        return pair_size_bytes(namespace, key, values[key]) if key in values else 0

    async def delete_value(self, request: pb.DeleteValueRequest) -> pb.DeleteValueResponse:
        """Remove a value. Raises ValueNotFoundError."""
        command = delete_pair_command(request.namespace, request.key)
        await self._change(command, request.namespace, request.key)
        return pb.DeleteValueResponse()

    async def report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        """Carry out the command of a node without a replica; return what a replica would know.

        Raises the errors of `ReportJudge.believed`, since any process can send a report.
        """
        service, own = self._service, request.group
        server, report_judge, result = service.server, service.report_judge, b""
        if request.command:
            command = report_judge.believed(request, service.highest_epoch)
            is_beat = command["op"] in _UNCONFIRMED
            answer = await (server.report(command) if is_beat else self._confirmed(command))
            report_judge.note(answer)
            result = RESULT.dump_json(answer)
        versions, now_ms = dict(request.known_topics), service.trusted_ms

        def read(directory: Directory) -> pb.ReportResponse:
            def wanted(group: Group) -> Iterable[str]:
                return () if versions.get(group.name) == version_of(group) else group.topics

            group = directory.groups.get(own)
            return pb.ReportResponse(
                result=result,
                leader=server.leader,
                groups=other_groups(directory, report_judge.cluster_id, own, now_ms, wanted),
                topics_versions={
                    name: version_of(other) for name, other in directory.groups.items()
                },
                own_group=b"" if group is None else GROUP.dump_json(group, exclude={"topics"}),
                challenge=report_judge.challenge(),
                own_problem=service.watch.problems.get(own, ""),
            )

        return server.look(read)

    async def _confirmed(self, command: Command) -> Result:
        try:
            return await self._service.server.change(command)
        except AssertionError as error:
            # A defect of the name server is no reason to end the node.
            raise ReplicaFailedError(str(error)) from error

    async def _change(self, command: Command, namespace: str, key: str) -> None:
        result = await self._confirmed(command)
        if result.is_accepted:
            return
        if result.reason == "changed":
            raise ValueChangedError(f"{namespace}/{key}")
        if result.reason == "unknown_key":
            raise ValueNotFoundError(namespace, key)
        raise DirectoryRefusedError(result.reason, result.detail)


def _share(share: KnownGroupRoute) -> pb.TopicShare:
    queues, now_ms = share.queues, unix_ms()
    return pb.TopicShare(
        broker_group=share.group,
        kind=share.kind,
        cluster=share.cluster,
        master_id=max(0, share.master_id),
        epoch=share.epoch,
        read_queue_count=queues.read_queue_count,
        write_queue_count=queues.write_queue_count,
        permission=queues.permission,
        brokers=[_broker(broker, now_ms) for broker in share.brokers],
        in_sync=share.in_sync,
    )


def _broker(broker: RegisteredBroker, now_ms: int) -> pb.BrokerInfo:
    return pb.BrokerInfo(
        broker_id=broker.broker_id,
        address=broker.address,
        ha_address=broker.ha_address,
        role=broker.role,
        epoch=broker.epoch,
        silent_ms=max(0, now_ms - broker.last_seen_ms),
    )
