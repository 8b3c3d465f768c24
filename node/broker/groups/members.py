"""Live members of consumer groups: soft state of the leader.

Owns sessions and generations; must not know offsets or the log. Members are not replicated: they
send heartbeats, and a new leader knows them all after one round of these. Until then it names no
member of a group that exists, so that the first one to call does not take all queues. A session is
over when a call looks at it; a timer gives back what members hold that no call looks at.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from node.broker.core.context import Context
from node.errors.common import LimitReachedError, NotReadyError
from node.runtime.accounts import Charge, Kind, caller

Queues = frozenset[tuple[str, int]]
_ROW_SIZE_BYTES: Final = 700
_TOPIC_SIZE_BYTES: Final = 250
_QUEUE_SIZE_BYTES: Final = 150
"""Memory of a member, of a topic with its name and of a queue, at most about."""


class _Member:
    __slots__ = ("charge", "is_broadcasting", "queues", "seen_ms", "topics")

    def __init__(
        self, seen_ms: int, topics: frozenset[str], is_broadcasting: bool, charge: Charge | None
    ) -> None:
        self.seen_ms, self.charge = seen_ms, charge
        self.topics = topics
        self.is_broadcasting = is_broadcasting
        self.queues: Queues = frozenset()
        """Queues that the member says it reads; nothing is decided by them."""

    def resize(self, topics: frozenset[str], queues: Queues) -> None:
        """Charge what it names. Raises BusyError."""
        if self.charge is not None:
            self.charge.resize(_size_bytes(topics, queues))


class _Group:
    __slots__ = ("generation", "members")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.members: dict[str, _Member] = {}


class Members:
    """The members of all groups. One per broker. All are forgotten when the term changes."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._groups: dict[str, _Group] = {}
        self._term = -1
        self._term_began_ms = 0
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.total_count = 0
        """Members of all groups, those with an ended session that is not yet noticed included."""

    def heartbeat(
        self, group: str, client_id: str, topics: frozenset[str], is_broadcasting: bool, now_ms: int
    ) -> tuple[list[str], list[str], int]:
        """Note that a member is alive; return two lists of members, and a generation.

        First those that name a common topic and consume in the same way, then all that consume in
        the same way, each sorted and with the caller. Raises NotReadyError while a new leader
        collects the members, LimitReachedError, BusyError.
        """
        self.begin_term(now_ms)
        found = self._group(group, now_ms) or _Group(self._next_generation())
        member = found.members.get(client_id)
        if member is None:
            charge = self._room(group, found, topics)
            self._groups[group] = found
            found.members[client_id] = _Member(now_ms, topics, is_broadcasting, charge)
            self.total_count += 1
            found.generation = self._next_generation()
            self._sweep_later()
        else:
            member.seen_ms = now_ms
            if member.topics != topics or member.is_broadcasting != is_broadcasting:
                member.resize(topics, member.queues)
                member.topics, member.is_broadcasting = topics, is_broadcasting
                found.generation = self._next_generation()
        self.check_settled(group, now_ms)
        matching = [
            name
            for name, other in sorted(found.members.items())
            if other.is_broadcasting == is_broadcasting
        ]
        sharing = [name for name in matching if not found.members[name].topics.isdisjoint(topics)]
        return sharing, matching, found.generation

    def leave(self, group: str, client_id: str, now_ms: int) -> None:
        """Forget a member, if it is one."""
        self.begin_term(now_ms)
        found = self._group(group, now_ms)
        if found is not None and client_id in found.members:
            self._remove(group, found, [client_id])

    def clients_of(self, group: str, now_ms: int) -> dict[str, frozenset[str]]:
        """Return the members of a group that are alive, and the topics each names."""
        self.begin_term(now_ms)
        found = self._group(group, now_ms)
        return {} if found is None else {n: m.topics for n, m in sorted(found.members.items())}

    def note_queues(self, group: str, client_id: str, queues: Queues) -> None:
        """Remember the queues that a member says it reads. Raises BusyError."""
        member = self._groups[group].members[client_id]
        if member.queues != queues:
            member.resize(member.topics, queues)
            member.queues = queues

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

    def begin_term(self, now_ms: int) -> None:
        """Forget everything if the term has changed. Called when this node begins to lead."""
        term = self._context.driver.term
        if term != self._term:
            self.end()
            self._term, self._term_began_ms = term, now_ms

    def end(self) -> None:
        """Forget everything: this node leads no longer."""
        self._term = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name, group in list(self._groups.items()):
            self._remove(name, group, list(group.members))

    def check_settled(self, group: str, now_ms: int) -> None:
        """Raise NotReadyError in an existing group before all members had time for a heartbeat."""
        self.begin_term(now_ms)
        settle_ms = self._context.limits.group_settle_ms
        left_ms = self._term_began_ms + settle_ms - now_ms
        if left_ms > 0 and group in self._context.state.groups:
            own = self._context.driver.node_id
            error = NotReadyError(self._term).with_leader(own, self._context.address_of(own))
            error.retry_after_ms = left_ms
            raise error

    def _group(self, name: str, now_ms: int) -> _Group | None:
        """Return a group without the members whose session is over; None if no member is left."""
        group = self._groups.get(name)
        if group is None:
            return None
        oldest_ms = now_ms - self._context.limits.session_ms
        expired = [client for client, m in group.members.items() if m.seen_ms <= oldest_ms]
        if expired:
            self._remove(name, group, expired)
        return group if group.members else None

    def _remove(self, name: str, group: _Group, clients: list[str]) -> None:
        for client in clients:
            charge = group.members.pop(client).charge
            if charge is not None:
                charge.release()
        self.total_count -= len(clients)
        group.generation = self._next_generation()
        if not group.members:
            del self._groups[name]

    def _room(self, name: str, group: _Group, topics: frozenset[str]) -> Charge | None:
        """Charge the caller for a new member; None: it is the node's own work."""
        count, limit = len(group.members) + 1, self._context.limits.group_member_count_max
        if count > limit:
            raise LimitReachedError(f"members of group {name!r}", count, limit)
        account = caller()
        size_bytes = _size_bytes(topics, frozenset())
        return None if account is None else account.charge(Kind.MEMBERS, size_bytes)

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


def _size_bytes(topics: frozenset[str], queues: Queues) -> int:
    return _ROW_SIZE_BYTES + _TOPIC_SIZE_BYTES * len(topics) + _QUEUE_SIZE_BYTES * len(queues)
