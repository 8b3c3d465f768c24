"""Where a topic's queues are, in the words of the protocol.

Owns the mapping: a broker group is one broker of the protocol, with the number 0 and its leader's
address, and its queues are numbered from 0 (protocol section 7).
"""

from typing import Final

from node.rocketmq.cluster import Cluster, Share
from node.rocketmq.endpoints import check_endpoints, endpoints_of
from node.rocketmq.names import group_name, topic_name
from node.rocketmq.statuses import OK, RefusedError
from node.state import PERMISSION_READ
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code, MessageType, Permission

ANY_QUEUE: Final = -1
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
            broker = _broker(share)
            for queue_id in range(share.queue_count):
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
            if share.permission & PERMISSION_READ:
                queue = pb.MessageQueue(
                    topic=request.topic,
                    id=ANY_QUEUE,
                    permission=_PERMISSIONS[share.permission],
                    broker=_broker(share),
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


def _broker(share: Share) -> pb.Broker:
    return pb.Broker(name=share.group, id=0, endpoints=endpoints_of(share.address))
