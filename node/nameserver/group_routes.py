"""The routes to the other groups of the cluster, for clients and nodes.

Owns the way from the directory to the messages. Must not know the callers.
"""

from collections.abc import Callable, Iterable

from node.nameserver.directory.directory import Directory
from node.nameserver.directory.groups import Group
from node.nameserver.directory.routes import KnownGroupRoute, groups
from quorumlog.pb.log_pb2 import GroupRoute, NodeAddress, TopicRoute


def other_groups(
    directory: Directory,
    cluster_id: str,
    own: str,
    now_ms: int,
    wanted: Callable[[Group], Iterable[str]],
) -> list[GroupRoute]:
    """Return all live groups of a cluster but `own`, each with the topics that `wanted` names.

    Clients follow these routes, so groups of other clusters are left out.
    """
    return [
        _route(share, directory.groups[share.group], wanted(directory.groups[share.group]))
        for share in groups(directory, now_ms)
        if share.group != own and share.cluster == cluster_id
    ]


def version_of(group: Group) -> str:
    """Return the version of a group's topics as text; it changes when they change."""
    timestamp, counter = group.topics_version
    return f"{timestamp}.{counter}.{group.master_epoch}"


def _route(share: KnownGroupRoute, group: Group, topics: Iterable[str]) -> GroupRoute:
    own_topics = group.topics
    return GroupRoute(
        group=share.group,
        kind=share.kind,
        term=share.epoch,
        leader_id=max(0, share.master_id),
        nodes=[
            NodeAddress(node_id=broker.broker_id, address=broker.address)
            for broker in share.brokers
        ],
        topics=[
            TopicRoute(
                topic=name,
                queue_count=own_topics[name].write_queue_count,
                permission=own_topics[name].permission,
            )
            for name in topics
            if name in own_topics
        ],
    )
