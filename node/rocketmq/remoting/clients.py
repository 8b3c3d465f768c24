"""Clients of this node: which groups they belong to, as their heartbeats say.

Owns the table and its bounds. A consumer sends its heartbeats to every address of its route, so
each node knows all members of a group; a client belongs to the connection that its last heartbeat
came on, and leaves with it. Rows of connections that ended are removed in slices, and no call shows
them meanwhile. The node tells members of a group when it changes, and then each of them shares out
its queues again.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from node.broker.groups.member import MemberKind, Reported
from node.rocketmq.protocol.names import EXPRESSION_LENGTH_MAX, comparable, tags_in
from node.rocketmq.remoting.conversation import RemotingConnection
from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.runtime.accounts import Account, Kind, row_size_bytes
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.rows import remove_from
from node.runtime.turn import Turn
from node.users.calling import Calling
from store.record.message import tags_code

SILENT_S_MAX: Final = 120.0
"""Time after which a silent client is out; RocketMQ's."""
CLIENT_ID_LENGTH_MAX: Final = 255
GROUPS_OF_CLIENT_MAX: Final = 256
"""Groups of each kind in one heartbeat."""
TOPICS_OF_GROUP_MAX: Final = 1_024
SQL: Final = "SQL92"
BROADCASTING: Final = "BROADCASTING"
_EXPRESSION_KINDS: Final = {"": False, "TAG": False, SQL: True}
RESERVED_S: Final = 120.0
"""As long as a silent client is kept."""
RESERVED_COUNT_MAX: Final = 16_384
"""Rows of all addresses."""
RESERVED_OF_ADDRESS_MAX: Final = RESERVED_COUNT_MAX // 4
_Reserved = tuple[bool, str, str]
"""Whether it is a group of consumers, its name, and the client id."""
_Key = tuple[bool, str]
"""Whether it is a group of consumers, and its name."""
_REPLIES: Final[_Key] = False, ""
"""Replies name no group: a client id of producers is that of one user in all groups."""


class Owner(NamedTuple):
    """Whose a client is."""

    host: str
    user: str
    """Its name; empty: users are off."""


def owner_of(account: Account, user: Calling | None) -> Owner:
    """Return whose the clients of an account and a user are."""
    return Owner(account.address.what, "" if user is None else user.name)


