"""What an async master may lose: the end of its log, reported, and nothing else (I19).

Owns the rule: of the receipts of one epoch those that are gone are the last ones, without a hole,
and each lies in a range that some replica reports as lost. What is left of the history without them
is then judged as always; reads are not, since they may have seen what was lost later.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import quorumlog
from quorumlog.ha_types import HaLoss, HaStatus
from raft.errors import Outcome
from raft.simulator.history import AppendCall, Drain, Kind, Operation, Value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a receipt said that a message is."""

    term: int
    position: int
    queue: str
    offset: int


@dataclass(frozen=True, slots=True)
class Losses:
    """What one history lost."""

    lost: frozenset[Value]
    problems: tuple[str, ...]


async def reported(client: quorumlog.Client) -> list[HaLoss]:
    """What the replicas say that was lost."""
    group = await client.admin.ha_group()
    return [loss for node in group.nodes if isinstance(node, HaStatus) for loss in node.losses]


def find_losses(
    places: Mapping[Value, Place], drains: Iterable[Drain], said: Iterable[HaLoss]
) -> Losses:
    """Compare receipts with what is left, and with what is reported as lost.

    What lies before the first message of its queue has expired: retention may do that.
    """
    left: set[Value] = set()
    firsts: dict[str, int] = {}
    for drain in drains:
        left.update(value for value in drain.values if value is not None)
        firsts[drain.queue] = min(drain.first_offset, firsts.get(drain.queue, drain.first_offset))
    ranges = list(said)
    by_term: dict[int, list[tuple[int, Value]]] = defaultdict(list)
    for value, place in places.items():
        if place.offset >= firsts.get(place.queue, 0):
            by_term[place.term].append((place.position, value))
    lost: set[Value] = set()
    problems = []
    for term, found in sorted(by_term.items()):
        gone = [(position, value) for position, value in found if value not in left]
        if not gone:
            continue
        lost.update(value for _, value in gone)
        first = min(gone)[0]
        kept = [value for position, value in found if position > first and value in left]
        if kept:
            problems.append(f"I19: epoch {term}: {first} is lost, and {kept[0]!r} behind it is not")
        for position, value in gone:
            if not any(one.lo_position <= position < one.hi_position for one in ranges):
                problems.append(f"I19: {value!r} at {position} of epoch {term}: loss not reported")
    exact = [one for one in ranges if one.is_exact]
    if exact and len(exact) == len(ranges):
        count = sum(one.acked_record_count for one in exact)
        if count < len(lost):
            problems.append(f"I19: {len(lost)} messages are lost, {count} are reported")
    return Losses(frozenset(lost), tuple(problems))


def without(operations: Iterable[Operation], lost: frozenset[Value]) -> list[Operation]:
    """Return the appends of a history, those that are lost as calls that nobody answered."""
    found = []
    for operation in operations:
        if operation.kind not in (Kind.APPEND, Kind.PUT):
            continue
        request = operation.request
        value = request.value if isinstance(request, AppendCall) else request
        if value in lost:
            forgotten = operation._replace(outcome=Outcome.UNKNOWN, return_ns=None, result=None)
            found.append(forgotten)
        else:
            found.append(operation)
    return found
