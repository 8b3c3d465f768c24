"""History of a group whose members speak several protocols, and the check that it is as promised.

Owns the history of one scenario and its rules; must not know clients or nodes. All clocks are those
of one machine. Rules, each the first word of a violation: `unread`, `moved` (a message that is not
where its receipt says, or a consumer sent elsewhere), `order` (within the time that a member holds
a queue), `shared` (two live members hold a queue for longer than a change of the group takes),
`twice` (taken again in a quiet phase: no change and no kill for a while), `popped` (a member that
pops got what the others read), `ended` (a member that was not stopped).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

NOTICE_S: Final = 5.0
"""Time in which all members know a change of the group while all nodes are up. Members of the SDK
ask every 2 s. A node hears of changes elsewhere when it reports, every 2 s, and tells its classic
members. Half a second each, and beyond, for a slow machine."""
ALONE_S: Final = 25.0
"""The same after a node was killed: notices are lost with their connection, and classic clients ask
by themselves every 20 s."""


@dataclass(frozen=True, slots=True)
class Held:
    """A member held a queue."""

    queue: int
    member: str
    since_ns: int
    until_ns: int


@dataclass(slots=True)
class MixedHistory:
    """Whole history of one scenario."""

    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Queue and offset by value, as receipts say."""
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """What each member wrote."""
    ends_ns: dict[str, int] = field(default_factory=dict)
    """When a member had ended or was killed."""
    kills_ns: list[int] = field(default_factory=list)
    """When nodes were killed."""
    quiet: list[tuple[int, int]] = field(default_factory=list)
    """Phases without a change."""
    popped: list[str] = field(default_factory=list)
    """Values that a member got by pop."""
    ended: list[str] = field(default_factory=list)

    now: dict[str, list[int]] = field(default_factory=dict)
    """Queues that each member wrote last."""

    def holders(self) -> dict[int, set[str]]:
        """Return the live members that hold each queue now."""
        by_queue = defaultdict[int, set[str]](set)
        for member in self.now.keys() - self.ends_ns.keys():
            for queue in self.now[member]:
                by_queue[queue].add(member)
        return by_queue

    def held(self) -> list[Held]:
        """Return who held which queue when, by time."""
        spans = []
        for member, lines in self.lines.items():
            open_ns: dict[int, int] = {}
            end_ns = self.ends_ns.get(member, lines[-1]["at_ns"] if lines else 0)
            statements = [(line["at_ns"], line["queues"]) for line in lines if "queues" in line]
            for at_ns, queues in [*statements, (end_ns, [])]:
                for queue in open_ns.keys() - set(queues):
                    spans.append(Held(queue, member, open_ns.pop(queue), min(at_ns, end_ns)))
                for queue in queues:
                    open_ns.setdefault(queue, at_ns)
        return sorted(spans, key=lambda row: row.since_ns)


def check_mixed(history: MixedHistory) -> list[str]:
    """Return every violation of a run that was read to its end, one text each."""
    return [
        *_unread(history),
        *_order(history),
        *_shared(history),
        *_twice(history),
        *(f"popped: {value}, which members read that share the queues" for value in history.popped),
        *(f"ended: {one}" for one in history.ended),
    ]


def _unread(history: MixedHistory) -> Iterator[str]:
    read: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for member, lines in history.lines.items():
        for line in lines:
            if "took" in line:
                queue, offset, value = line["took"]
                read[value].add((queue, offset))
            elif "moved" in line:
                yield f"moved: {member} was sent elsewhere: {line['moved']}"
    for value, place in history.sent.items():
        if value not in read:
            yield f"unread: {value} at {place}"
    for value, places in read.items():
        if len(places) > 1 or (value in history.sent and history.sent[value] not in places):
            yield f"moved: {value} of {history.sent.get(value)} was read at {sorted(places)}"


def _order(history: MixedHistory) -> Iterator[str]:
    for member, lines in history.lines.items():
        last: dict[int, tuple[int, int]] = {}
        for line in lines:
            if "queues" in line:
                last = {queue: one for queue, one in last.items() if queue in line["queues"]}
            elif "took" in line:
                queue, offset, value = line["took"]
                now = offset, int(value.rpartition("-")[2])
                before = last.get(queue, (-1, -1))
                if now[0] <= before[0] or now[1] <= before[1]:
                    yield f"order: {member} took {value} of {queue} at {offset} behind {before}"
                last[queue] = now


def _shared(history: MixedHistory) -> Iterator[str]:
    held = history.held()
    for at, one in enumerate(held):
        for other in held[at + 1 :]:
            began_ns, end_ns = other.since_ns, min(one.until_ns, other.until_ns)
            if other.queue != one.queue or other.member == one.member:
                continue
            is_alone = any(0 <= began_ns - kill < ALONE_S * 1e9 for kill in history.kills_ns)
            took_s, bound_s = (end_ns - began_ns) / 1e9, ALONE_S if is_alone else NOTICE_S
            if took_s > bound_s:
                who = f"{one.member} and {other.member}"
                yield f"shared: {who} held queue {one.queue} for {took_s:.1f} s, over {bound_s} s"


def _twice(history: MixedHistory) -> Iterator[str]:
    took = [
        (line["at_ns"], member, line["took"][2])
        for member, lines in history.lines.items()
        for line in lines
        if "took" in line
    ]
    first: dict[str, str] = {}
    for at_ns, member, value in sorted(took):
        if value in first and any(lo <= at_ns <= hi for lo, hi in history.quiet):
            yield f"twice: {value} by {first[value]} and in a quiet phase by {member}"
        first.setdefault(value, member)
