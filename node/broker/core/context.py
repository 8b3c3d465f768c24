"""Shared by all parts of the broker: the identity of this node, its store and state, leadership.

Owns the checks that many calls begin with, and the way from an error of a lower layer to one with a
leader hint; must not know any single call.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from node.broker.core.makers import Makers
from node.broker.core.offset_moves import OffsetMoves
from node.contract import Driver, ReceiptRules
from node.errors.common import (
    AppendTimeoutError,
    BadRequestError,
    NodeError,
    NotReadyError,
    ReservedTopicError,
    ShuttingDownError,
    TopicNotReadableError,
    TopicNotWritableError,
    UnknownQueueError,
    UnknownTopicError,
    WrongClusterError,
)
from node.errors.translation import from_raft
from node.runtime.clock import unix_ms
from node.runtime.turn import Turn
from node.state.held import held_counts
from node.state.machine import StateMachine
from node.state.state import PERMISSION_READ, PERMISSION_WRITE, State
from node.state.tables.dead_letters import DeadLettersTable
from node.state.tables.topic_origins import TopicOriginsTable
from node.state.tables.topic_types import TopicSettings
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.log_pb2 import GroupRoute
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import ConsumedOffset
from raft.errors import RaftError
from raft.messages import NO_NODE, NodeId
from raft.transitions import Role
from store.errors import CorruptionError, DerivedFileError
from store.format import DEAD_LETTER_TOPIC_PREFIX
from store.record.check import store_timestamp
from store.record.message import check_topic
from store.record.topic_names import is_reserved

_T = TypeVar("_T")
_OFFSET_MAX: Final = (1 << 63) - 1
DAMAGE: Final = (CorruptionError, DerivedFileError)
"""Errors about one place of the log; any other error of the store is about the whole node."""
NAME_CHARACTERS: Final = frozenset(
    "%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


OtherGroups = Callable[[Iterable[str]], Iterable[GroupRoute]]
"""Returns the other groups of the cluster and their shares of these topics. The call does not wait:
everything unknown is left out."""


class BrokerIdentity(NamedTuple):
    """The identity of this node for its clients."""

    cluster_id: str
    addresses: Mapping[NodeId, str]
    """host:port of each node's client service, as configured; replicated addresses override it."""
    group: str = "g0"
    """The broker group of this node."""
    name_count: int = 3
    """Broker names of a group, for clients of the classic protocol."""
    framed_address: str = ""
    """Address of the framed port, for routes (`RouteResponse.framed_address`)."""
    remoting_addresses: tuple[str, ...] = ()
    """The same for RocketMQ's remoting protocol."""


