"""History of pop consumers, and the check that it is as promised.

Owns the history of one scenario and its rules; must not know clients or nodes. All clocks are those
of one machine: the time before a call began is never later than the leader's clock in the call.
The time at which a message was taken comes from the leader: the end of its invisible time, less
that time. Rules, each the first word of a violation: `shared` (two holders), `again` (after it was
done), `twice` (one delivery, two receives), `lost`, `both` (acknowledged and dead), `doubled` (dead
letters), `causeless` (dead), `order`, `refused`, `phantom`.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from chaos.told import ToldOutcome

DELIVERY_COUNT_MAX: Final = 16
"""Deliveries after which a message is dead, unless its group is set otherwise."""


@dataclass(frozen=True, slots=True)
class PopDelivery:
    """One message handed out once."""

    value: str
    message_group: str
    queue_id: int
    queue_offset: int
    count: int
    """Delivery count; 1 for the first time."""
    handle: str
    receive: int
    """Number of the receive with which it came."""
    taken_unix_ms: int
    visible_unix_ms: int


@dataclass(frozen=True, slots=True)
class Hide:
    """One change of the invisible time; 0 ms gives the message back."""

    handle: str
    invoke_unix_ms: int
    asked_ms: int
    outcome: ToldOutcome
    visible_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """One end that a consumer made: an acknowledgement, or a rejection."""

    handle: str
    is_ack: bool
    invoke_unix_ms: int
    return_unix_ms: int
    outcome: ToldOutcome

    @property
    def may_hold(self) -> bool:
        """Whether the message may be done by this call.

        A rejection that is repeated, since its answer was lost, gets the answer "too late".
        """
        return self.outcome in (ToldOutcome.OK, ToldOutcome.UNKNOWN) or (
            not self.is_ack and self.outcome is ToldOutcome.TOO_LATE
        )


@dataclass(slots=True)
class PopHistory:
    """Whole history of one scenario, in order of time."""

    produced: dict[str, ToldOutcome] = field(default_factory=dict)
    """Outcome of each send, by value."""
    deliveries: list[PopDelivery] = field(default_factory=list)
    hides: list[Hide] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    """Values of the dead letters of the group in the end."""
    failed_receive_count: int = 0
    """Receives without an answer: messages may have been handed out to them."""


class _Life:
    """All events of one message."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.deliveries: list[PopDelivery] = []
        self.hides: dict[str, list[Hide]] = defaultdict(list)
        self.settles: list[tuple[int, Settle]] = []
        """Each with the count of the delivery that it names."""
        self.dead_count = 0


def check_pop(history: PopHistory, *, is_fifo: bool) -> list[str]:
    """Return every violation of a run after which the group was done, one text each."""
    lives = _lives(history)
    violations: list[str] = []
    for life in lives.values():
        life.deliveries.sort(key=lambda delivery: (delivery.count, delivery.taken_unix_ms))
        violations += _origin(life, history.produced)
        violations += _holders(life)
        violations += _ends(life)
        violations += _letters(life, history.failed_receive_count)
    if is_fifo:
        violations += _order(lives)
        violations += _order_within(history.deliveries)
    return violations


def _lives(history: PopHistory) -> dict[str, _Life]:
    produced = history.produced.items()
    lives = {value: _Life(value) for value, outcome in produced if outcome is ToldOutcome.OK}
    by_handle: dict[str, PopDelivery] = {}
    for delivery in history.deliveries:
        lives.setdefault(delivery.value, _Life(delivery.value)).deliveries.append(delivery)
        by_handle.setdefault(delivery.handle, delivery)
    for hide in history.hides:
        lives[by_handle[hide.handle].value].hides[hide.handle].append(hide)
    for settle in history.settles:
        named = by_handle[settle.handle]
        lives[named.value].settles.append((named.count, settle))
    for value in history.dead:
        lives.setdefault(value, _Life(value)).dead_count += 1
    return lives


def _origin(life: _Life, produced: dict[str, ToldOutcome]) -> Iterator[str]:
    outcome = produced.get(life.value)
    if outcome is None:
        yield f"phantom: no client sent {life.value}"
    elif outcome is ToldOutcome.NOT_APPLIED:
        yield f"refused: {life.value} came although its send was refused"


