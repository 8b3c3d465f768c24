"""Clients of this node: which groups they belong to, as their heartbeats say.

Owns the table and its bounds. A consumer sends its heartbeats to every address of its route, so
each node knows all members of a group; a client belongs to the connection that its last heartbeat
came on, and leaves with it. The node tells members of a group when it changes, and then each of
them shares out its queues again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from node.rocketmq.protocol.filters import EXPRESSION_LENGTH_MAX
from node.rocketmq.remoting.conversation import RemotingConnection
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.runtime.turn import Turn

CLIENT_COUNT_MAX: Final = 16_384
"""Memberships that are kept. Above it a heartbeat of a new one is refused."""
SILENT_S_MAX: Final = 120.0
"""Time after which a silent client is out; RocketMQ's."""
CLIENT_ID_LENGTH_MAX: Final = 255
GROUPS_OF_CLIENT_MAX: Final = 256
TOPICS_OF_GROUP_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group reads of a topic."""

    topic: str
    expression: str
    is_sql: bool
    version: int
    document: dict[str, Any] = field(compare=False)
    """As the client wrote it, for tools."""

    def __post_init__(self) -> None:
        """Raise RefusedError for an expression that is too long to be taken apart."""
        if len(self.expression) > EXPRESSION_LENGTH_MAX:
            what = f"{len(self.expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, what)

    @property
    def tags(self) -> list[str]:
        """The tags of the expression; none: all messages."""
        if self.is_sql or self.expression.strip() in ("", "*"):
            return []
        return [tag for tag in (part.strip() for part in self.expression.split("||")) if tag]


@dataclass(slots=True)
class Member:
    """One client as a member of one group."""

    client_id: str
    connection: RemotingConnection
    language: str
    version: int
    last_seen_s: float
    last_seen_unix_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The consumers of a group, and what they read."""

    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


class Clients:
    """The table of clients. One per gateway."""

    def __init__(
        self,
        on_changed: Callable[[str], None],
        on_left: Callable[[str, str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_changed` is called with a consumer group whose members or subscriptions changed,
        `on_left` with group and client id of a consumer that left."""
        self._on_changed, self._on_left = on_changed, on_left
        self._monotonic_s = monotonic_s
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._members_of: dict[RemotingConnection, dict[tuple[bool, str], set[str]]] = {}
        """Client ids on a connection, by the groups that they belong to; True: of consumers."""
        self._producing: dict[str, set[str]] = {}
        """Groups that a client id produces for."""
        self.count = 0
        """Memberships."""

    def put_producer(self, group: str, member: Member) -> None:
        """Note that a client produces for a group. Raises RefusedError."""
        members = self.producers.get(group, {})
        self._put(False, group, members, member)
        self.producers[group] = members  # Not before: a refused client leaves no group behind.
        self._producing.setdefault(member.client_id, set()).add(group)

    def put_consumer(
        self, group: str, member: Member, described: ConsumerGroup, topics: dict[str, Subscription]
    ) -> None:
        """Note that a client consumes for a group, as `described` says. Raises
        RefusedError."""
        known = self.consumers.get(group, ConsumerGroup())
        is_new = self._put(True, group, known.members, member)
        self.consumers[group] = known
        known.consume_type = described.consume_type
        known.message_model = described.message_model
        known.consume_from = described.consume_from
        if self._subscribe(known, topics) or is_new:
            self._on_changed(group)

    @staticmethod
    def _subscribe(group: ConsumerGroup, topics: dict[str, Subscription]) -> bool:
        """Take subscriptions that are newer, drop those that ended; return whether any changed."""
        before = dict(group.subscriptions)
        for topic, told in topics.items():
            known = group.subscriptions.get(topic)
            if known is None or told.version > known.version:
                group.subscriptions[topic] = told
        for topic in [topic for topic in group.subscriptions if topic not in topics]:
            del group.subscriptions[topic]
        return before != group.subscriptions

    def _put(
        self, is_consumer: bool, group: str, members: dict[str, Member], member: Member
    ) -> bool:
        """Put a member in; return whether it is new."""
        old = members.get(member.client_id)
        if old is None and self.count >= CLIENT_COUNT_MAX:
            text = f"{CLIENT_COUNT_MAX} clients are registered, the limit; stop some"
            raise RefusedError(ResponseCode.SYSTEM_BUSY, text)
        groups = self._members_of.setdefault(member.connection, {})
        key = (is_consumer, group)
        if key not in groups and len(groups) >= GROUPS_OF_CLIENT_MAX:
            text = f"{GROUPS_OF_CLIENT_MAX} groups of one client, the limit"
            raise RefusedError(ResponseCode.SYSTEM_BUSY, text)
        if old is None:
            self.count += 1
        else:
            self._unbind(key, old)
        groups.setdefault(key, set()).add(member.client_id)
        members[member.client_id] = member
        return old is None

    def _unbind(self, key: tuple[bool, str], gone: Member) -> None:
        """Take a member that is gone from its connection, with its group if it was the last."""
        groups = self._members_of.get(gone.connection, {})
        client_ids = groups.get(key, set())
        client_ids.discard(gone.client_id)
        if not client_ids:
            groups.pop(key, None)

    def remove(self, is_consumer: bool, group: str, client_id: str) -> None:
        """Take a client out of a group, because it said so."""
        if is_consumer:
            known = self.consumers.get(group)
            gone = known.members.pop(client_id, None) if known is not None else None
            if known is not None and gone is not None:
                self.count -= 1
                self._unbind((True, group), gone)
                self._on_left(group, client_id)
                self._after_leave(group, known)
            return
        members = self.producers.get(group)
        if members is not None:
            gone = members.pop(client_id, None)
            if gone is not None:
                self.count -= 1
                self._unbind((False, group), gone)
                producing = self._producing[client_id]
                producing.remove(group)
                if not producing:
                    del self._producing[client_id]
            if not members:
                del self.producers[group]

    def _after_leave(self, group: str, known: ConsumerGroup) -> None:
        if not known.members:
            del self.consumers[group]
        self._on_changed(group)

    def on_closed(self, connection: RemotingConnection) -> None:
        """Take the clients of a closed connection out of their groups."""
        for (is_consumer, group), client_ids in self._members_of.pop(connection, {}).items():
            for client_id in client_ids:
                self.remove(is_consumer, group, client_id)

    def producer(self, client_id: str) -> Member | None:
        """Return a producer by its client id; None if none is registered here."""
        group = next(iter(self._producing.get(client_id, ())), None)
        return None if group is None else self.producers[group][client_id]

    async def expire(self, turn: Turn) -> None:
        """Take clients out that were silent for too long."""
        oldest_s = self._monotonic_s() - SILENT_S_MAX
        silent = [one for one in self._all() if one[2].last_seen_s < oldest_s]
        async for is_consumer, group, member in turn.over(silent):
            if member.last_seen_s < oldest_s:
                self.remove(is_consumer, group, member.client_id)

    def _all(self) -> Iterator[tuple[bool, str, Member]]:
        for group, known in self.consumers.items():
            for member in known.members.values():
                yield True, group, member
        for group, members in self.producers.items():
            for member in members.values():
                yield False, group, member
