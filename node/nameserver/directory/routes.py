"""The route of a topic: the answer to a client, merged over all groups that serve a share of it.

Owns the content of a route, RocketMQ's JSON form of it, and the routes to the other groups. Must
not change the directory. The time of the request decides which brokers are silent and left out, so
a dead broker leaves the routes even when no replica can commit its removal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from node.nameserver.directory.directory import Directory
from node.nameserver.directory.groups import NO_MASTER, Group, RegisteredBroker
from node.nameserver.directory.reports import TopicQueues
from quorumlog.pb.log_pb2 import GroupRoute, NodeAddress, TopicRoute
from store.files.meta_file import Json

WRITE: Final = 2
"""The bit of a permission that allows appends."""
NO_QUEUES: Final = TopicQueues(0, 0, 0)
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


@dataclass(frozen=True, slots=True)
class KnownGroupRoute:
    """One group's share of a topic."""

    cluster: str
    group: str
    kind: str
    master_id: int
    """The broker that takes appends; NO_MASTER when there is none at the moment."""
    brokers: tuple[RegisteredBroker, ...]
    """The live brokers, ordered by id."""
    queues: TopicQueues
    """The queues, without the write permission when there is no master; NO_QUEUES for no topic."""
    epoch: int = 0
    """The Raft term or HA epoch of the last master."""
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectoryRoute:
    """All shares of a topic, ordered by group name; empty when no live group has the topic."""

    shares: tuple[KnownGroupRoute, ...]
    order: str = ""
    """The fixed order `broker:queues;...` of the configuration; empty: none."""

    def rocketmq_json(self) -> dict[str, Json]:
        """Return RocketMQ's TopicRouteData, in which the master is broker 0."""
        route: dict[str, Json] = {
            "brokerDatas": [_broker_data(share) for share in self.shares],
            "filterServerTable": {},
            "queueDatas": [_queue_data(share) for share in self.shares],
        }
        if self.order:
            route["orderTopicConf"] = self.order
        return route


def route(directory: Directory, topic: str, now_ms: int) -> DirectoryRoute:
    """Return the route of a topic at this time."""
    shares = (
        _share(group, group.topics.get(topic), directory, now_ms) for group in _all(directory)
    )
    order = directory.pairs.get(ORDER_NAMESPACE, {}).get(topic, "")
    return DirectoryRoute(tuple(share for share in shares if share is not None), order)


def groups(directory: Directory, now_ms: int) -> tuple[KnownGroupRoute, ...]:
    """Return all groups with a broker that is alive at this time, without a topic."""
    shares = (_share(group, NO_QUEUES, directory, now_ms) for group in _all(directory))
    return tuple(share for share in shares if share is not None)


def _all(directory: Directory) -> list[Group]:
    return [directory.groups[name] for name in sorted(directory.groups)]


def _share(
    group: Group, queues: TopicQueues | None, directory: Directory, now_ms: int
) -> KnownGroupRoute | None:
    alive = alive_brokers(group, now_ms, directory.limits.broker_expiry_ms)
    if queues is None or not alive:
        return None
    has_master = any(broker.broker_id == group.master_id for broker in alive)
    if not has_master:
        queues = queues._replace(permission=queues.permission & ~WRITE)
    return KnownGroupRoute(
        group.cluster,
        group.name,
        group.kind,
        group.master_id if has_master else NO_MASTER,
        alive,
        queues,
        group.master_epoch,
        group.in_sync,
    )


def alive_brokers(group: Group, now_ms: int, silence_ms: int) -> tuple[RegisteredBroker, ...]:
    """Return the brokers seen in the last `silence_ms`, ordered by id."""
    listed = (group.brokers[key] for key in sorted(group.brokers))
    return tuple(broker for broker in listed if broker.is_alive(now_ms, silence_ms))


def _broker_data(share: KnownGroupRoute) -> Json:
    # A slave keeps its own id, but id 0 would make it the master, so it gets another one.
    largest = max(broker.broker_id for broker in share.brokers)
    addresses: dict[str, Json] = {}
    for broker in share.brokers:
        shown = broker.broker_id or largest + 1
        if broker.broker_id == share.master_id:
            shown = 0
        addresses[str(shown)] = broker.address
    return {
        "brokerAddrs": addresses,
        "brokerName": share.group,
        "cluster": share.cluster,
        "enableActingMaster": False,
    }


def _queue_data(share: KnownGroupRoute) -> Json:
    return {
        "brokerName": share.group,
        "perm": share.queues.permission,
        "readQueueNums": share.queues.read_queue_count,
        "topicSysFlag": share.queues.system_flag,
        "writeQueueNums": share.queues.write_queue_count,
    }


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
        _group_route(share, directory.groups[share.group], wanted(directory.groups[share.group]))
        for share in groups(directory, now_ms)
        if share.group != own and share.cluster == cluster_id
    ]


def version_of(group: Group) -> str:
    """Return the version of a group's topics as text; it changes when they change."""
    timestamp, counter = group.topics_version
    return f"{timestamp}.{counter}.{group.master_epoch}"


def _group_route(share: KnownGroupRoute, group: Group, topics: Iterable[str]) -> GroupRoute:
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
