"""Impossible receipts: of calls that began when there was no quorum, or no copies.

Owns the comparison. A call that began before a moment may be answered after it, with an earlier
decision: in an existing term, at a place that the log of its leader had. A call that began
later may not be acknowledged at all. Therefore no tolerance is needed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chaos.losses import MessagePlace
from chaos.recorder import is_write, written_value
from checkers.history import Operation, Value
from raft.errors import Outcome


@dataclass(frozen=True, slots=True)
class Moment:
    """The time from which on no node could acknowledge a call."""

    at_ns: int
    term: int
    """Last term with a decision."""
    end_position: int | None = None
    """End of the log of that term's leader, or of the nodes that had to have copies, if known."""
    until_ns: int | None = None
    """End of this time; None: it is not over yet."""


def strays(
    operations: Iterable[Operation],
    places: Mapping[Value, MessagePlace],
    moment: Moment,
    *,
    only_term: bool = False,
) -> list[str]:
    """Return the receipts that were impossible.

    `only_term`: another leader may serve in a later term, so only receipts of this one are judged.
    """
    problems = []
    for one in operations:
        if not is_write(one) or one.outcome is not Outcome.APPLIED:
            continue
        if one.return_ns is None or one.return_ns <= moment.at_ns:
            continue
        if moment.until_ns is not None and one.return_ns > moment.until_ns:
            continue
        value = written_value(one)
        place = places[value]
        if only_term and place.term > moment.term:
            continue
        where = f"{value!r} at {place.position} of term {place.term}"
        if one.invoke_ns > moment.at_ns:
            later_ms = (one.invoke_ns - moment.at_ns) / 1e6
            problems.append(
                f"{where}: the call began {later_ms:.0f} ms too late for any node to ack it"
            )
        elif place.term > moment.term:
            problems.append(f"{where}: no node led that term, the last was {moment.term}")
        elif moment.end_position is not None and place.position >= moment.end_position:
            problems.append(f"{where}: where it has to be the log ends at {moment.end_position}")
    return problems


def acked_count(operations: Iterable[Operation], *, since_ns: int, term: int) -> int:
    """Return the number of calls begun after a moment and acknowledged in a term."""
    return sum(
        is_write(one)
        and one.outcome is Outcome.APPLIED
        and one.invoke_ns > since_ns
        and one.term == term
        for one in operations
    )