class Context:
    """The objects and checks that all parts share. One per broker."""

    def __init__(
        self,
        driver: Driver,
        machine: StateMachine,
        identity: BrokerIdentity,
        receipts: ReceiptRules,
        *,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        unix_ms: Callable[[], int] = unix_ms,
        turn: Turn | None = None,
        on_damage: Callable[[CorruptionError | DerivedFileError], None] = lambda _error: None,
    ) -> None:
        self.receipts: Final = receipts
        self.driver: Final = driver
        self.store: Final = machine.store
        self.machine: Final = machine
        self.identity: Final = identity
        self.limits: Final = machine.limits
        self.moves: Final = OffsetMoves()
        """Offsets that commands under way will change; every way into the log notes them."""
        self.turn: Final = turn or Turn()
        """Shares the event loop out among the calls that walk much."""
        self.clock_ms: Final = clock_ms
        """The clock of sessions, and of looks at what callers made."""
        self.unix_ms = unix_ms
        """The clock of times that go into the state."""
        self.makers: Final = Makers(self.store, lambda: self.state, self.limits, clock_ms)
        """Who made what; every call of clients that makes something durable asks it."""
        self.is_stopped = False
        self.store.origin = self.origin
        self.on_damage = on_damage
        """Called with damage found by work beside the calls; a call reports its own."""

    def note_damage(self, error: Exception) -> None:
        """Report an error of work beside the calls, if it is damage."""
        if isinstance(error, DAMAGE):
            self.on_damage(error)

    @property
    def state(self) -> State:
        """The replicated state; a snapshot replaces it, so it is looked up each time."""
        return self.machine.state

    def origin(self, topic: str) -> int:
        """Return the position before which records of this name are those of a deleted topic, or
        of a deleted group."""
        state = self.state
        origin = state.table(TopicOriginsTable).origin(topic)
        if topic[:1] == "%" and topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            group = topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            origin = max(origin, state.table(DeadLettersTable).begin_position(group))
        return origin

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return when the message at an offset was stored; None where there is none."""
        lo, hi = self.store.queue_range(topic, queue_id)
        if not lo <= offset < hi:
            return None
        pulled = self.store.pull(topic, queue_id, offset, max_count=1, max_size_bytes=1)
        return store_timestamp(pulled.data) if pulled.record_count else None

    def create_command(self, put: Command.PutTopic) -> Command:
        """Return the command that creates or changes a topic.

        If the log may have records of the name, in its queues or held for later, the topic gets an
        origin when the command creates it.
        """
        if self.store.was_written(put.topic) or any(held_counts(self.store, self.state)):
            return Command(recreate_topic=put)
        return Command(put_topic=put)

    # --- Whether this node may answer ---

    def check_cluster(self, cluster_id: str) -> None:
        """Raise WrongClusterError if the caller means another cluster. Empty: it names none."""
        if cluster_id and cluster_id != self.identity.cluster_id:
            raise WrongClusterError(cluster_id, self.identity.cluster_id)

    def check_call(self, cluster_id: str, field: str, name: str) -> None:
        """Raise unless this node may serve a call about a name: see `check_cluster`, `check_name`
        and `check_leads`."""
        self.check_cluster(cluster_id)
        self.check_name(field, name)
        self.check_leads()

    def check_running(self) -> None:
        """Raise ShuttingDownError once the broker is stopped."""
        if self.is_stopped:
            raise self.with_leader(ShuttingDownError())

    def check_local(self) -> None:
        """Raise unless this node may answer from its own data, under any leader."""
        self.check_running()
        error = self.receipts.why_not_local()
        if error is not None:
            raise self.with_leader(error)

    def check_leads(self) -> None:
        """Raise unless this node leads and has applied everything that was acknowledged before."""
        if self.is_stopped or not self.driver.is_ready:
            raise self.why_not()

    def why_not(self) -> NodeError:
        """Return the error that says why this node may not answer as the leader."""
        driver = self.driver
        if self.is_stopped:
            return self.with_leader(ShuttingDownError())
        if driver.role is Role.LEADER:
            return NotReadyError(driver.term).with_leader(
                driver.node_id, self.address_of(driver.node_id)
            )
        return self.with_leader(self.receipts.not_leader(driver.leader_id))

    async def decided(self, work: "asyncio.Future[_T]") -> _T:
        """Wait for an entry. A caller that gives up does not withdraw it. Raises
        AppendTimeoutError."""
        timeout_ms = self.limits.append_timeout_ms
        return await within(
            asyncio.shield(work), timeout_ms, lambda: AppendTimeoutError(timeout_ms)
        )

    # --- Where others are ---

    def address_of(self, node: NodeId) -> str:
        """Return host:port of a node's client service; empty if it is not known."""
        member = self.state.members.get(node)
        if member is not None and member.address:
            return member.address
        return self.identity.addresses.get(node, "")

    def with_leader(self, error: NodeError) -> NodeError:
        """Add the leader's id and address to an error, as this node knows them."""
        leader = self.driver.leader_id
        return error.with_leader(leader, self.address_of(leader) if leader != NO_NODE else "")

    def translate(self, error: Exception) -> Exception:
        """Return the error for the caller: Raft's as the node's, leader hints with an address."""
        if isinstance(error, RaftError):
            error = from_raft(error)
        if isinstance(error, NotReadyError):
            return self.why_not() if not self.driver.is_ready else error
        if isinstance(error, NodeError):
            if error.leader_id != NO_NODE:
                return error.with_leader(error.leader_id, self.address_of(error.leader_id))
            if error.status == "UNAVAILABLE":
                return self.with_leader(error)
        return error

    # --- Topics and names ---

    def topic(self, name: str) -> TopicSettings:
        """Return a topic. Raises UnknownTopicError, TopicNameError for a name of no topic."""
        topic = self.state.topic(name)
        if topic is None:
            check_topic(name.encode("utf-8", "backslashreplace"))
            raise UnknownTopicError(name)
        return topic

    def readable(self, name: str, queue_id: int) -> None:
        """Raise unless this queue exists and may be read."""
        topic = self.topic(name)
        if not topic.permission & PERMISSION_READ:
            if is_reserved(name):
                raise ReservedTopicError(name)
            raise TopicNotReadableError(name, topic.permission)
        if not 0 <= queue_id < topic.queue_count:
            raise UnknownQueueError(name, queue_id, topic.queue_count)

    def writable(self, name: str, queue_id: int) -> None:
        """Raise unless this queue of a topic of clients exists and takes messages."""
        topic = self.state.topics.get(name)
        if topic is None:
            raise UnknownTopicError(name)
        if not topic.permission & PERMISSION_WRITE:
            raise TopicNotWritableError(name, topic.permission)
        if not 0 <= queue_id < topic.queue_count:
            raise UnknownQueueError(name, queue_id, topic.queue_count)

    def check_offset(self, topic: str, queue_id: int, offset: int, *, has_end: bool = True) -> None:
        """Raise unless a group may be at this offset of a queue; on the leader.

        A group behind the end would miss messages. The end is that of the log: another replica may
        have shown readers what this one applies in a moment. Raises UnknownTopicError,
        UnknownQueueError, BadRequestError."""
        refusal = self.state.queue_refusal(topic, queue_id)
        if refusal is not None:
            raise refusal
        end = self.store.written_end(topic, queue_id) if has_end else _OFFSET_MAX
        if not 0 <= offset <= end:
            expected = f"0 to {end}, the end of {topic}/{queue_id}"
            raise BadRequestError("offset", expected, str(offset))

    def check_name(self, field: str, name: str) -> None:
        """Raise BadRequestError for a group name that cannot stand in the files of RocketMQ."""
        limit = self.limits.name_size_characters_max
        if not name or len(name) > limit or not NAME_CHARACTERS.issuperset(name):
            expected = f"1 to {limit} of letters, digits, '%', '|', '_' and '-'"
            raise BadRequestError(field, expected, repr(name[: limit + 1]))

    def check_count(self, field: str, count: int, limit: int, least: int = 0) -> None:
        """Raise BadRequestError for a list in a request that is too short or too long."""
        if not least <= count <= limit:
            expected = f"{least} to {limit} of them" if least else f"at most {limit} of them"
            raise BadRequestError(field, expected, str(count))

    def check_rows(
        self, field: str, rows: Sequence[GroupOffset] | Sequence[ConsumedOffset], least: int = 1
    ) -> None:
        """Raise BadRequestError for too few or many offsets, or two of one queue."""
        self.check_count(field, len(rows), self.limits.queue_offsets_count_max, least)
        if len({(row.topic, row.queue_id) for row in rows}) < len(rows):
            raise BadRequestError(field, "each queue once", "one twice")

    def check_client(self, client_id: str) -> None:
        """Raise BadRequestError for a client id that is empty or too long."""
        limit = 2 * self.limits.name_size_characters_max
        if not 1 <= len(client_id) <= limit:
            raise BadRequestError("client_id", f"1 to {limit} characters", str(len(client_id)))


def noted(future: "asyncio.Future[Any]") -> None:
    """Mark an error as retrieved: the caller that waited for it may have gone."""
    if not future.cancelled():
        future.exception()


async def within(work: Awaitable[_T], timeout_ms: float, on_timeout: Callable[[], NodeError]) -> _T:
    """Wait for work, at most `timeout_ms`; then cancel it and raise the error of `on_timeout`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await work
    except TimeoutError:
        raise on_timeout() from None
