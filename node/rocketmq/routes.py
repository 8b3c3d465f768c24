"""Routes of topics in the form of the protocol.

Owns the mapping (protocol section 7). Each node of a broker group is a broker of the protocol with
the number 0, since every node takes every call: clients ask for a route twice a minute at most, and
turn to a broker of another name when one does not answer. The queue that a client names is a hint
that is ignored, and clients spread their calls over queues: so the leader has many of them and the
others queue 0 alone, and most calls come to the leader at once. A broker lists its own address
first and then those of the other nodes, for clients that take them.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

from node.config.types import Address
from node.rocketmq.cluster import GatewayCluster, GroupNode, Share
from node.rocketmq.protocol.names import group_name, topic_name
from node.rocketmq.protocol.statuses import OK, CallRefusedError
from node.state.state import PERMISSION_READ
from node.state.tables.topic_types import MIXED, TOPIC_TYPES
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, MessageType, Permission

ANY_QUEUE: Final = -1
_TAKES_ADDRESSES: Final = frozenset({"JAVA", "GO", "PYTHON"})
"""Languages, as their official client calls itself in the header of a call (Go's is not the name
in the protocol), that turn to the next address of a broker when one does not answer.
An ordered message is bound to one broker of a route, so nothing else helps it before the client
asks for the route again. The client for Node.js (1.0.8) cannot read several addresses, the others
were not tried."""
LEADER_QUEUE_COUNT_MIN: Final = 14
"""With three nodes 14 of 16 calls go to the leader without a hop."""
_DOT: Final = "."
_MESSAGE_TYPES: Final = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    MIXED: (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}
assert set(_MESSAGE_TYPES) == set(TOPIC_TYPES)
_PERMISSIONS: Final = {
    0: Permission.NONE,
    2: Permission.WRITE,
    4: Permission.READ,
    6: Permission.READ_WRITE,
}


class Routes:
    """Answers calls for routes and assignments. One per gateway."""

    def __init__(self, cluster: GatewayCluster, *, lists_others: bool = True) -> None:
        """With `lists_others` a broker has the addresses of its group, for clients that take them.

        Not with TLS: a client compares the certificate with all addresses as one name.
        """
        self._cluster = cluster
        self._takes_addresses = _TAKES_ADDRESSES if lists_others else frozenset[str]()

    def query_route(
        self, request: pb.QueryRouteRequest, language: str = ""
    ) -> pb.QueryRouteResponse:
        """Return all queues of a topic, in an order that stays the same.

        `language` is the client's own name of its language.
        """
        check_endpoints(request.endpoints)
        name = topic_name(request.topic, for_reading=True)
        response = pb.QueryRouteResponse(status=OK)
        for share in self._cluster.shares(name):
            for place in share.places:
                queue = self._queue(request.topic, share, place, language)
                least = LEADER_QUEUE_COUNT_MIN if len(share.places) > 1 else 1
                for queue_id in range(max(share.queue_count, least) if place.is_leader else 1):
                    queue.id = queue_id
                    response.message_queues.append(queue)
        return response

    def query_assignment(
        self, request: pb.QueryAssignmentRequest, language: str = ""
    ) -> pb.QueryAssignmentResponse:
        """Return the sources of a push consumer: any queue of each broker, for every member.

        Members compete for messages, so there is nothing to share out.
        """
        check_endpoints(request.endpoints)
        name = topic_name(request.topic, for_reading=True)
        group_name(request.group)
        response = pb.QueryAssignmentResponse(status=OK)
        for share in self._cluster.shares(name):
            for place in share.places if share.permission & PERMISSION_READ else ():
                queue = self._queue(request.topic, share, place, language)
                response.assignments.append(pb.Assignment(message_queue=queue))
        if not response.assignments:
            raise CallRefusedError(Code.FORBIDDEN, f"topic {name!r} may not be read")
        return response

    def where(self, request: pb.QueryRouteRequest | pb.QueryAssignmentRequest) -> str:
        """Return the own group for a topic that this node does not know, since it may lag behind
        its leader; else an empty text."""
        try:
            self._cluster.shares(request.topic.name)
        except CallRefusedError:
            return self._cluster.own_group
        return ""

    def _queue(
        self, topic: pb.Resource, share: Share, place: GroupNode, language: str
    ) -> pb.MessageQueue:
        """Return any queue of the broker that a node of a group is."""
        name = f"{share.group}{_DOT}{place.node_id}"
        others: list[str] = []
        if language in self._takes_addresses:
            others = [other.address for other in share.places if other.node_id != place.node_id]
        return pb.MessageQueue(
            topic=topic,
            id=ANY_QUEUE,
            permission=_PERMISSIONS[share.permission],
            broker=pb.Broker(name=name, id=0, endpoints=endpoints_of(place.address, others)),
            accept_message_types=_MESSAGE_TYPES[share.message_type],
        )


def group_of_broker(name: str) -> str:
    """Return the broker group of a route's broker; empty without a group in the name."""
    return name.rpartition(_DOT)[0]


# --- Addresses: a scheme that does not fit makes some clients unusable ---


def endpoints_of(address: str, others: Iterable[str] = ()) -> pb.Endpoints:
    """Return host:port as an endpoint, with `others` for the case that it does not answer.

    The others are given only if all are IPv4 addresses: no client takes several names of hosts.
    """
    parsed = Address.parse(address)
    scheme = _scheme_of(parsed)
    endpoints = pb.Endpoints(
        scheme=scheme, addresses=[pb.Address(host=parsed.host, port=parsed.port)]
    )
    more = [Address.parse(other) for other in others]
    if all(_scheme_of(one) == pb.AddressScheme.IPv4 for one in (parsed, *more)):
        endpoints.addresses.extend(pb.Address(host=one.host, port=one.port) for one in more)
    return endpoints


def _scheme_of(address: Address) -> pb.AddressScheme:
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        return pb.AddressScheme.DOMAIN_NAME
    return pb.AddressScheme.IPv4 if version == 4 else pb.AddressScheme.IPv6


def check_endpoints(endpoints: pb.Endpoints) -> None:
    """Raise CallRefusedError unless the addresses that a client was configured with have hosts and
    valid ports."""
    if not all(a.host and 0 < a.port < 65536 for a in endpoints.addresses):
        text = "endpoints must be hosts and ports from 1 to 65535"
        raise CallRefusedError(Code.ILLEGAL_ACCESS_POINT, text)
