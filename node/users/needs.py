"""What each call needs: one table for the services of `quorumlog.v1`, over gRPC and over frames.

Owns the rows. A method without one keeps a node from starting. A row returns what a request needs,
all of it; what only a part of the node knows, such as the topic of a message that is found by its
id, that part requires itself (`calling`), and its row says so with `SIGNED_IN`.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from node.users.rules import Action, ClusterPart, Need, ResourceKind

Needs = Callable[[Any], Iterable[Need] | None]
"""Returns what a request needs, of a caller that is a user; None: nothing, not even a user."""

ALL: Final = ""
"""As a name: everything of its kind. Only a rule for `KIND:*` allows it, and a denial of a part
denies it."""


def signed_in(_request: object) -> Iterable[Need]:
    """Need a credential; parts of the node check the rest, where they know it."""
    return ()


def of_nodes(_request: object) -> Iterable[Need]:
    """For nodes of the cluster, which sign their calls (`node_proofs`), and for no user."""
    raise AssertionError("a call of nodes is not checked as one of users")


def appends(_request: object) -> Iterable[Need]:
    """As `signed_in`; the broker counts each batch as a request of the user."""
    return ()


def _route(request: Any) -> Iterable[Need] | None:
    """Show the way to the cluster to all, and its topics to users: a topic whose name is known, to
    any of them, since clients look it up before they are refused with a reason."""
    return () if request.topics else None


def _topic(*actions: Action) -> Needs:
    return lambda request: [Need(action, ResourceKind.TOPIC, request.topic) for action in actions]


def _group(*actions: Action) -> Needs:
    return lambda request: [Need(action, ResourceKind.GROUP, request.group) for action in actions]


def _producers(action: Action) -> Needs:
    """Names of producers, and of their groups, are names of groups."""
    return lambda request: [Need(action, ResourceKind.GROUP, request.producer_group)]


def _cluster(action: Action, part: ClusterPart) -> Needs:
    needs = (Need(action, ResourceKind.CLUSTER, part),)
    return lambda _request: needs


def _read(request: Any) -> Iterable[Need]:
    """Read a topic, and if a group is named do it as a member."""
    yield Need(Action.SUB, ResourceKind.TOPIC, request.topic)
    if request.group:
        yield Need(Action.SUB, ResourceKind.GROUP, request.group)


def _heartbeat(request: Any) -> Iterable[Need]:
    yield Need(Action.SUB, ResourceKind.GROUP, request.group)
    for topic in request.topics:
        yield Need(Action.SUB, ResourceKind.TOPIC, topic)


def _offsets(request: Any) -> Iterable[Need]:
    yield Need(Action.SUB, ResourceKind.GROUP, request.group)
    for topic in {row.topic for row in request.offsets}:
        yield Need(Action.SUB, ResourceKind.TOPIC, topic)


def _consumed(request: Any) -> Iterable[Need]:
    return _offsets(request.consumed)


def _queues(request: Any) -> Iterable[Need]:
    for topic in {queue.topic for queue in request.queues}:
        yield Need(Action.GET, ResourceKind.TOPIC, topic)


def append_needs(request: Any) -> Iterable[Need]:
    """Return what an append needs beside the right to publish to the topics of its records, which
    are checked where the batch is looked through."""
    if request.HasField("consumed"):
        yield from _consumed(request)
    if request.HasField("transaction"):
        yield Need(Action.PUB, ResourceKind.GROUP, request.transaction.producer_group)
    if request.HasField("incarnation"):
        yield Need(Action.PUB, ResourceKind.GROUP, request.incarnation.name)


def _claim(request: Any) -> Iterable[Need]:
    return (Need(Action.PUB, ResourceKind.GROUP, request.name),)


def _create_topic(request: Any) -> Iterable[Need]:
    yield Need(Action.CREATE, ResourceKind.TOPIC, request.topic)
    if not request.must_be_new:
        yield Need(Action.UPDATE, ResourceKind.TOPIC, request.topic)


def _retry(request: Any) -> Iterable[Need]:
    """Copy messages that a member has read, and store offsets as it would."""
    yield Need(Action.SUB, ResourceKind.GROUP, request.group)
    for topic in {row.topic for row in (*request.messages, *request.offsets)}:
        yield Need(Action.SUB, ResourceKind.TOPIC, topic)


def _end(request: Any) -> Iterable[Need]:
    yield Need(Action.PUB, ResourceKind.GROUP, request.producer_group)
    if request.producer_name:
        yield Need(Action.PUB, ResourceKind.GROUP, request.producer_name)


def _take(request: Any) -> Iterable[Need]:
    yield Need(Action.SUB, ResourceKind.GROUP, request.group)
    yield Need(Action.SUB, ResourceKind.TOPIC, request.topic)


_SUB, _GET, _LIST = Action.SUB, Action.GET, Action.LIST
_CREATE, _UPDATE, _DELETE = Action.CREATE, Action.UPDATE, Action.DELETE
_NODES, _SETTINGS, _VALUES = ClusterPart.NODES, ClusterPart.SETTINGS, ClusterPart.VALUES
_USERS = ClusterPart.USERS
_READ_LOG = (
    Need(_SUB, ResourceKind.TOPIC, ALL),
    Need(_SUB, ResourceKind.GROUP, ALL),
    Need(_GET, ResourceKind.CLUSTER, _USERS),
)
"""The log has the audit, and what proves that a caller is a user."""

NEEDS: Final[Mapping[str, Needs]] = MappingProxyType(
    {
        "LogService/Append": appends,
        "LogService/AppendStream": appends,
        "LogService/Pull": _read,
        "LogService/Tail": _read,
        "LogService/GetMessage": signed_in,
        "LogService/QueryByKey": _topic(_SUB),
        "LogService/QueueOffsets": _queues,
        "LogService/OffsetByTime": _topic(_GET),
        "LogService/ClaimProducer": _claim,
        "LogService/Route": _route,
        "ConsumerService/Heartbeat": _heartbeat,
        "ConsumerService/LeaveGroup": _group(_SUB),
        "ConsumerService/CommitOffsets": _offsets,
        "ConsumerService/FetchOffsets": _group(_GET),
        "AdminService/CreateTopic": _create_topic,
        "AdminService/DeleteTopic": _topic(_DELETE),
        "AdminService/ListTopics": signed_in,
        "AdminService/DescribeTopic": _topic(_GET),
        "AdminService/SetTopicRates": _topic(_UPDATE),
        "AdminService/ListGroups": signed_in,
        "AdminService/DescribeGroup": _group(_GET),
        "AdminService/DeleteGroup": _group(_DELETE),
        "AdminService/NodeStatus": _cluster(_GET, _NODES),
        "AdminService/Events": _cluster(_GET, _NODES),
        "AdminService/Settings": _cluster(_GET, _SETTINGS),
        "AdminService/Stacks": _cluster(_GET, _NODES),
        "AdminService/Metrics": _cluster(_GET, _NODES),
        "AdminService/History": _cluster(_GET, _NODES),
        "AdminService/ReadLog": lambda _: _READ_LOG,
        "AdminService/TransferLeadership": _cluster(_UPDATE, _NODES),
        "AdminService/ChangeMember": _cluster(_UPDATE, _NODES),
        "AdminService/Drain": _cluster(_UPDATE, _NODES),
        "AdminService/FinalizeUpgrade": _cluster(_UPDATE, _NODES),
        "AdminService/AcceptLoss": _cluster(_UPDATE, _NODES),
        "AdminService/ChainDigest": _cluster(_GET, _NODES),
        "AdminService/HaStatus": _cluster(_GET, _NODES),
        "AdminService/HaPromote": _cluster(_UPDATE, _NODES),
        "RetryService/RetryLater": _retry,
        "RetryService/ResendDeadLetters": _group(_UPDATE),
        "RetryService/ListDeadLetters": _group(_SUB),
        "RetryService/GetGroupSettings": _group(_GET),
        "RetryService/SetGroupSettings": _group(_UPDATE),
        "RetryService/ExportConfigFiles": _cluster(_GET, _VALUES),
        "RetryService/ImportConfigFiles": _cluster(_UPDATE, _VALUES),
        "TransactionService/EndTransaction": _end,
        "TransactionService/CheckTransactions": _producers(Action.PUB),
        "TransactionService/ListTransactions": _producers(_LIST),
        "TransactionService/DescribeTransaction": signed_in,
        "TransactionService/CommitConsumed": _consumed,
        "LookupService/TraceMessage": signed_in,
        "LookupService/TopicSizes": _topic(_GET),
        "PopService/Receive": _take,
        "PopService/Ack": _take,
        "PopService/ChangeInvisible": _take,
        "PopService/GiveUp": _take,
        "PopService/DescribePop": _group(_GET),
        "DelayService/CancelDelayed": signed_in,
        "DelayService/DelayStatus": _cluster(_GET, _NODES),
        "NameServerService/NameServerStatus": _cluster(_GET, _NODES),
        "NameServerService/TopicRoute": signed_in,
        "NameServerService/GetValues": _cluster(_GET, _VALUES),
        "NameServerService/PutValue": _cluster(_UPDATE, _VALUES),
        "NameServerService/DeleteValue": _cluster(_DELETE, _VALUES),
        "NameServerService/Report": of_nodes,
        "UserService/PutUser": _cluster(_UPDATE, _USERS),
        "UserService/DeleteUser": _cluster(_DELETE, _USERS),
        "UserService/ListUsers": _cluster(_LIST, _USERS),
        "UserService/PutRole": _cluster(_UPDATE, _USERS),
        "UserService/DeleteRole": _cluster(_DELETE, _USERS),
        "UserService/Explain": signed_in,
        "UserService/WhoAmI": signed_in,
        "UserService/HandAudit": of_nodes,
    }
)
"""By service and method."""
NODE_CALLS: Final = frozenset(
    {
        "LogService/Route",
        "NameServerService/TopicRoute",
        "TransactionService/CheckTransactions",
    }
)
"""The calls of users that nodes make, too. A node makes no others in its own name."""
