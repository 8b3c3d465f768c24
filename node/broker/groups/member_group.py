"""One consumer group as the leader knows it: how it is read, and how its members share it.

Owns the kind in which a group is read, the shares of its members, and what they do unlike each
other; must not know sessions, nor how nodes report.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from node.broker.groups.member import NO_TOPICS, GroupMember, MemberKind, Queues
from node.errors.groups import GroupKindError
from store.record.topic_names import retry_topic


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
    withheld: Queues
    """Of the queues that the caller reads or wants, those that another member reads."""


class MemberGroup:
    """The members of one group. `unsettled_ms`: the time for which a new leader does not know all
    of them; 0: it does."""

    __slots__ = (
        *("decided", "generation", "known_warnings", "left_out", "members", "name", "notified"),
        *("readers", "reported", "shared_at", "twice"),
    )

    def __init__(self, name: str, generation: int) -> None:
        self.name, self.generation = name, generation
        self.decided: MemberKind | None = None
        """See `kind`."""
        self.members: dict[str, GroupMember] = {}
        self.readers: dict[tuple[str, int], str] = {}
        """The member that reads a queue: the index of `GroupMember.queues`."""
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
        self.known_warnings: list[str] | None = None
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

    # --- Kinds ---

    def kind(self, unsettled_ms: int) -> MemberKind | None:
        """Return how the group is read: others are refused, also those that are members, until none
        of this kind is left. Those that share go first where a new leader finds both, without those
        that the old one refused."""
        members = self.members.values()
        kinds = {one.kind for one in members if not is_out(one)} - {MemberKind.BROADCASTING}
        first = min(kinds, default=None)
        if unsettled_ms:
            return first
        if self.decided not in {one.kind for one in members}:
            sharing = MemberKind.SHARING  # Only those that were refused are left.
            self.decided = sharing if first is None and any(map(is_out, members)) else first
        return self.decided

    def refused(self, unsettled_ms: int) -> list[str]:
        """Return the members that read in another way than the group is read."""
        kind = self.kind(unsettled_ms)
        served = (kind, MemberKind.BROADCASTING)
        return [n for n, m in self.members.items() if kind is not None and m.kind not in served]

    def check_kind(self, kind: MemberKind, unsettled_ms: int) -> None:
        """Raise GroupKindError for a member that would read what others of another kind read, too.
        Those that share are collected first."""
        if kind is MemberKind.SHARING and unsettled_ms:
            return
        actual = self.kind(unsettled_ms)
        if actual not in (None, kind) and kind is not MemberKind.BROADCASTING:
            words = {MemberKind.SHARING: "by queue", MemberKind.POPPING: "by pop"}
            client_id = next(name for name, one in self.members.items() if one.kind is actual)
            raise GroupKindError(self.name, words[actual], client_id, words[kind])

    # --- Shares ---

    def hold(self, client_id: str, queues: Queues) -> Queues:
        """Have a member read these queues from now on, and no others. Return those that another
        member reads: it gets them once that one names them no more. Raises BusyError."""
        member, readers = self.members[client_id], self.readers
        withheld = frozenset(one for one in queues if readers.get(one, client_id) != client_id)
        held = queues - withheld
        member.resize(member.topics, member.filters, held)
        for queue in member.queues - held:
            del readers[queue]
        readers.update(dict.fromkeys(held, client_id))
        member.queues = held
        return withheld

    def remove(self, client_id: str) -> GroupMember:
        """Take a member out; what it reads is free."""
        member = self.members.pop(client_id)
        for queue in member.queues:
            del self.readers[queue]
        return member

    def shares(
        self, topics: frozenset[str], kind: MemberKind, unsettled_ms: int, withheld: Queues
    ) -> Shares:
        """Return how the members of a kind share the group, for one that reads some topics."""
        rows = sorted((n, m) for n, m in self.members.items() if m.kind is kind)
        of_members = [m.topics or topics for _, m in rows]  # A report may lack them.
        common = frozenset.intersection(*set(of_members))  # Most name the same.
        readers = {
            topic: [i for i, named in enumerate(of_members) if topic in named]
            for topic in sorted(topics - common)
        }
        speaking = {i for i, (_, m) in enumerate(rows) if not m.nodes}
        retry = retry_topic(self.name)  # Members that speak do not name it, and read it.
        given_back = [
            i for i, (_, m) in enumerate(rows) if not m.nodes or not m.topics or retry in m.topics
        ]
        readers.pop(retry, None)
        if len(given_back) < len(rows):
            readers[retry] = given_back
        client_ids = [n for n, _ in rows]
        warnings = self.warnings(unsettled_ms)
        return Shares(client_ids, readers, speaking, self.generation, warnings, withheld)

    def warnings(self, unsettled_ms: int) -> list[str]:
        """Return what the members do unlike each other, as a sentence each."""
        if self.known_warnings is None:
            self.known_warnings = list(differences(self, self.refused(unsettled_ms)))
        return self.known_warnings


def is_out(member: GroupMember) -> bool:
    """Whether no leader has let a member in that shares. One that turned to pop counts again, and
    those that share go before others anyway."""
    return member.is_refused and member.kind is MemberKind.SHARING


def differences(group: MemberGroup, refused: list[str]) -> Iterator[str]:
    """Yield what members of a group do unlike each other, as a sentence each."""
    name = group.name
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
    unlike = NO_TOPICS.union(*topics) - NO_TOPICS.union(*topics).intersection(*topics)
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
    text = ", ".join(sorted(names)[:3])
    return text if len(names) <= 3 else f"{text} and {len(names) - 3} others"