def is_sql(kind: str) -> bool:
    """Return whether an expression of a kind is SQL, and not of tags. Raises RefusedError."""
    is_sql_kind = _EXPRESSION_KINDS.get(kind)
    if is_sql_kind is None:
        text = f"expressions of kind {kind[:40]!r} are unknown; use TAG or {SQL}"
        raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
    return is_sql_kind


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member reads of a topic."""

    topic: str
    expression: str
    is_sql: bool

    def __post_init__(self) -> None:
        """Raise RefusedError for an expression that is too long, or has separators and no tag."""
        if len(self.expression) > EXPRESSION_LENGTH_MAX:
            what = f"{len(self.expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, what)
        if not self.is_all and not self.is_sql and not self.tags:  # None would be all messages.
            what = f"{self.expression[:200]!r} names no tag"
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, what)

    @property
    def is_all(self) -> bool:
        """Whether it asks for all messages, whatever their tags."""
        return self.expression.strip() in ("", "*")

    @property
    def tags(self) -> list[str]:
        """The tags of the expression; none: all messages."""
        return [] if self.is_sql or self.is_all else tags_in(self.expression)

    @property
    def comparable(self) -> str:
        """The expression as the leader compares it with those of others; empty: everything."""
        return comparable(self.expression, is_sql=self.is_sql)

    def document(self, version: int) -> dict[str, Any]:
        """Return the form that tools read."""
        tags = self.tags
        return {
            "topic": self.topic,
            "subString": self.expression,
            "subVersion": version,
            "expressionType": SQL if self.is_sql else "TAG",
            "tagsSet": tags,
            "codeSet": [tags_code(tag) for tag in tags],
            "classFilterMode": False,
        }


Told = tuple[Subscription, int]
"""What a member reads of a topic, and the version."""


class Consumption(NamedTuple):
    """What a heartbeat says of a consumer group."""

    consume_type: str
    message_model: str
    consume_from: str
    versions: Mapping[str, int]
    """Of each subscription: when the client changed it or its share last, by its clock."""
    subscriptions: Mapping[str, Subscription]
    """By topic; one object for members that joined one behind the other and read the same."""

    def of(self, topic: str) -> Told | None:
        """Return what it says of a topic; None: nothing."""
        subscription = self.subscriptions.get(topic)
        return None if subscription is None else (subscription, self.versions[topic])


_NOTHING: Final = Consumption("", "", "", MappingProxyType({}), MappingProxyType({}))


@dataclass(slots=True)
class Member:
    """One client as a member of one group."""

    client_id: str
    connection: RemotingConnection
    account: Account
    language: str
    version: int
    last_seen_s: float
    last_seen_unix_ms: int
    consumption: Consumption = _NOTHING
    """What its last heartbeat said of a group of consumers; no other member changes it."""
    size_bytes: int = 0
    """What the account pays for: the row, and the subscriptions."""
    is_popping: bool = False
    """Whether it takes messages by pop, which its heartbeats do not tell."""
    last_at: dict[int, RemotingConnection] = field(default_factory=dict)
    """The connection of the last heartbeat at each port: a client has one at a time."""
    rival: RemotingConnection | None = None
    """Of another client with its id and address, as far as the ports tell."""
    user: Calling | None = None
    """None: users are off."""

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return owner_of(self.account, self.user)

    @property
    def is_connected(self) -> bool:
        """Whether its connection is there; else the row is about to be removed."""
        return not self.connection.connection.is_ended

    @property
    def is_twice(self) -> bool:
        """Whether two clients are this member: each reads the messages of the other, too."""
        return self.rival is not None and not self.rival.connection.is_ended

    def follow(self, old: "Member | None") -> None:
        """Take over what is known of the member so far. A client that comes back to a connection
        while a later one at the same port is open shares its id with that one's."""
        port, own = self.connection.connection.port_number, self.connection
        if old is not None:
            self.is_popping, self.last_at, self.rival = old.is_popping, old.last_at, old.rival
        last = self.last_at.get(port, own)
        if last is not own:
            self.rival = last if own.client_id == self.client_id else None
        if not self.is_twice:
            self.rival = None
        self.last_at[port] = own

    @property
    def kind(self) -> MemberKind:
        """How it gets messages."""
        if self.is_popping:
            return MemberKind.POPPING
        is_broadcasting = self.consumption.message_model == BROADCASTING
        return MemberKind.BROADCASTING if is_broadcasting else MemberKind.SHARING


@dataclass(slots=True)
class Group:
    """The consumers of a group, or the producers of one."""

    members: dict[str, Member] = field(default_factory=dict)
    """By client id."""
    changed_s: float = 0.0
    """When members or subscriptions changed last, as this node knows; monotonic."""

    def connected(self) -> Iterator[Member]:
        """Yield the members that are connected: no other is shown to anybody."""
        return (member for member in self.members.values() if member.is_connected)

    def readers(self, topic: str) -> list[Member]:
        """Return the connected members that read a topic."""
        return [one for one in self.connected() if topic in one.consumption.subscriptions]

    def subscription(self, client_id: str, host: str, topic: str) -> Told | None:
        """Return what a client reads of a topic. One that is no member reads what members of its
        address do, else all others; None where these differ, too."""
        own = self.members.get(client_id)
        if own is not None:
            return own.consumption.of(topic)
        reading = self.readers(topic)
        reading = [one for one in reading if one.account.address.what == host] or reading
        subscriptions = [one for member in reading if (one := member.consumption.of(topic))]
        if len({one.comparable for one, _ in subscriptions}) != 1:
            return None
        return max(subscriptions, key=itemgetter(1))