def _holders(life: _Life) -> Iterator[str]:
    for one, other in pairwise(life.deliveries):
        if one.handle == other.handle or one.count == other.count:
            yield f"twice: {one} and {other}"
        elif other.taken_unix_ms < (free := _free_from(one, life.hides[one.handle])):
            early_ms = free - other.taken_unix_ms
            yield f"shared: {other} was taken {early_ms} ms before the time of {one} was over"


def _free_from(delivery: PopDelivery, hides: list[Hide]) -> int:
    """Return the earliest time, not ruled out, at which others could see the message again."""
    free = delivery.visible_unix_ms
    for hide in hides:
        if hide.outcome is ToldOutcome.OK:
            free = hide.visible_unix_ms
        elif hide.outcome is not ToldOutcome.NOT_APPLIED:
            # With "too late" the call may be a repetition, and have taken effect the first time.
            free = min(free, hide.invoke_unix_ms + hide.asked_ms)
    return free


def _ends(life: _Life) -> Iterator[str]:
    for count, settle in life.settles:
        if settle.outcome is not ToldOutcome.OK:
            continue
        later = [one for one in life.deliveries if one.count > count]
        # A message that is done already is acknowledged to its earlier holders, too.
        is_repeated = settle.is_ack and _was_done_later(life, count, settle.return_unix_ms)
        for one in later:
            if not is_repeated or one.taken_unix_ms > settle.return_unix_ms:
                yield f"again: {one} although it was done: {settle}"
    if not life.dead_count and not any(settle.may_hold for _, settle in life.settles):
        yield f"lost: no client ended {life.value}, deliveries {life.deliveries}"


def _was_done_later(life: _Life, count: int, at_unix_ms: int) -> bool:
    """Whether the holder of a later delivery may have ended it by then."""
    return any(
        other > count and settle.may_hold and settle.invoke_unix_ms <= at_unix_ms
        for other, settle in life.settles
    )


def _letters(life: _Life, failed_receive_count: int) -> Iterator[str]:
    """Check that a message is dead only once, for a reason, and not done as well."""
    rejects = [(count, one) for count, one in life.settles if not one.is_ack]
    if any(one.outcome is ToldOutcome.OK for _, one in rejects) and not life.dead_count:
        yield f"lost: {life.value} was rejected, and is no dead letter"
    if not life.dead_count:
        return
    if life.dead_count > 1:
        yield f"doubled: {life.dead_count} dead letters of {life.value}"
    highest = life.deliveries[-1].count if life.deliveries else 0
    is_used_up = highest + failed_receive_count >= DELIVERY_COUNT_MAX
    if not is_used_up and not any(one.may_hold for _, one in rejects):
        yield f"causeless: {life.value} is dead after {highest} deliveries"
    for count, one in life.settles:
        is_excused = is_used_up or _was_done_later(life, count, one.return_unix_ms)
        if one.is_ack and one.outcome is ToldOutcome.OK and not is_excused:
            yield f"both: {life.value} is dead although it was acknowledged: {one}"


def _order(lives: dict[str, _Life]) -> Iterator[str]:
    """Check that each message of a group is handed out with all before it, or after their end."""
    groups: dict[tuple[int, str], dict[int, _Life]] = defaultdict(dict)
    for life in lives.values():
        for one in life.deliveries:
            groups[one.queue_id, one.message_group][one.queue_offset] = life
    for members in groups.values():
        before: list[_Life] = []
        for _, life in sorted(members.items()):
            for one in life.deliveries:
                yield from _out_of_order(one, before)
            before.append(life)


def _out_of_order(delivery: PopDelivery, before: list[_Life]) -> Iterator[str]:
    for life in before:
        is_together = any(other.receive == delivery.receive for other in life.deliveries)
        if is_together or (life.dead_count and not life.settles):
            continue
        later = [other for other in life.deliveries if other.taken_unix_ms > delivery.taken_unix_ms]
        ends = (settle.invoke_unix_ms for _, settle in life.settles if settle.may_hold)
        if later or min(ends, default=float("inf")) > delivery.taken_unix_ms:
            why = f"{later[0]} came after it" if later else f"{life.value} was not done"
            yield f"order: {delivery}: {why}"


def _order_within(deliveries: list[PopDelivery]) -> Iterator[str]:
    """Check the order of messages within one receive."""
    last: dict[tuple[int, int, str], PopDelivery] = {}
    for one in deliveries:
        key = one.receive, one.queue_id, one.message_group
        other = last.setdefault(key, one)
        if one.queue_offset < other.queue_offset:
            yield f"order: {one} behind {other} in one receive"
        last[key] = one
