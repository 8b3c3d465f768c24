"""Permitted losses of an async master: the end of its log, reported, and nothing else (I19).

Owns the rule: the lost receipts of one epoch are the last ones, without a hole, each lies in a
range that some replica reports as lost, and a report that calls itself exact counts them, no more
and no less. A receipt that says that others hold a message too is never lost, whichever way the
group replicates now. The rest of the history is then judged as usual; of reads, which may have
seen messages that were lost later, only that each message had been sent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import quorumlog
from chaos.recorder import is_write, written_value
from checkers.history import (
    NEVER_NS,
    Drain,
    Kind,
    Operation,
    Records,
    Value,
)
from quorumlog.admin.types import HaLoss, HaStatus
from raft.errors import Outcome

_ACKED: Final = Outcome.APPLIED
_EPOCH_COUNT_OF_A_FAILOVER: Final = 2


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Place of a message, according to its receipt."""

    term: int
    position: int
    queue: str
    offset: int
    is_copied: bool = False
    """Whether the receipt said that others hold the message as well."""
    is_duplicate: bool = False
    """Whether the receipt is that of a later attempt, possibly by a later master."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one history."""

    lost: frozenset[Value]
    problems: tuple[str, ...]


async def reported(client: quorumlog.Client) -> list[HaLoss]:
    """Return the losses that the replicas report."""
    group = await client.admin.ha_group()
    return [loss for node in group.nodes if isinstance(node, HaStatus) for loss in node.losses]


def find_losses(
    places: Mapping[Value, MessagePlace],
    drains: Iterable[Drain],
    losses: Iterable[HaLoss],
    operations: Sequence[Operation] = (),
) -> Losses:
    """Compare receipts with the remaining messages, and with the reported losses.

    Messages before the first one of their queue have expired: retention may do that. `operations`
    are the calls of the receipts.
    """
    left, firsts = _kept(drains)
    reports = sorted(losses, key=lambda loss: loss.epoch)
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
        problems += [
            f"I19: {value!r} of epoch {term} is lost, and its receipt says that others hold it"
            for _, value in gone
            if places[value].is_copied
        ]
        first = min(gone)[0]
        kept = [value for position, value in found if position > first and value in left]
        if kept:
            problems.append(f"I19: epoch {term}: {first} is lost, and {kept[0]!r} behind it is not")
        for position, value in gone:
            if not any(_covers(one, position) for one in reports):
                problems.append(f"I19: {value!r} at {position} of epoch {term}: loss not reported")
    problems += _miscounted(lost, places, reports, operations)
    return Losses(frozenset(lost), tuple(problems))


def _covers(report: HaLoss, position: int) -> bool:
    return report.first_log_position <= position < report.end_log_position


def _miscounted(
    lost: Iterable[Value],
    places: Mapping[Value, MessagePlace],
    reports: Iterable[HaLoss],
    operations: Iterable[Operation],
) -> list[str]:
    """Compare the count of each exact report with the losses in its range.

    Its master may have acked more than clients received: calls of unknown outcome, and calls
    repeated at the next master. Other replicas, which did not see all of it, count only their
    own."""
    exact = [one for one in reports if one.is_exact and one.acked_record_count >= 0]
    measured: Counter[HaLoss] = Counter()
    for value in lost:
        place = places[value]
        # Positions are used again: a value was lost in the first epoch not before its own.
        of_it = (one for one in exact if one.epoch >= place.term and _covers(one, place.position))
        if (loss := next(of_it, None)) is not None:
            measured[loss] += 1
    problems = []
    for report in exact:
        said, count = report.acked_record_count, measured[report]
        unheard = _unheard_count(operations, report.epoch)
        if not count <= said <= count + unheard:
            more = f" and at most {unheard} that no client heard of" if unheard else ""
            problems.append(
                f"I19: of epoch {report.epoch} {count} messages are lost{more}, {said} are reported"
            )
    return problems


def _unheard_count(operations: Iterable[Operation], epoch: int) -> int:
    """Return the number of calls possibly acked in an epoch without a receipt of it."""
    writes = [one for one in operations if is_write(one)]
    later = [one.return_ns or 0 for one in writes if one.outcome is _ACKED and one.term > epoch]
    over_ns = min(later, default=NEVER_NS)
    return sum(
        one.invoke_ns <= over_ns
        and (one.outcome is Outcome.UNKNOWN or (one.outcome is _ACKED and one.term > epoch))
        for one in writes
    )


def read_and_gone(operations: Sequence[Operation], drains: Iterable[Drain]) -> frozenset[Value]:
    """Return the messages that a reader saw, and that no replica has after a failover.

    An async master shows a message before it is synced or copied, so a reader may see one that was
    never acked, and the next master may lack it. Without another master nothing may be gone.
    """
    acked = {one.term for one in operations if one.kind is Kind.APPEND and one.outcome is _ACKED}
    if len(acked) < _EPOCH_COUNT_OF_A_FAILOVER:
        return frozenset()
    left, firsts = _kept(drains)
    return frozenset(
        value
        for operation in operations
        if isinstance(operation.result, Records)
        for offset, value in operation.result.records
        if value not in left and offset >= firsts.get(operation.queue, 0)
    )


def _kept(drains: Iterable[Drain]) -> tuple[set[Value], dict[str, int]]:
    """Return all messages that a replica has, and the first offset of each queue: messages before
    it have expired."""
    left: set[Value] = set()
    firsts: dict[str, int] = {}
    for drain in drains:
        left.update(value for value in drain.values if value is not None)
        firsts[drain.queue] = min(drain.first_offset, firsts.get(drain.queue, drain.first_offset))
    return left, firsts


def without(operations: Iterable[Operation], lost: frozenset[Value]) -> list[Operation]:
    """Return the appends of a history, with the lost ones as calls without an answer."""
    return [
        write._replace(outcome=Outcome.UNKNOWN, return_ns=None, result=None)
        if written_value(write) in lost
        else write
        for write in operations
        if is_write(write)
    ]
