"""What each call of RocketMQ's protocols needs: one table for both, as `node.users.needs` has it.

Owns the rows. A method or a code without one keeps a node from starting. The part that reads the
body of a classic command requires the right to what it names (`calling`), and the row says so with
`signed_in`. Source of the words: RocketMQ 5, authorization (ACL 2.0).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from node.rocketmq.remoting.protocol.codes import REFUSED, RequestCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import APPLIED, GREETING, REPORT
from node.users.needs import Needs, of_nodes, signed_in
from node.users.rules import Action, ClusterPart, Need, ResourceKind
from store.format import RETRY_TOPIC_PREFIX

_PUB, _SUB, _GET = Action.PUB, Action.SUB, Action.GET
_CREATE, _UPDATE, _DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


def open_to_all(_request: object) -> None:
    """Need nothing, not even a user: clients take a refused route for a missing topic, and say so,
    where the broker that they find by it refuses them with the reason. Nodes prove themselves."""


def _cluster(action: Action, part: ClusterPart) -> Needs:
    needs = (Need(action, ResourceKind.CLUSTER, part),)
    return lambda _request: needs


def _sent_to(topic: str) -> Need:
    """Return what a send needs. What a consumer gives back goes to the retry topic of its group."""
    action = _SUB if topic.startswith(RETRY_TOPIC_PREFIX) else _PUB
    return Need(action, ResourceKind.TOPIC, topic)


# --- gRPC: of requests ---


def _taken(request: Any) -> Iterable[Need]:
    yield Need(_SUB, ResourceKind.GROUP, request.group.name)
    yield Need(_SUB, ResourceKind.TOPIC, request.topic.name)


def _received(request: Any) -> Iterable[Need]:
    yield Need(_SUB, ResourceKind.GROUP, request.group.name)
    yield Need(_SUB, ResourceKind.TOPIC, request.message_queue.topic.name)


def _heartbeat(request: Any) -> Iterable[Need]:
    return (Need(_SUB, ResourceKind.GROUP, request.group.name),) if request.group.name else ()


def _messages(request: Any) -> Iterable[Need]:
    return map(_sent_to, {message.topic.name for message in request.messages})


def _publish(request: Any) -> Iterable[Need]:
    return (Need(_PUB, ResourceKind.TOPIC, request.topic.name),)


METHOD_NEEDS: Final[Mapping[str, Needs]] = MappingProxyType(
    {
        "QueryRoute": signed_in,
        "QueryAssignment": _taken,
        "Heartbeat": _heartbeat,
        "SendMessage": _messages,
        "ReceiveMessage": _received,
        "AckMessage": _taken,
        "ForwardMessageToDeadLetterQueue": _taken,
        "ChangeInvisibleDuration": _taken,
        "EndTransaction": _publish,
        "RecallMessage": _publish,
        "NotifyClientTermination": signed_in,
        "Telemetry": signed_in,
    }
)
"""By method of MessagingService."""


# --- Remoting: of commands ---


def _needs(*rows: tuple[ResourceKind, str, Action]) -> Needs:
    """Need actions on what ext fields name; a field that is missing names everything."""
    return lambda command: [
        Need(action, kind, command.ext.get(field, "")) for kind, field, action in rows
    ]


def _topic(*actions: Action, field: str = "topic") -> Needs:
    return _needs(*[(ResourceKind.TOPIC, field, action) for action in actions])


def _group(*actions: Action, field: str = "consumerGroup") -> Needs:
    return _needs(*[(ResourceKind.GROUP, field, action) for action in actions])


def _send(field: str) -> Needs:
    return lambda command: (_sent_to(command.ext.get(field, "")),)


def _optional(field: str, action: Action, needs: Needs = signed_in) -> Needs:
    """Need an action on a group, too, if it is named."""

    def both(command: Command) -> Iterable[Need]:
        yield from needs(command) or ()
        if command.ext.get(field):
            yield Need(action, ResourceKind.GROUP, command.ext[field])

    return both


def _progress(command: Command) -> Iterable[Need]:
    yield Need(_GET, ResourceKind.GROUP, command.ext.get("consumerGroup", ""))
    if command.ext.get("topic"):  # Else those that the caller may see.
        yield Need(_GET, ResourceKind.TOPIC, command.ext["topic"])


def _counter(command: Command) -> Iterable[Need]:
    """Get a counter of a topic, of a group in a topic, or of the node."""
    name, key = command.ext.get("statsName", ""), command.ext.get("statsKey", "")
    topic, _, group = key.partition("@")
    if name.startswith("BROKER_"):
        return (Need(_GET, ResourceKind.CLUSTER, ClusterPart.NODES),)
    if name.startswith("GROUP_"):
        return Need(_GET, ResourceKind.TOPIC, topic), Need(_GET, ResourceKind.GROUP, group)
    return (Need(_GET, ResourceKind.TOPIC, key),)


_READ: Final = _needs(
    (ResourceKind.TOPIC, "topic", _SUB), (ResourceKind.GROUP, "consumerGroup", _SUB)
)
_NODES: Final = _cluster(_GET, ClusterPart.NODES)
_CHANGE: Final = _cluster(_UPDATE, ClusterPart.NODES)
_SETTINGS: Final = _cluster(_GET, ClusterPart.SETTINGS)
_VALUES: Final = _cluster(_GET, ClusterPart.VALUES)

COMMAND_NEEDS: Final[Mapping[int, Needs]] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: _send("topic"),
        RequestCode.SEND_MESSAGE_V2: _send("b"),
        RequestCode.SEND_BATCH_MESSAGE: _send("b"),
        RequestCode.SEND_REPLY_MESSAGE: _send("topic"),
        RequestCode.SEND_REPLY_MESSAGE_V2: _send("b"),
        RequestCode.END_TRANSACTION: signed_in,
        RequestCode.PULL_MESSAGE: _READ,
        RequestCode.LITE_PULL_MESSAGE: _READ,
        RequestCode.POP_MESSAGE: _READ,
        RequestCode.ACK_MESSAGE: _READ,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _READ,
        RequestCode.QUERY_CONSUMER_OFFSET: _READ,
        RequestCode.UPDATE_CONSUMER_OFFSET: _READ,
        RequestCode.CONSUMER_SEND_MSG_BACK: _group(_SUB, field="group"),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(_GET),
        RequestCode.GET_MAX_OFFSET: _topic(_GET),
        RequestCode.GET_MIN_OFFSET: _topic(_GET),
        RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(_GET),
        RequestCode.HEART_BEAT: signed_in,
        RequestCode.UNREGISTER_CLIENT: _optional("consumerGroup", _SUB),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group(_SUB),
        RequestCode.LOCK_BATCH_MQ: signed_in,
        RequestCode.UNLOCK_BATCH_MQ: signed_in,
        RequestCode.QUERY_ASSIGNMENT: signed_in,
        RequestCode.SET_MESSAGE_REQUEST_MODE: signed_in,
        RequestCode.VIEW_MESSAGE_BY_ID: signed_in,
        RequestCode.QUERY_MESSAGE: _topic(_SUB),
        RequestCode.CHECK_CLIENT_CONFIG: signed_in,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: open_to_all,
        RequestCode.GET_BROKER_CLUSTER_INFO: _NODES,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: signed_in,
        RequestCode.GET_TOPICS_BY_CLUSTER: signed_in,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _NODES,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _NODES,
        RequestCode.GET_UNIT_TOPIC_LIST: signed_in,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: signed_in,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: signed_in,
        RequestCode.GET_KV_CONFIG: _VALUES,
        RequestCode.GET_KVLIST_BY_NAMESPACE: _VALUES,
        RequestCode.PUT_KV_CONFIG: _cluster(_UPDATE, ClusterPart.VALUES),
        RequestCode.DELETE_KV_CONFIG: _cluster(_DELETE, ClusterPart.VALUES),
        RequestCode.GET_ALL_TOPIC_CONFIG: signed_in,
        RequestCode.GET_TOPIC_CONFIG: _topic(_GET),
        RequestCode.GET_TOPIC_STATS_INFO: _topic(_GET),
        RequestCode.QUERY_CONSUME_QUEUE: _optional("consumerGroup", _GET, _topic(_GET)),
        RequestCode.UPDATE_AND_CREATE_TOPIC: _topic(_CREATE, _UPDATE),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: signed_in,
        RequestCode.DELETE_TOPIC_IN_BROKER: _topic(_DELETE),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: _topic(_DELETE),
        RequestCode.CLEAN_UNUSED_TOPIC: _CHANGE,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE,
        RequestCode.DELETE_EXPIRED_COMMITLOG: _CHANGE,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: signed_in,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group(_GET, field="group"),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: signed_in,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: signed_in,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: _group(_DELETE, field="groupName"),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: _group(_GET),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: _group(_GET, field="producerGroup"),
        RequestCode.GET_ALL_PRODUCER_INFO: signed_in,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _group(_GET),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: _group(_SUB),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic(_GET),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: _group(_GET, field="group"),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _needs(
            (ResourceKind.GROUP, "group", _GET), (ResourceKind.TOPIC, "topic", _GET)
        ),
        RequestCode.GET_CONSUME_STATS: _progress,
        RequestCode.GET_BROKER_CONSUME_STATS: signed_in,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _needs(
            (ResourceKind.GROUP, "group", _UPDATE), (ResourceKind.TOPIC, "topic", _GET)
        ),
        RequestCode.CLONE_GROUP_OFFSET: _needs(
            (ResourceKind.GROUP, "srcGroup", _GET), (ResourceKind.GROUP, "destGroup", _UPDATE)
        ),
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: _CHANGE,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: _CHANGE,
        RequestCode.VIEW_BROKER_STATS_DATA: _counter,
        RequestCode.GET_BROKER_RUNTIME_INFO: _NODES,
        RequestCode.GET_BROKER_HA_STATUS: _NODES,
        RequestCode.GET_BROKER_CONFIG: _SETTINGS,
        RequestCode.GET_NAMESRV_CONFIG: _SETTINGS,
        GREETING: open_to_all,
        **dict.fromkeys((REPORT, APPLIED), of_nodes),
        **dict.fromkeys(REFUSED, signed_in),
    }
)
"""By code of a command."""
