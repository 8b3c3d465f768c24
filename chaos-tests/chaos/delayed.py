"""History of delayed messages, and the check that it is as promised.

Owns the history of one scenario and its rules; must not know clients or nodes. All clocks are those
of one machine: the time before a call began is never later than the leader's clock in the call.
Rules, each the first word of a violation: `early`, `lost`, `doubled`, `cancelled` (and yet
delivered), `refused` (and yet delivered), `phantom`, `changed` (another queue).
"""

from collections import defaultdict
from dataclasses import dataclass, field

from chaos.told import ToldOutcome


@dataclass(frozen=True, slots=True)
class Sent:
    """One delayed message."""

    value: str
    queue_id: int
    due_unix_ms: int
    """Earliest delivery: as the producer asked, counted from the start of its call."""
    outcome: ToldOutcome


@dataclass(frozen=True, slots=True)
class Cancel:
    """One call to have a message never delivered.

    Too late means that the message was delivered, or is being delivered.
    """

    value: str
    outcome: ToldOutcome
    due_unix_ms: int = 0
    """Planned delivery, as the leader reported it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message on its own topic, as a replica holds it in the end."""

    value: str
    queue_id: int
    queue_offset: int
    store_unix_ms: int
    """By the clock of the leader that delivered it."""


@dataclass(slots=True)
class DelayHistory:
    """Whole history of one scenario."""

    sent: dict[str, Sent] = field(default_factory=dict)
    cancels: list[Cancel] = field(default_factory=list)
    seen_unix_ms: dict[str, int] = field(default_factory=dict)
    """Time at which a consumer that follows the topic first had each message."""
    delivered: list[Delivered] = field(default_factory=list)

    def cancelled(self) -> set[str]:
        """Return the values that certainly must not be delivered."""
        return {cancel.value for cancel in self.cancels if cancel.outcome is ToldOutcome.OK}

    def wanted(self) -> set[str]:
        """Return the values that must be delivered."""
        doubtful = {
            cancel.value for cancel in self.cancels if cancel.outcome is ToldOutcome.UNKNOWN
        }
        acked = {value for value, sent in self.sent.items() if sent.outcome is ToldOutcome.OK}
        return acked - doubtful - self.cancelled()


def check_delayed(history: DelayHistory) -> list[str]:
    """Return every violation, one text each."""
    by_value: dict[str, list[Delivered]] = defaultdict(list)
    for one in history.delivered:
        by_value[one.value].append(one)
    problems = [f"lost: {value} never came" for value in sorted(history.wanted() - by_value.keys())]
    cancelled = history.cancelled()
    for value, copies in by_value.items():
        sent = history.sent.get(value)
        if sent is None:
            problems.append(f"phantom: no client sent {value}")
            continue
        if len(copies) > 1:
            problems.append(f"doubled: {value} is there {len(copies)} times: {copies}")
        if value in cancelled:
            problems.append(f"cancelled: {value} came although its cancel was acked: {copies[0]}")
        if sent.outcome is ToldOutcome.NOT_APPLIED:
            problems.append(f"refused: {value} came although its send was refused: {copies[0]}")
        for one in copies:
            if one.store_unix_ms < sent.due_unix_ms:
                early_ms = sent.due_unix_ms - one.store_unix_ms
                problems.append(f"early: {value} was delivered {early_ms} ms before {sent}: {one}")
            if one.queue_id != sent.queue_id:
                problems.append(f"changed: {value} came in another queue than {sent}: {one}")
    for value, at in history.seen_unix_ms.items():
        # By the consumer's own clock, whatever a record says.
        if value in history.sent and at < history.sent[value].due_unix_ms:
            problems.append(f"early: {value} was seen at {at}, before {history.sent[value]}")
    return problems