class _Joining(NamedTuple):
    key: _Key
    old: Member | None
    """The client as a member so far."""
    size_bytes: int
    paid_bytes: int
    """Those that the account of the client pays for already; 0: it does not pay for the row."""
    consumption: Consumption


class ReservedIds:
    """Client ids whose connection broke: for a while they are those of the owner that they had.
    One per table of clients.

    Else a stranger that waits for the break takes the place of a client, which cannot come back
    then. An address that has too many loses its own oldest ones first: a stranger cannot fill the
    table."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._rows: dict[_Reserved, tuple[Owner, float]] = {}
        """Owner, and when it ends; the one that ends first is the first, as in the next table."""
        self._of_address: dict[str, dict[_Reserved, None]] = {}

    def owner(self, row: _Reserved) -> Owner | None:
        """Return for whom an id is reserved."""
        owner, until_s = self._rows.get(row, (None, 0.0))
        return owner if until_s > self._monotonic_s() else None

    def put(self, row: _Reserved, owner: Owner) -> None:
        """Reserve the id of a client whose connection broke."""
        self.forget(row)
        self._rows[row] = owner, self._monotonic_s() + RESERVED_S
        own = self._of_address.setdefault(owner.host, {})
        own[row] = None
        if len(own) > RESERVED_OF_ADDRESS_MAX:
            self.forget(next(iter(own)))
        elif len(self._rows) > RESERVED_COUNT_MAX:
            largest = max(self._of_address, key=lambda host: len(self._of_address[host]))
            self.forget(next(iter(self._of_address[largest])))

    def forget(self, row: _Reserved) -> None:
        """Reserve an id no longer, if it is reserved."""
        reserved = self._rows.pop(row, None)
        if reserved is not None:
            remove_from(self._of_address, reserved[0].host, row)

    def expire(self) -> None:
        """Forget the rows that ended."""
        now_s = self._monotonic_s()
        while self._rows:
            row, (_, until_s) = next(iter(self._rows.items()))
            if until_s > now_s:
                break
            self.forget(row)


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
        self._trouble = RateLimitedLog(logging.getLogger(__name__), monotonic_s=monotonic_s)
        self.consumers: dict[str, Group] = {}
        self.producers: dict[str, Group] = {}
        self._members_of: dict[RemotingConnection, dict[_Key, dict[str, None]]] = {}
        """Client ids on a connection, by the groups that they belong to."""
        self._producing: dict[str, dict[str, None]] = {}
        """Groups that a client id produces for."""
        self.changed: set[str] = set()
        """Consumer groups whose members changed since the last report to the leader."""
        self._reserved = ReservedIds(monotonic_s)
        self.count = 0
        """Memberships, those whose connection has ended and that are about to go included."""

    def _groups(self, key: _Key) -> dict[str, Group]:
        return self.consumers if key[0] else self.producers

    def members(self, key: _Key) -> dict[str, Member]:
        """Return the connected members of a group by client id; empty without any."""
        group = self._groups(key).get(key[1])
        return {} if group is None else {one.client_id: one for one in group.connected()}

    def newest(self, group: str) -> dict[str, Told]:
        """Return what consumers of a group read, by topic: where they differ, what was told last;
        empty without any."""
        newest_by_topic: dict[str, Told] = {}
        for consumption in (one.consumption for one in self.members((True, group)).values()):
            for topic, version in consumption.versions.items():
                if topic not in newest_by_topic or newest_by_topic[topic][1] <= version:
                    newest_by_topic[topic] = consumption.subscriptions[topic], version
        return newest_by_topic

    def _member(self, key: _Key, client_id: str) -> Member | None:
        """Return one member of a group, connected or not."""
        group = self._groups(key).get(key[1])
        return None if group is None else group.members.get(client_id)

    def put(
        self, client: Member, producers: Iterable[str], consumers: dict[str, Consumption]
    ) -> None:
        """Note that a client belongs to groups, all or none. Its account pays for the rows.

        Raises RefusedError while another address or user is connected with the same client id, or
        was a moment ago, and BusyError.
        """
        producing = dict.fromkeys(producers)
        rows = [self._joining((False, group), client, _NOTHING) for group in producing]
        rows += [self._joining((True, group), client, one) for group, one in consumers.items()]
        grown_bytes = sum(row.size_bytes - row.paid_bytes for row in rows)
        client.account.take(Kind.MEMBERS, grown_bytes, sum(not row.paid_bytes for row in rows))
        for row in rows:
            self._put(client, row)

    def _joining(self, key: _Key, client: Member, consumption: Consumption) -> _Joining:
        group = self._groups(key).get(key[1]) or Group()
        old = group.members.get(client.client_id)
        paid_bytes = old.size_bytes if old is not None and old.account is client.account else 0
        self._check_same_owner(key, old, client)
        size_bytes = row_size_bytes(client.client_id, key[1], client.language)
        for one in consumption.subscriptions.values():
            size_bytes += row_size_bytes(one.topic, one.expression)
        return _Joining(key, old, size_bytes, paid_bytes, consumption)

    def _check_same_owner(self, key: _Key, old: Member | None, client: Member) -> None:
        """Raise RefusedError where a client would take the place of one of another owner, or its
        replies.

        After a broken connection the client comes from the address that it had."""
        client_id, own = client.client_id, client.owner
        owner = self._reserved.owner((*key, client_id)) if old is None else old.owner
        if owner in (None, own) and not key[0]:
            asking = self.producer(client_id)
            row = (*_REPLIES, client_id)
            owner = self._reserved.owner(row) if asking is None else asking.owner
            if owner is not None and owner.user == own.user:
                return  # From another address it may produce for another group.
        if owner in (None, own):
            return
        is_same_user = owner.user == own.user
        whose = f"at {owner.host}" if is_same_user else "of another user"
        text = f"client id {client_id!r} of group {key[1]} is that of a client {whose}"
        self._trouble.warn("a client is refused", f"{text}, not at {own.host}")
        raise RefusedError(ResponseCode.NO_PERMISSION, f"{text}; use another instanceName")

    def _put(self, client: Member, row: _Joining) -> None:
        (is_consumer, name), old = row.key, row.old
        group = self._groups(row.key).setdefault(name, Group())
        if not is_consumer:
            self._producing.setdefault(client.client_id, {})[name] = None
            self._reserved.forget((*_REPLIES, client.client_id))
        if old is None:
            self.count += 1
            self._reserved.forget((*row.key, client.client_id))
        else:
            self._unbind(row.key, old)
            if not row.paid_bytes:
                old.account.give_back(Kind.MEMBERS, old.size_bytes)
        consumption, like = row.consumption, old or next(reversed(group.members.values()), None)
        if like is not None and like.consumption.subscriptions == consumption.subscriptions:
            consumption = consumption._replace(subscriptions=like.consumption.subscriptions)
        member = group.members[client.client_id] = replace(
            client, consumption=consumption, size_bytes=row.size_bytes, last_at={}
        )
        was_twice = old is not None and old.rival is not None
        member.follow(old)
        if is_consumer and member.is_twice and not was_twice:
            text = f"client id {client.client_id!r} of group {name} is that of two clients at"
            host = client.account.address.what
            self._trouble.warn("a client id is shared", f"{text} {host}; use another instanceName")
        of_connection = self._members_of.setdefault(member.connection, {})
        of_connection.setdefault(row.key, {})[client.client_id] = None
        if is_consumer and member.is_twice != was_twice:
            self.changed.add(name)
        # A newer version alone says that the client has shared out its queues again: it must not
        # make all others do so, too.
        own = row.consumption
        if is_consumer and (old is None or old.consumption._replace(versions=own.versions) != own):
            self.changed.add(name)
            group.changed_s = time.monotonic()
            self._on_changed(name)

    def _unbind(self, key: _Key, gone: Member) -> None:
        """Take a member that is gone from its connection, with its group if it was the last."""
        groups = self._members_of.get(gone.connection)
        if groups is not None:  # Else the connection was closed.
            remove_from(groups, key, gone.client_id)
            if not groups:
                del self._members_of[gone.connection]

    def leave(self, is_consumer: bool, group: str, client_id: str, caller: Owner) -> None:
        """Take a client out of a group, because a caller said so. Raises RefusedError if it is not
        the caller's."""
        member = self._member((is_consumer, group), client_id)
        if member is not None and member.is_connected:
            if member.owner != caller:
                text = f"client id {client_id!r} is that of a client of another address or user"
                raise RefusedError(ResponseCode.NO_PERMISSION, text)
            self._remove((is_consumer, group), [client_id])

    def _remove(self, key: _Key, client_ids: Sequence[str]) -> None:
        is_consumer, name = key
        group = self._groups(key)[name]
        for client_id in client_ids:
            gone = group.members.pop(client_id)
            self.count -= 1
            self._unbind(key, gone)
            gone.account.give_back(Kind.MEMBERS, gone.size_bytes)
            if is_consumer:
                self._on_left(name, client_id)
                continue
            remove_from(self._producing, client_id, name)
        if not group.members:
            del self._groups(key)[name]
        if is_consumer:
            self.changed.add(name)
            group.changed_s = time.monotonic()
            self._on_changed(name)

    def on_closed(self, connection: RemotingConnection) -> Iterator[None]:
        """Take the clients of a closed connection out of their groups, in steps. Those that do not
        come back over another one meanwhile have their ids reserved."""
        return self._take_out(connection, self._members_of.pop(connection, {}))

    def _take_out(
        self, connection: RemotingConnection, groups: dict[_Key, dict[str, None]]
    ) -> Iterator[None]:
        for key, client_ids in groups.items():
            members = [self._member(key, client_id) for client_id in client_ids]
            gone = [one for one in members if one is not None and one.connection is connection]
            for one in gone:
                self._reserved.put((*key, one.client_id), one.owner)
                if one.user is not None and not key[0]:
                    self._reserved.put((*_REPLIES, one.client_id), one.owner)
            if gone:
                self._remove(key, [one.client_id for one in gone])
            yield

    def popping(self, group: str, client_id: str, caller: Owner) -> None:
        """Note that a consumer, which is the caller's, takes messages by pop."""
        member = self._member((True, group), client_id)
        if member is None or member.owner != caller:
            return
        if not member.is_popping:
            member.is_popping = True
            self.changed.add(group)

    def reported(self, group: str) -> Reported | None:
        """Return the members of a group and what they read; None without any."""
        group_members = self.consumers.get(group)
        if group_members is None:
            return None
        members = [*group_members.connected()]
        return Reported(
            {one.client_id: one.kind for one in members},
            {
                member.client_id: {
                    topic: one.comparable for topic, one in member.consumption.subscriptions.items()
                }
                for member in members
            },
            twice=[one.client_id for one in members if one.is_twice],
        )

    def producer(self, client_id: str) -> Member | None:
        """Return a producer by its client id; None if none is registered here."""
        groups = self._producing.get(client_id, ())
        members = (self.producers[group].members[client_id] for group in groups)
        return next((member for member in members if member.is_connected), None)

    def consumer(self, group: str, client_id: str) -> Member | None:
        """Return a connected member of a consumer group."""
        member = self._member((True, group), client_id)
        return member if member is not None and member.is_connected else None

    async def expire(self, turn: Turn) -> None:
        """Take clients out that were silent for too long."""
        self._reserved.expire()
        oldest_s = self._monotonic_s() - SILENT_S_MAX
        silent = [
            ((is_consumer, name), member)
            for is_consumer, groups in ((True, self.consumers), (False, self.producers))
            for name, group in groups.items()
            for member in group.members.values()
            if member.last_seen_s < oldest_s
        ]
        async for key, member in turn.over(silent):
            if self.members(key).get(member.client_id) is member:
                self._remove(key, [member.client_id])
