"""Where a topic's queues are, in the words of the protocol.

Owns the mapping (protocol section 7). Each node of a broker group is a broker of the protocol with
the number 0, since every node takes every call: clients ask for a route twice a minute at most, and
turn to a broker of another name when one does not answer. Which queue a client names is a hint that
nobody follows, and clients spread their calls over queues: so whoever leads has many of them and
the others queue 0 alone, and most calls come to the leader at once.
"""

from typing import Final

from node.rocketmq.cluster import Cluster, Place, Share
from node.rocketmq.endpoints import check_endpoints, endpoints_of
from node.rocketmq.names import group_name, topic_name
from node.rocketmq.statuses import OK, RefusedError
from node.state import PERMISSION_READ
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, MessageType, Permission

ANY_QUEUE: Final = -1
LEADER_QUEUE_COUNT_MIN: Final = 14
"""Of three nodes, 14 of 16 calls go to the leader without a hop."""
_DOT: Final = "."
_MESSAGE_TYPES: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
_PERMISSIONS: Final = {
    0: Permission.NONE,
    2: Permission.WRITE,
    4: Permission.READ,
    6: Permission.READ_WRITE,
}


class Routes:
    """One per gateway."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def query_route(self, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        """Return all queues of a topic, in an order that stays the same."""
        self._check(request.endpoints)
        name = topic_name(request.topic, for_reading=True)
        response = pb.QueryRouteResponse(status=OK)
        for share in self._cluster.shares(name):
            for place in share.places:
                broker = _broker(share, place)
                least = LEADER_QUEUE_COUNT_MIN if len(share.places) > 1 else 1
                for queue_id in range(max(share.queue_count, least) if place.is_leader else 1):
                    response.message_queues.append(
                        pb.MessageQueue(
                            topic=request.topic,
                            id=queue_id,
                            permission=_PERMISSIONS[share.permission],
                            broker=broker,
                            accept_message_types=_MESSAGE_TYPES,
                        )
                    )
        return response

    def query_assignment(self, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
        """Return what a push consumer receives from: any queue of each broker, for every member.

        Members compete for messages, so there is nothing to share out.
        """
        self._check(request.endpoints)
        name = topic_name(request.topic, for_reading=True)
        group_name(request.group)
        response = pb.QueryAssignmentResponse(status=OK)
        for share in self._cluster.shares(name):
            for place in share.places if share.permission & PERMISSION_READ else ():
                queue = pb.MessageQueue(
                    topic=request.topic,
                    id=ANY_QUEUE,
                    permission=_PERMISSIONS[share.permission],
                    broker=_broker(share, place),
                    accept_message_types=_MESSAGE_TYPES,
                )
                response.assignments.append(pb.Assignment(message_queue=queue))
        if not response.assignments:
            raise RefusedError(Code.FORBIDDEN, f"topic {name!r} may not be read")
        return response

    @staticmethod
    def _check(endpoints: pb.Endpoints) -> None:
        if not check_endpoints(endpoints):
            text = "endpoints must be hosts and ports from 1 to 65535"
            raise RefusedError(Code.ILLEGAL_ACCESS_POINT, text)


def group_of_broker(name: str) -> str:
    """Return the broker group that a broker of a route stands for; empty for no name."""
    return name.rpartition(_DOT)[0]


def _broker(share: Share, place: Place) -> pb.Broker:
    name = f"{share.group}{_DOT}{place.node_id}"
    return pb.Broker(name=name, id=0, endpoints=endpoints_of(place.address))
