"""Live members of consumer groups, of every protocol: soft state of the leader.

Owns sessions, reports of nodes and generations; must not know offsets or the log, nor how a group
is shared (`member_group`). Members are not replicated: they send heartbeats, and nodes report the
members that talk RocketMQ's protocols to them. A new leader knows them all after one round of both.
Until then it names no member of a group, so that the first one to call does not take all queues;
only where no topic is older than the term there are no members to wait for. A session is over when
a call looks at it; a timer gives back what members hold that no call looks at.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from node.broker.core.context import Context
from node.broker.groups.member import (
    NO_FILTERS,
    NO_QUEUES,
    NO_TOPICS,
    GroupMember,
    MemberKind,
    Queues,
    Reported,
    size_bytes_of,
)
from node.broker.groups.member_group import MemberGroup, Shares, is_out
from node.errors.common import LimitReachedError, NotReadyError
from node.errors.groups import ClientIdInUseError
from node.runtime.accounts import Kind, caller

_HOLDING_MS_MAX: Final = 60_000
"""Time for which a member that takes messages by pop counts as alive, after its last call, if their
invisible time is that long."""
_STOOD_S: Final = 1.0
"""How late a timer has to be for this node not to have run."""
_NOTHING: Final = Reported({}, {})


class Consumer(NamedTuple):
    """A consumer that calls. `instance` is the consumer itself, of which each has another;
    `is_new`: no leader let it in so far."""

    client_id: str
    instance: int = 0
    is_new: bool = False


class _Node:
    __slots__ = ("groups", "seen_ms")

    def __init__(self) -> None:
        self.seen_ms = 0
        self.groups: set[str] = set()


class Members:
    """The members of all groups. One per broker. All are forgotten when the term changes."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._groups: dict[str, MemberGroup] = {}
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
        consumer: Consumer,
        topics: frozenset[str],
        kind: MemberKind,
        strategy: str = "",
        reading: str = "",
        *,
        queues: Queues = NO_QUEUES,
        wanted: Queues = NO_QUEUES,
    ) -> Shares:
        """Note that a member is alive; return how those of its kind share the group. `reading` is
        its filter, see `comparable`. It reads `queues`, and begins with those of `wanted` that are
        not withheld: a new leader grants none before all members have named theirs.

        Raises NotReadyError while a new leader collects the members, ClientIdInUseError,
        GroupKindError, LimitReachedError, BusyError.
        """
        client_id, now_ms = consumer.client_id, self._context.clock_ms()
        self.begin_term(now_ms)
        members = self._group(group, now_ms) or MemberGroup(group, self._next_generation())
        member = self._of_instance(members, consumer, now_ms)
        filters = dict.fromkeys(topics, reading)
        if member is None or member.kind is not kind or member.is_refused:
            members.check_kind(kind, self.unsettled_ms(now_ms))
        if member is None:
            size_bytes = size_bytes_of(topics, filters, frozenset())
            member = self._add(members, client_id, kind, size_bytes)
        member.is_refused = consumer.is_new and self.unsettled_ms(now_ms) > 0
        statement = (topics, filters, kind, strategy)
        member.instance, member.spoke_ms = consumer.instance, now_ms
        member.until_ms = now_ms + self._context.limits.session_ms
        if (member.topics, member.filters, member.kind, member.strategy) != statement:
            member.resize(topics, filters, member.queues)
            member.topics, member.filters, member.kind, member.strategy = statement
            self._changed(members)
        unsettled_ms = self.unsettled_ms(now_ms)
        withheld = members.hold(client_id, queues if unsettled_ms else queues | wanted)
        self.check_settled(group, now_ms)
        return members.shares(topics, kind, unsettled_ms, withheld)

    def receive(
        self,
        group: str,
        consumer: Consumer,
        topic: str,
        reading: str,
        wait_ms: int = 0,
        invisible_ms: int = 0,
    ) -> None:
        """Note that a client waits for messages by pop, or has got some. `reading` as of
        `heartbeat`.

        Raises ClientIdInUseError, GroupKindError, LimitReachedError, BusyError.
        """
        client_id, now_ms = consumer.client_id, self._context.clock_ms()
        self.begin_term(now_ms)
        members = self._group(group, now_ms) or MemberGroup(group, self._next_generation())
        members.check_kind(MemberKind.POPPING, self.unsettled_ms(now_ms))
        member = self._of_instance(members, consumer, now_ms)
        topics = (member.topics if member is not None else NO_TOPICS) | {topic}
        limit = self._context.limits.member_topic_count_max
        if len(topics) > limit:
            raise LimitReachedError(f"topics of member {client_id!r}", len(topics), limit)
        filters = {**(NO_FILTERS if member is None else member.filters), topic: reading}
        if member is None:
            size_bytes = size_bytes_of(topics, filters, frozenset())
            member = self._add(members, client_id, MemberKind.POPPING, size_bytes)
        statement = (topics, filters, MemberKind.POPPING)
        if (member.topics, member.filters, member.kind) != statement:
            member.resize(topics, filters, member.queues)
            member.topics, member.filters, member.kind = statement
            self._changed(members)
        member.is_refused = consumer.is_new and self.unsettled_ms(now_ms) > 0
        member.instance, member.spoke_ms = consumer.instance, now_ms
        holding_ms = max(self._context.limits.session_ms, min(invisible_ms, _HOLDING_MS_MAX))
        member.until_ms = max(member.until_ms, now_ms + wait_ms + holding_ms)

    def leave(self, group: str, client_id: str, now_ms: int, instance: int = 0) -> None:
        """Forget a member, if it is one; another consumer with its client id stays."""
        self.begin_term(now_ms)
        members = self._group(group, now_ms)
        member = None if members is None else members.members.get(client_id)
        if members is not None and member is not None and member.is_of(instance):
            self._remove(members, [client_id])

    def _of_instance(
        self, group: MemberGroup, consumer: Consumer, now_ms: int
    ) -> GroupMember | None:
        """Return the member that a consumer is, None so far. Raises ClientIdInUseError while it is
        another one: they would divide as one. Of two that a new leader hears of, the one that the
        old leader let in stays."""
        member = group.members.get(consumer.client_id)
        if member is None or member.is_of(consumer.instance):
            return member
        left_ms = self._context.limits.session_ms
        if not member.nodes:
            left_ms -= now_ms - member.spoke_ms
        if left_ms > 0 and (consumer.is_new or not member.is_refused):
            raise ClientIdInUseError(consumer.client_id, group.name, left_ms)
        for reporter in member.nodes:
            del group.reported[reporter][consumer.client_id]
            group.left_out.setdefault(reporter, []).append(consumer.client_id)
        member.nodes.clear()
        return member

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
        members = self._group(group, now_ms)
        if members is None:
            return []
        refused = members.refused(self.unsettled_ms(now_ms))
        if self.unsettled_ms(now_ms):
            refused = [name for name, one in members.members.items() if is_out(one)]
        here = members.reported.get(reporter, {})
        return [one for one in refused if one in here] + members.left_out.get(reporter, [])

    def _take_report(self, name: str, reporter: int, reported: Reported, now_ms: int) -> None:
        group, names = self._groups.get(name), self._nodes[reporter].groups
        if group is None:
            group = MemberGroup(name, self._next_generation())
        old, taken = group.reported.pop(reporter, {}), dict[str, MemberKind]()
        if reported.kinds:
            names.add(name)
            group.reported[reporter] = taken
        else:
            names.discard(name)
        gone = old.keys() - reported.kinds.keys()  # Of those taken, so each is a member.
        for client_id in gone:
            group.members[client_id].nodes.remove(reporter)
        self._remove(group, [one for one in gone if not group.members[one].nodes])
        group.kind(self.unsettled_ms(now_ms))  # Members that are there decide before others come.
        limit, left_out = self._context.limits.group_member_count_max, list[str]()
        topics = {id(one): frozenset(one) for one in reported.filters.values()}
        for client_id, kind in reported.kinds.items():
            member = group.members.get(client_id)
            if member is None:
                if len(group.members) >= limit:
                    left_out.append(client_id)  # It keeps no other group from being reported.
                    continue
                member = self._add(group, client_id, kind, 0)
            elif not member.nodes:  # The id of a member that speaks for itself.
                left_out.append(client_id)
                continue
            member.nodes.add(reporter)
            taken[client_id] = kind
            # A classic client tells one node that it takes messages by pop.
            newest_kind = max(one.get(client_id, kind) for one in group.reported.values())
            filters = reported.filters.get(client_id, NO_FILTERS)
            if (member.kind, member.filters) != (newest_kind, filters):
                self._changed(group)
            member.kind, member.filters = newest_kind, filters
            member.topics = topics.get(id(filters), NO_TOPICS)
            is_elsewhere = member.is_refused and len(member.nodes) > 1
            member.is_refused = is_elsewhere or client_id in reported.refused
        twice = {one for one in reported.twice if one in taken}
        if group.twice.pop(reporter, set()) != twice:
            group.known_warnings = None
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
        return [name for name, member in self._sorted(group, now_ms) if member.kind is kind]

    def _sorted(self, group: str, now_ms: int) -> list[tuple[str, GroupMember]]:
        alive = self._group(group, now_ms)
        return [] if alive is None else sorted(alive.members.items())

    def check_sharing(self, group: str, now_ms: int) -> None:
        """Raise GroupKindError if a group is read by pop, or NotReadyError where a new leader knows
        of no other member so far."""
        members = self._groups.get(group)
        if members is None or (
            members.shared_at == members.generation and not self.unsettled_ms(now_ms)
        ):
            return  # Nearly always: nothing of its members has changed.
        current = self._group(group, now_ms)
        if current is not None and current.kind(self.unsettled_ms(now_ms)) is MemberKind.POPPING:
            self.check_settled(group, now_ms)
            current.check_kind(MemberKind.SHARING, self.unsettled_ms(now_ms))
        members.shared_at = members.generation

    def check_popping(self, group: str, now_ms: int) -> None:
        """Raise GroupKindError if members divide the queues of a group."""
        if group in self._groups:
            members = self._group(group, now_ms)
            if members is not None:
                members.check_kind(MemberKind.POPPING, self.unsettled_ms(now_ms))

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
        return [name for name, member in self._sorted(group, now_ms) if not member.nodes]

    def clients_of(self, group: str, now_ms: int) -> dict[str, frozenset[str]]:
        """Return the members of a group that are alive, and the topics each names."""
        self.begin_term(now_ms)
        return {name: member.topics for name, member in self._sorted(group, now_ms)}

    def topics_of(self, group: str, now_ms: int) -> frozenset[str]:
        """Return the topics that members read from offsets of the group: those that broadcast have
        offsets of their own."""
        members = (member for _, member in self._sorted(group, now_ms))
        read = (one.topics for one in members if one.kind is not MemberKind.BROADCASTING)
        return NO_TOPICS.union(*read)

    def warnings_of(self, group: str, now_ms: int) -> list[str]:
        """Return what the members of a group do unlike each other."""
        members = self._group(group, now_ms)
        return [] if members is None else members.warnings(self.unsettled_ms(now_ms))

    def reader_of(self, group: str, now_ms: int) -> Mapping[tuple[str, int], str]:
        """Return the member that reads each queue, of those that send heartbeats."""
        self.begin_term(now_ms)
        members = self._group(group, now_ms)
        return {} if members is None else members.readers

    def names(self, now_ms: int) -> list[str]:
        """Return the groups that have members; the last ones of some may be gone by now."""
        self.begin_term(now_ms)
        return list(self._groups)

    def groups(self, now_ms: int) -> list[str]:
        """Return the groups that have members."""
        return [name for name in self.names(now_ms) if self._group(name, now_ms) is not None]

    # --- Terms ---

    def begin_term(self, now_ms: int) -> None:
        """Forget everything if the term has changed. Called when this node begins to lead. Time for
        which this node did not run is no silence of members."""
        if self._timer is not None:
            late_s = asyncio.get_running_loop().time() - self._timer.when()
            if late_s > _STOOD_S:
                self._extend(round(late_s * 1000))
        term = self._context.driver.term
        if term != self._term:
            self.end()
            is_first = not self._context.state.topics
            self._term = term
            self._settled_ms = 0 if is_first else now_ms + self._context.limits.group_settle_ms

    def _extend(self, late_ms: int) -> None:
        """Extend all sessions by the time for which no member was heard."""
        self._stop_timer()
        self._sweep_later()
        self._settled_ms += late_ms
        for node in self._nodes.values():
            node.seen_ms += late_ms
        for group in self._groups.values():
            for member in group.members.values():
                member.until_ms += late_ms
                member.spoke_ms += late_ms

    def end(self) -> None:
        """Forget everything: this node leads no longer."""
        self._term = -1
        self._stop_timer()
        for group in list(self._groups.values()):
            self._remove(group, list(group.members))
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

    # --- Rows ---

    def _group(self, name: str, now_ms: int) -> MemberGroup | None:
        """Return a group without the members whose session is over; None if no member is left."""
        self._forget_silent_nodes(now_ms)
        group = self._groups.get(name)
        if group is None:
            return None
        expired = [n for n, m in group.members.items() if not m.nodes and m.until_ms <= now_ms]
        if expired:
            self._remove(group, expired)
        return group if group.members else None

    def _add(
        self, group: MemberGroup, client_id: str, kind: MemberKind, size_bytes: int
    ) -> GroupMember:
        """Add a member, which its caller pays for. Of a reported one (0 bytes) the account at its
        node does. Raises LimitReachedError, BusyError."""
        count, limit = len(group.members) + 1, self._context.limits.group_member_count_max
        if count > limit:
            raise LimitReachedError(f"members of group {group.name!r}", count, limit)
        account = caller() if size_bytes else None
        charge = None if account is None else account.charge(Kind.MEMBERS, size_bytes)
        member = group.members[client_id] = GroupMember(kind, charge)
        self._groups[group.name] = group
        self.total_count += 1
        self._changed(group)
        self._sweep_later()
        return member

    def _remove(self, group: MemberGroup, clients: Collection[str]) -> None:
        if not clients:
            return
        for client in clients:
            charge = group.remove(client).charge
            self.total_count -= 1
            if charge is not None:
                charge.release()
        self._changed(group)
        if not group.members and not group.left_out:
            self._groups.pop(group.name, None)  # None: it is about to be filled again.

    def _changed(self, group: MemberGroup) -> None:
        group.generation, group.known_warnings = self._next_generation(), None

    def _sweep_later(self) -> None:
        if self._timer is None:
            seconds = self._context.limits.heartbeat_ms / 1000  # It sees that this node stood.
            self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self.begin_term(self._context.clock_ms())
        self._stop_timer()
        self._context.turn.later("", self._forget_silent())

    def _forget_silent(self) -> Iterator[None]:
        for name in list(self._groups):
            self._group(name, self._context.clock_ms())
            yield
        if self._groups:
            self._sweep_later()

    def _next_generation(self) -> int:
        """Return a number that grows through all terms: members see a change of the leader."""
        self._changes += 1
        return max(0, self._term) << 32 | self._changes
