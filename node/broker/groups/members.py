"""Live members of consumer groups, of every protocol: soft state of the leader.

Owns sessions and generations; must not know offsets or the log. Members are not replicated: they
send heartbeats, and nodes report the members that talk RocketMQ's protocols to them. A new leader
knows them all after one round of both. Until then it names no member of a group, so that the first
one to call does not take all queues; only where no topic is older than the term there are no
members to wait for. A session is over when a call looks at it; a timer gives back what members hold
that no call looks at.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.errors.common import LimitReachedError, NotReadyError
from node.errors.groups import ClientIdInUseError, GroupKindError
from node.runtime.accounts import Charge, Kind, caller
from quorumlog.pb import consumer_pb2 as pb
from store.record.topic_names import retry_topic

Queues = frozenset[tuple[str, int]]
_ROW_SIZE_BYTES: Final = 700
_TOPIC_SIZE_BYTES: Final = 250
_QUEUE_SIZE_BYTES: Final = 150
_FILTER_SIZE_BYTES: Final = 350
_ENTRY_SIZE_BYTES: Final = 100
"""Memory of a member, of a topic with its name, of a queue, of a filter and of its entry for one
more topic, at most about."""
_HOLDING_MS_MAX: Final = 60_000
"""Time for which a member that takes messages by pop counts as alive, after its last call, if their
invisible time is that long."""
_NO_TOPICS: Final = frozenset[str]()
Filters = Mapping[str, str]
"""By topic; empty: everything."""
_NO_FILTERS: Final[Filters] = MappingProxyType({})


class MemberKind(IntEnum):
    """How a member gets messages: those of one kind share a group."""

    SHARING = pb.MEMBER_KIND_SHARING
    BROADCASTING = pb.MEMBER_KIND_BROADCASTING
    POPPING = pb.MEMBER_KIND_POPPING


class Reported(NamedTuple):
    """The members of a group at one node, and what they read."""

    kinds: Mapping[str, MemberKind]
    """By client id."""
    filters: Mapping[str, Filters]
    """By client id: one object for all members that read the same."""
    refused: Collection[str] = ()
    """Client ids of those that the last leader refused."""
    twice: Collection[str] = ()
    """Client ids of those that are two clients each."""


_NOTHING: Final = Reported({}, {})


class Shares(NamedTuple):
    """How the members of one kind share a group."""

    client_ids: list[str]
    """Sorted, the caller included."""
    readers: dict[str, list[int]]
    """Indexes of the readers of each topic of the caller, and of the retry topic, that not all of
    them read."""
    speaking: set[int]
    """Indexes of those that send heartbeats; others, which nodes report, divide by RocketMQ's
    strategy."""
    generation: int
    warnings: list[str]


class _Member:
    __slots__ = (
        "charge",
        "filters",
        "instance",
        "is_refused",
        "kind",
        "nodes",
        "queues",
        "spoke_ms",
        "strategy",
        "topics",
        "until_ms",
    )

    def __init__(self, kind: MemberKind, charge: Charge | None) -> None:
        self.kind, self.charge = kind, charge
        self.until_ms = 0
        """When it counts as gone, if it sends heartbeats."""
        self.instance, self.spoke_ms = 0, 0
        """The consumer that sends them, and when it sent the last one."""
        self.nodes: set[int] = set()
        """Those that report it; none: it sends heartbeats."""
        self.topics, self.strategy = _NO_TOPICS, ""
        self.filters = _NO_FILTERS
        self.is_refused = False
        """Whether its node reports that a leader refused it, or it says that none let it in."""
        self.queues: Queues = frozenset()
        """Queues that the member says it reads: no classic client moves their offsets back."""

    def is_of(self, instance: int) -> bool:
        """Whether it is this consumer, which sends its heartbeats itself."""
        return not self.nodes and self.instance == instance

    def resize(self, topics: frozenset[str], filters: Filters, queues: Queues) -> None:
        """Charge what it names. Raises BusyError."""
        if self.charge is not None:
            self.charge.resize(_size_bytes(topics, filters, queues))


class _Group:
    __slots__ = (
        *("generation", "kind", "left_out", "members", "notified", "reported", "shared_at"),
        *("twice", "warnings"),
    )

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.kind: MemberKind | None = None
        """See `Members._kind`."""
        self.members: dict[str, _Member] = {}
        self.reported: dict[int, dict[str, MemberKind]] = {}
        """Kinds of members by reporter."""
        self.notified = (0, 0)
        """The last change of which members were notified, and by which node."""
        self.left_out: dict[int, list[str]] = {}
        """Clients over the limit by reporter: no members."""
        self.twice: dict[int, Collection[str]] = {}
        """Members that are two clients each, by reporter."""
        self.shared_at = -1
        """The generation in which it was found not to be read by pop."""
        self.warnings: list[str] | None = None
        """None: not looked at since the last change."""

    def is_notified_by(self, reporter: int) -> bool:
        """Whether a node notifies the members of the last change: the first one that asks and has
        them all, also if it asks again. If no node has all, each notifies its own."""
        count = sum(bool(member.nodes) for member in self.members.values())
        if len(self.reported.get(reporter, ())) < count:
            return all(len(reported) < count for reported in self.reported.values())
        generation, notifier = self.notified
        if generation == self.generation and notifier != reporter:
            return False
        self.notified = self.generation, reporter
        return True


class _Node:
    """What one node reported."""

    __slots__ = ("groups", "seen_ms")

    def __init__(self) -> None:
        self.seen_ms = 0
        self.groups: set[str] = set()


class Members:
    """The members of all groups. One per broker. All are forgotten when the term changes."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._groups: dict[str, _Group] = {}
        self._nodes: dict[int, _Node] = {}
        self._term = -1
        self._settled_ms = 0
        """When all members of older terms had time to speak."""
        self._undecided = set[str]()
        """Groups that were asked about before, or have members that were refused or may be; they
        count as changed then."""
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.total_count = 0
        """Members of all groups, those with an ended session that is not yet noticed included."""

    # --- Heartbeats ---

    def heartbeat(
        self,
        group: str,
        client_id: str,
        topics: frozenset[str],
        kind: MemberKind,
        now_ms: int,
        strategy: str = "",
        reading: str = "",
        *,
        is_new: bool = False,
        instance: int = 0,
    ) -> Shares:
        """Note that a member is alive; return how those of its kind share the group. `reading` is
        its filter, see `comparable`; `is_new`: no leader let it in so far; `instance`: the consumer
        itself, of which each has another.

        Raises NotReadyError while a new leader collects the members, ClientIdInUseError,
        GroupKindError, LimitReachedError, BusyError.
        """
        self.begin_term(now_ms)
        found = self._group(group, now_ms) or _Group(self._next_generation())
        member = self._of_instance(group, found, client_id, instance, now_ms, is_new=is_new)
        filters = dict.fromkeys(topics, reading)
        if member is None or member.kind is not kind or member.is_refused:
            self._check_kind(group, found, kind, now_ms)
        if member is None:
            size_bytes = _size_bytes(topics, filters, frozenset())
            member = self._add(group, found, client_id, kind, size_bytes)
        member.is_refused = is_new and self.unsettled_ms(now_ms) > 0
        told = (topics, filters, kind, strategy)
        member.instance, member.spoke_ms = instance, now_ms
        member.until_ms = now_ms + self._context.limits.session_ms
        if (member.topics, member.filters, member.kind, member.strategy) != told:
            member.resize(topics, filters, member.queues)
            member.topics, member.filters, member.kind, member.strategy = told
            self._changed(found)
        self.check_settled(group, now_ms)
        return self._shares(group, found, topics, kind, now_ms)

    def receive(
        self,
        group: str,
        client_id: str,
        topic: str,
        reading: str,
        now_ms: int,
        wait_ms: int = 0,
        invisible_ms: int = 0,
        instance: int = 0,
    ) -> None:
        """Note that a client waits for messages by pop, or has got some. `reading` and `instance`
        as of `heartbeat`.

        Raises ClientIdInUseError, GroupKindError, LimitReachedError, BusyError.
        """
        self.begin_term(now_ms)
        found = self._group(group, now_ms) or _Group(self._next_generation())
        self._check_kind(group, found, MemberKind.POPPING, now_ms)
        member = self._of_instance(group, found, client_id, instance, now_ms, is_new=True)
        topics = (member.topics if member is not None else _NO_TOPICS) | {topic}
        limit = self._context.limits.member_topic_count_max
        if len(topics) > limit:
            raise LimitReachedError(f"topics of member {client_id!r}", len(topics), limit)
        filters = {**(_NO_FILTERS if member is None else member.filters), topic: reading}
        if member is None:
            size_bytes = _size_bytes(topics, filters, frozenset())
            member = self._add(group, found, client_id, MemberKind.POPPING, size_bytes)
        told = (topics, filters, MemberKind.POPPING)
        if (member.topics, member.filters, member.kind) != told:
            member.resize(topics, filters, member.queues)
            member.topics, member.filters, member.kind = told
            self._changed(found)
        member.instance, member.spoke_ms = instance, now_ms
        holding_ms = max(self._context.limits.session_ms, min(invisible_ms, _HOLDING_MS_MAX))
        member.until_ms = max(member.until_ms, now_ms + wait_ms + holding_ms)

    def leave(self, group: str, client_id: str, now_ms: int, instance: int = 0) -> None:
        """Forget a member, if it is one; another consumer with its client id stays."""
        self.begin_term(now_ms)
        found = self._group(group, now_ms)
        member = None if found is None else found.members.get(client_id)
        if found is not None and member is not None and member.is_of(instance):
            self._remove(group, found, [client_id])

    def _of_instance(
        self, name: str, group: _Group, client_id: str, instance: int, now_ms: int, *, is_new: bool
    ) -> _Member | None:
        """Return the member that a consumer is, None so far. Raises ClientIdInUseError while it is
        another one: they would divide as one. Of two that a new leader hears of, the one that the
        old leader let in stays."""
        member = group.members.get(client_id)
        if member is None or member.is_of(instance):
            return member
        left_ms = self._context.limits.session_ms
        if not member.nodes:
            left_ms -= now_ms - member.spoke_ms
        if left_ms > 0 and (is_new or not member.is_refused):
            raise ClientIdInUseError(client_id, name, left_ms)
        for reporter in member.nodes:
            del group.reported[reporter][client_id]
            group.left_out.setdefault(reporter, []).append(client_id)
        member.nodes.clear()
        return member

    def note_queues(self, group: str, client_id: str, queues: Queues) -> None:
        """Remember the queues that a member says it reads. Raises BusyError."""
        member = self._groups[group].members[client_id]
        if member.queues != queues:
            member.resize(member.topics, member.filters, queues)
            member.queues = queues

    # --- Reports ---

    def report(
        self, reporter: int, groups: Mapping[str, Reported], now_ms: int, *, is_whole: bool
    ) -> bool:
        """Take what a node says of its members: of all groups, or of those that changed. Return
        whether the node has to report the whole. Clients over the limit of a group become no
        members; see `refused_at`."""
        self.begin_term(now_ms)
        self._forget_silent_nodes(now_ms)
        if self._undecided and not self.unsettled_ms(now_ms):
            for group in filter(None, map(self._groups.get, self._undecided)):
                self._changed(group)
            self._undecided.clear()
        node = self._nodes.get(reporter)
        if node is None:
            if not is_whole:
                return True
            node = self._nodes[reporter] = _Node()
            self._sweep_later()
        node.seen_ms = now_ms
        for name in node.groups - groups.keys() if is_whole else ():
            self._take_report(name, reporter, _NOTHING, now_ms)
        for name, reported in groups.items():
            self._take_report(name, reporter, reported, now_ms)
        return False

    def changed_since(self, reporter: int, generation: int) -> tuple[int, list[str]]:
        """Return the newest generation, and the groups whose members a node has to notify, since
        they changed after an older one. Where all members are at several nodes, one notifies."""
        node = self._nodes.get(reporter)
        names = sorted(node.groups) if node is not None else ()
        newest = max(0, self._term) << 32 | self._changes
        groups = [(name, self._groups[name]) for name in names if name in self._groups]
        changed = [(name, group) for name, group in groups if group.generation > generation]
        return newest, [name for name, group in changed if group.is_notified_by(reporter)]

    def refused_at(self, reporter: int, group: str, now_ms: int) -> list[str]:
        """Return the clients at a node that get no messages of a group: it is read in another way
        than theirs, or they are more than it may have. A new leader knows those of the old one."""
        found = self._group(group, now_ms)
        if found is None:
            return []
        refused = self._refused(found, now_ms)
        if self.unsettled_ms(now_ms):
            refused = [name for name, one in found.members.items() if _is_out(one)]
        here = found.reported.get(reporter, {})
        return [one for one in refused if one in here] + found.left_out.get(reporter, [])

    def _take_report(self, name: str, reporter: int, reported: Reported, now_ms: int) -> None:
        group, names = self._groups.get(name), self._nodes[reporter].groups
        if group is None:
            group = _Group(self._next_generation())
        old, taken = group.reported.pop(reporter, {}), dict[str, MemberKind]()
        if reported.kinds:
            names.add(name)
            group.reported[reporter] = taken
        else:
            names.discard(name)
        gone = old.keys() - reported.kinds.keys()  # Of those taken, so each is a member.
        for client_id in gone:
            group.members[client_id].nodes.remove(reporter)
        self._remove(name, group, [one for one in gone if not group.members[one].nodes])
        self._kind(group, now_ms)  # Members that are there decide before others come.
        limit, left_out = self._context.limits.group_member_count_max, list[str]()
        topics = {id(one): frozenset(one) for one in reported.filters.values()}
        for client_id, kind in reported.kinds.items():
            known = group.members.get(client_id)
            if known is None:
                if len(group.members) >= limit:
                    left_out.append(client_id)  # It keeps no other group from being reported.
                    continue
                known = self._add(name, group, client_id, kind, 0)
            elif not known.nodes:  # The id of a member that speaks for itself.
                left_out.append(client_id)
                continue
            known.nodes.add(reporter)
            taken[client_id] = kind
            # A classic client tells one node that it takes messages by pop.
            told = max(one.get(client_id, kind) for one in group.reported.values())
            filters = reported.filters.get(client_id, _NO_FILTERS)
            if (known.kind, known.filters) != (told, filters):
                self._changed(group)
            known.kind, known.filters = told, filters
            known.topics = topics.get(id(filters), _NO_TOPICS)
            is_elsewhere = known.is_refused and len(known.nodes) > 1
            known.is_refused = is_elsewhere or client_id in reported.refused
        twice = {one for one in reported.twice if one in taken}
        if group.twice.pop(reporter, set()) != twice:
            group.warnings = None
        if twice:
            group.twice[reporter] = twice
        if group.left_out.pop(reporter, []) != left_out:
            self._changed(group)
        if left_out:
            group.left_out[reporter] = left_out
        elif not group.members and not group.left_out:
            self._groups.pop(name, None)
        kinds = {one.kind for one in group.members.values()}
        if self.unsettled_ms(now_ms) and (reported.refused or len(kinds) > 1):
            self._undecided.add(name)

    def _forget_silent_nodes(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._context.limits.session_ms
        for reporter in [one for one, node in self._nodes.items() if node.seen_ms <= oldest_ms]:
            for name in list(self._nodes[reporter].groups):
                self._take_report(name, reporter, _NOTHING, now_ms)
            del self._nodes[reporter]

    # --- Questions ---

    def sharing(self, group: str, now_ms: int) -> list[str]:
        """Return the members that divide the queues of a group. Raises NotReadyError, and
        GroupKindError if it is read by pop."""
        self.check_settled(group, now_ms)
        self.check_sharing(group, now_ms)
        return self._of_kind(group, MemberKind.SHARING, now_ms)

    def _of_kind(self, group: str, kind: MemberKind, now_ms: int) -> list[str]:
        self.check_settled(group, now_ms)
        found = self._group(group, now_ms)
        members = sorted(found.members.items()) if found is not None else ()
        return [name for name, one in members if one.kind is kind]

    def check_sharing(self, group: str, now_ms: int) -> None:
        """Raise GroupKindError if a group is read by pop, or NotReadyError where a new leader knows
        of no other member so far."""
        known = self._groups.get(group)
        if known is None or (known.shared_at == known.generation and not self.unsettled_ms(now_ms)):
            return  # Nearly always: nothing of its members has changed.
        found = self._group(group, now_ms)
        if found is not None and self._kind(found, now_ms) is MemberKind.POPPING:
            self.check_settled(group, now_ms)
            self._check_kind(group, found, MemberKind.SHARING, now_ms)
        known.shared_at = known.generation

    def check_popping(self, group: str, now_ms: int) -> None:
        """Raise GroupKindError if members divide the queues of a group."""
        if group in self._groups:
            found = self._group(group, now_ms)
            if found is not None:
                self._check_kind(group, found, MemberKind.POPPING, now_ms)

    def unsettled_ms(self, now_ms: int) -> int:
        """Return the time for which a new leader does not know the members; 0: it knows."""
        self.begin_term(now_ms)
        return max(0, self._settled_ms - now_ms)

    def popping(self, group: str, now_ms: int) -> list[str]:
        """Return the members of a group that take messages by pop. Raises NotReadyError."""
        return self._of_kind(group, MemberKind.POPPING, now_ms)

    def speaking(self, group: str, now_ms: int) -> list[str]:
        """Return the members that send heartbeats: clients of this protocol. Raises
        NotReadyError."""
        self.check_settled(group, now_ms)
        found = self._group(group, now_ms)
        members = sorted(found.members.items()) if found is not None else ()
        return [name for name, one in members if not one.nodes]

    def clients_of(self, group: str, now_ms: int) -> dict[str, frozenset[str]]:
        """Return the members of a group that are alive, and the topics each names."""
        self.begin_term(now_ms)
        found = self._group(group, now_ms)
        if found is None:
            return {}
        return {name: member.topics for name, member in sorted(found.members.items())}

    def warnings_of(self, group: str, now_ms: int) -> list[str]:
        """Return what the members of a group do unlike each other."""
        found = self._group(group, now_ms)
        return [] if found is None else self._warnings(group, found, now_ms)

    def reader_of(self, group: str, now_ms: int) -> dict[tuple[str, int], str]:
        """Return the member that reads each queue, as members say; of several the last by name."""
        self.begin_term(now_ms)
        found = self._group(group, now_ms)
        members = sorted(found.members.items()) if found is not None else ()
        return {queue: name for name, member in members for queue in member.queues}

    def groups(self, now_ms: int) -> list[str]:
        """Return the groups that have members."""
        self.begin_term(now_ms)
        return [name for name in list(self._groups) if self._group(name, now_ms) is not None]

    # --- Terms ---

    def begin_term(self, now_ms: int) -> None:
        """Forget everything if the term has changed. Called when this node begins to lead."""
        term = self._context.driver.term
        if term != self._term:
            self.end()
            is_first = not self._context.state.topics
            self._term = term
            self._settled_ms = 0 if is_first else now_ms + self._context.limits.group_settle_ms

    def end(self) -> None:
        """Forget everything: this node leads no longer."""
        self._term = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name, group in list(self._groups.items()):
            self._remove(name, group, list(group.members))
        self._groups.clear()
        self._nodes.clear()
        self._undecided.clear()

    def check_settled(self, group: str, now_ms: int) -> None:
        """Raise NotReadyError before all members had time for a heartbeat."""
        left_ms = self.unsettled_ms(now_ms)
        if left_ms:
            if group in self._groups:
                self._undecided.add(group)
            own = self._context.driver.node_id
            error = NotReadyError(self._term).with_leader(own, self._context.address_of(own))
            error.retry_after_ms = left_ms
            raise error

    # --- Kinds ---

    def _kind(self, group: _Group, now_ms: int) -> MemberKind | None:
        """Return how the group is read: others are refused, also those that are members, until none
        of this kind is left. Those that share go first where a new leader finds both, without those
        that the old one refused."""
        members = group.members.values()
        kinds = {one.kind for one in members if not _is_out(one)} - {MemberKind.BROADCASTING}
        first = min(kinds, default=None)
        if self.unsettled_ms(now_ms):
            return first
        if group.kind not in {one.kind for one in members}:
            sharing = MemberKind.SHARING  # Only those that were refused are left.
            group.kind = sharing if first is None and any(map(_is_out, members)) else first
        return group.kind

    def _refused(self, group: _Group, now_ms: int) -> list[str]:
        """Return the members that read in another way than the group is read."""
        kind = self._kind(group, now_ms)
        served = (kind, MemberKind.BROADCASTING)
        return [n for n, m in group.members.items() if kind is not None and m.kind not in served]

    def _check_kind(self, name: str, group: _Group, kind: MemberKind, now_ms: int) -> None:
        """Raise GroupKindError for a member that would read what others of another kind read, too.
        Those that share are collected first."""
        if kind is MemberKind.SHARING and self.unsettled_ms(now_ms):
            return
        found = self._kind(group, now_ms)
        if found not in (None, kind) and kind is not MemberKind.BROADCASTING:
            words = {MemberKind.SHARING: "by queue", MemberKind.POPPING: "by pop"}
            client_id = next(name for name, one in group.members.items() if one.kind is found)
            raise GroupKindError(name, words[found], client_id, words[kind])

    # --- Rows ---

    def _shares(
        self, name: str, group: _Group, topics: frozenset[str], kind: MemberKind, now_ms: int
    ) -> Shares:
        rows = sorted((n, m) for n, m in group.members.items() if m.kind is kind)
        of_members = [m.topics or topics for _, m in rows]  # A report may lack them.
        common = frozenset.intersection(*set(of_members))  # Most name the same.
        readers = {
            topic: [i for i, named in enumerate(of_members) if topic in named]
            for topic in sorted(topics - common)
        }
        speaking = {i for i, (_, m) in enumerate(rows) if not m.nodes}
        retry = retry_topic(name)  # Members that speak do not name it, and read it.
        given_back = [
            i for i, (_, m) in enumerate(rows) if not m.nodes or not m.topics or retry in m.topics
        ]
        readers.pop(retry, None)
        if len(given_back) < len(rows):
            readers[retry] = given_back
        client_ids = [n for n, _ in rows]
        warnings = self._warnings(name, group, now_ms)
        return Shares(client_ids, readers, speaking, group.generation, warnings)

    def _warnings(self, name: str, group: _Group, now_ms: int) -> list[str]:
        if group.warnings is None:
            group.warnings = list(_differences(name, group, self._refused(group, now_ms)))
        return group.warnings

    def _group(self, name: str, now_ms: int) -> _Group | None:
        """Return a group without the members whose session is over; None if no member is left."""
        self._forget_silent_nodes(now_ms)
        group = self._groups.get(name)
        if group is None:
            return None
        expired = [n for n, m in group.members.items() if not m.nodes and m.until_ms <= now_ms]
        if expired:
            self._remove(name, group, expired)
        return group if group.members else None

    def _add(
        self, name: str, group: _Group, client_id: str, kind: MemberKind, size_bytes: int
    ) -> _Member:
        """Add a member, which its caller pays for. Of a reported one (0 bytes) the account at its
        node does. Raises LimitReachedError, BusyError."""
        count, limit = len(group.members) + 1, self._context.limits.group_member_count_max
        if count > limit:
            raise LimitReachedError(f"members of group {name!r}", count, limit)
        account = caller() if size_bytes else None
        charge = None if account is None else account.charge(Kind.MEMBERS, size_bytes)
        member = group.members[client_id] = _Member(kind, charge)
        self._groups[name] = group
        self.total_count += 1
        self._changed(group)
        self._sweep_later()
        return member

    def _remove(self, name: str, group: _Group, clients: Collection[str]) -> None:
        if not clients:
            return
        for client in clients:
            charge = group.members.pop(client).charge
            self.total_count -= 1
            if charge is not None:
                charge.release()
        self._changed(group)
        if not group.members and not group.left_out:
            self._groups.pop(name, None)  # None: it is about to be filled again.

    def _changed(self, group: _Group) -> None:
        group.generation, group.warnings = self._next_generation(), None

    def _sweep_later(self) -> None:
        if self._timer is None:
            seconds = self._context.limits.session_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._context.turn.later("", self._forget_silent())

    def _forget_silent(self) -> Iterator[None]:
        """Forget the members whose session is over, in steps."""
        for name in list(self._groups):
            self._group(name, self._context.clock_ms())
            yield
        if self._groups:
            self._sweep_later()

    def _next_generation(self) -> int:
        """Return a number that grows through all terms: members see a change of the leader."""
        self._changes += 1
        return max(0, self._term) << 32 | self._changes


def _is_out(member: _Member) -> bool:
    """Whether no leader has let a member in that shares. One that turned to pop counts again, and
    those that share go before others anyway."""
    return member.is_refused and member.kind is MemberKind.SHARING


def _differences(name: str, group: _Group, refused: list[str]) -> Iterator[str]:
    """Yield what members of a group do unlike each other, as a sentence each."""
    out = frozenset(refused)
    served = [one for client_id, one in group.members.items() if client_id not in out]
    kinds = sorted({member.kind.name.lower() for member in served})
    if len(kinds) > 1:
        yield f"group {name}: members are {' and '.join(kinds)}; each kind reads every message"
    if refused:
        yield (
            f"group {name}: {_some(refused)} would read in another way than its first members, so "
            f"they get no messages; use another group for them"
        )
    left_out = {client_id for found in group.left_out.values() for client_id in found}
    if over := left_out - group.members.keys():
        yield (
            f"group {name}: {_some(over)} are more members than a group may have, so they get "
            f"no messages; stop some"
        )
    if twice := left_out & group.members.keys():
        yield (
            f"group {name}: classic clients have the client ids of other members, {_some(twice)}, "
            f"so they get no messages; give each consumer its own"
        )
    if shared := {client_id for found in group.twice.values() for client_id in found}:
        yield (
            f"group {name}: two clients each have the client ids {_some(shared)} and read the same "
            f"messages; give each its own instanceName"
        )
    sharing = [one for one in served if one.kind is MemberKind.SHARING]
    topics = {one.topics for one in sharing if one.topics}
    unlike = _NO_TOPICS.union(*topics) - _NO_TOPICS.union(*topics).intersection(*topics)
    if any(not one.nodes for one in sharing):
        unlike -= {retry_topic(name)}  # They read what others leave of it.
    if unlike:
        text = ", ".join(sorted(unlike)[:3])
        yield f"group {name}: not all members read {text}; give all members the same topics"
    strategies = sorted({one.strategy or "one without a name" for one in sharing if not one.nodes})
    if len(strategies) > 1:
        text = ", ".join(strategies)
        yield f"group {name}: members divide queues by unlike strategies, {text}; use one"
    filters: dict[str, set[str]] = {}
    unlike_ones = [one.filters for one in served if one.kind is not MemberKind.BROADCASTING]
    for one in {id(found): found for found in unlike_ones}.values():
        for topic, text in one.items():
            filters.setdefault(topic, set()).add(text)
    for topic, found in sorted(filters.items()):
        if len(found) > 1:
            text = ", ".join(f"'{one or '*'}'" for one in sorted(found)[:3])
            yield f"group {name}: members filter {topic} in unlike ways, {text}; use one filter"


def _some(names: Collection[str]) -> str:
    """Return the first names of a list, and how many others there are."""
    text = ", ".join(sorted(names)[:3])
    return text if len(names) <= 3 else f"{text} and {len(names) - 3} others"


def _size_bytes(topics: frozenset[str], filters: Filters, queues: Queues) -> int:
    size_bytes = _ROW_SIZE_BYTES + _TOPIC_SIZE_BYTES * len(topics)
    texts = {*filters.values()} - {""}
    size_bytes += _FILTER_SIZE_BYTES * len(texts) + _ENTRY_SIZE_BYTES * len(filters)
    return size_bytes + _QUEUE_SIZE_BYTES * len(queues)
