"""The name server as a client sees it: its replicas, the groups of the cluster, routes, values.

Owns the choice of a replica: the given addresses in turn, until one answers; the client searches no
leader, the replicas find theirs. A name server needs no cluster behind it, so the client
calls a standalone one in the same way. Must not know the log.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from quorumlog.arguments import checked
from quorumlog.cluster.calls import method_of
from quorumlog.cluster.channels import Channels, answer_of
from quorumlog.cluster.close_once import failures_beside
from quorumlog.cluster.routes import parse_bootstrap
from quorumlog.errors import (
    DeadlineError,
    Outcome,
    QuorumlogError,
    UnavailableError,
    UnimplementedError,
)
from quorumlog.pb import nameserver_pb2 as pb
from quorumlog.records.values import of_pb

TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 2_000  # For each replica in `status`.
_ASK_ANOTHER: Final = frozenset(
    {"nameserver.off", "nameserver.failed", "nameserver.no_quorum", "node.shutting_down"}
)
_READS: Final = (pb.GetValuesRequest, pb.TopicRouteRequest)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica; without an answer `state` is `off` or `down`, and `failure` is the reason."""

    server: str
    state: str
    address: str = ""
    leader: str = ""
    members: tuple[str, ...] = ()
    node_id: int = 0
    broker_group: str = ""
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    journal_size_bytes: int = 0
    directory_size_bytes: int = 0
    directory_size_bytes_max: int = 0
    refused_connections: int = 0
    is_encrypted: bool = False
    failure: str = ""
    problem: str = ""
    refused_reports: int = 0
    """Count of reports about brokers that the replica refused."""
    broker_group_problems: dict[str, str] = field(default_factory=dict)
    """By broker group: why it cannot elect a leader, or for how long it has had no master."""


@dataclass(frozen=True, slots=True)
class ListedBroker:
    """One broker that has reported lately."""

    broker_id: int
    address: str
    ha_address: str
    role: str
    epoch: int
    silent_ms: int


@dataclass(frozen=True, slots=True)
class ListedTopicShare:
    """One broker group, and its share of a topic. `master_id` 0: no node takes appends now."""

    broker_group: str
    kind: str
    cluster: str
    master_id: int
    epoch: int
    read_queue_count: int
    write_queue_count: int
    permission: int
    brokers: tuple[ListedBroker, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListedTopicRoute:
    """The broker groups of a topic; no shares: no live broker has it."""

    topic: str
    shares: tuple[ListedTopicShare, ...]
    rocketmq_json: str
    """The route in the form of RocketMQ's TopicRouteData."""


@checked
class NameServers:
    """A client of the name server; start it with `async with`.

    Every call raises QuorumlogError. Reads answer from one replica and need no quorum; a change is
    confirmed, and if its outcome is unknown it may be repeated, or verified by a read.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        credentials: grpc.ChannelCredentials | None = None,
        token: str = "",
    ) -> None:
        """`bootstrap` lists client services of nodes, or of standalone name servers; `token` is
        that of the user; empty: none."""
        self._addresses = parse_bootstrap(bootstrap)
        self._timeout_s = timeout_ms / 1000
        self._channels = Channels(credentials, token=token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            await self._channels.close()

    async def status(self) -> list[ReplicaStatus]:
        """Return the status of all replicas, the given and the known ones, asked in parallel."""
        statuses = await asyncio.gather(*map(self._status_of, self._addresses))
        if all(one.state in ("off", "down") for one in statuses):
            return list(statuses)
        addresses = {b.address for group in await self.broker_groups() for b in group.brokers}
        others = sorted(addresses - set(self._addresses))
        return [*statuses, *await asyncio.gather(*map(self._status_of, others))]

    async def broker_groups(self) -> list[ListedTopicShare]:
        """Return all broker groups with a broker that reported lately, by name, without a topic."""
        answer = await self._ask(pb.TopicRouteRequest())
        return [of_pb(ListedTopicShare, share) for share in answer.shares]

    async def route(self, topic: str) -> ListedTopicRoute:
        """Return the broker groups of a topic."""
        answer = await self._ask(pb.TopicRouteRequest(topic=topic))
        return of_pb(ListedTopicRoute, answer, topic=topic)

    async def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises NotFoundError."""
        answer = await self._ask(pb.GetValuesRequest(namespace=namespace, key=key))
        return str(answer.values[key])

    async def get_all(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace."""
        answer = await self._ask(pb.GetValuesRequest(namespace=namespace))
        return dict(sorted(answer.values.items()))

    async def put(
        self, namespace: str, key: str, value: str, *, expected: str | None = None
    ) -> None:
        """Set a value; with `expected` only if that is the value now (`nameserver.changed`)."""
        request = pb.PutValueRequest(namespace=namespace, key=key, value=value, expected=expected)
        await self._ask(request)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value. Raises NotFoundError."""
        await self._ask(pb.DeleteValueRequest(namespace=namespace, key=key))

    async def _ask(self, request: Any) -> Any:
        """Ask one replica after the other until one answers."""
        last_error: QuorumlogError | None = None
        for address in self._addresses:
            try:
                return await self._once(address, request, self._timeout_s)
            except QuorumlogError as error:
                is_away = isinstance(error, UnavailableError | DeadlineError | UnimplementedError)
                if is_away and isinstance(request, _READS):
                    error.outcome = Outcome.NOT_APPLIED
                is_unsent = is_away and error.outcome is Outcome.NOT_APPLIED
                if not is_unsent and error.code not in _ASK_ANOTHER:
                    raise
                # A retryable error says more than a final one of another replica.
                if last_error is None or (error.retryable and not last_error.retryable):
                    last_error = error
        assert last_error is not None, "there are no addresses"
        raise last_error

    async def _once(self, address: str, request: Any, timeout_s: float) -> Any:
        node = self._channels.get(address)
        call = getattr(node.calls_of(pb.DESCRIPTOR), method_of(request))
        try:
            return await answer_of(address, call, request, timeout_s)
        except QuorumlogError as error:
            failure = await node.explained(error)
        raise failure

    async def _status_of(self, server: str) -> ReplicaStatus:
        request = pb.NameServerStatusRequest()
        try:
            response = await self._once(server, request, STATUS_TIMEOUT_MS / 1000)
        except QuorumlogError as error:
            state = "off" if error.code == "nameserver.off" else "down"
            return ReplicaStatus(server, state, failure=str(error))
        problems = {row.broker_group: row.problem for row in response.broker_group_problems}
        return of_pb(ReplicaStatus, response, server=server, broker_group_problems=problems)
