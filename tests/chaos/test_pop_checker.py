"""The judge of pop: planted faults of each kind are found, right histories are not."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from chaos.popped import Hide, PopDelivery, PopHistory, Settle, check_pop
from chaos.told import ToldOutcome

GROUPS = 4
OF_A_GROUP = 8
INVISIBLE_MS = 1_500
SEEDS = range(5)


class _Model:
    """A cluster that keeps its word: message groups go on beside each other, each in its order."""

    def __init__(self, random: Random) -> None:
        self.history, self._random = PopHistory(), random
        self._receive = self._now = 0
        for group in range(GROUPS):
            self._now = 1_000_000
            for number in range(OF_A_GROUP):
                self._message(group, number)

    def _message(self, group: int, number: int) -> None:
        random, history = self._random, self.history
        value = f"g{group}-{number}"
        outcome = ToldOutcome.UNKNOWN if random.random() < 0.1 else ToldOutcome.OK
        history.produced[value] = outcome
        if not number % 4:
            self._receive += 1  # Else it came with the one before.
        for count in range(1, 4):
            delivery = self._delivery(value, group, number, count)
            if count < 3 and random.random() < 0.3:
                self._pass_on(delivery)
                self._receive += 1
                continue
            is_ack = number != 2 and random.random() < 0.9
            self._settle(
                delivery,
                is_ack=is_ack,
                outcome=random.choice((ToldOutcome.OK, ToldOutcome.OK, ToldOutcome.UNKNOWN)),
            )
            if not is_ack:
                history.dead.append(value)
            self._receive += 1
            return

    def _delivery(self, value: str, group: int, number: int, count: int) -> PopDelivery:
        self._now += self._random.randrange(50)
        place = f"g{group}", group % 2, GROUPS * number + group
        handle, visible = f"{value}/{count}", self._now + INVISIBLE_MS
        delivery = PopDelivery(value, *place, count, handle, self._receive, self._now, visible)
        self.history.deliveries.append(delivery)
        self._now += self._random.randrange(100)
        return delivery

    def _pass_on(self, one: PopDelivery) -> None:
        """It is not ended by this holder, and its time runs out."""
        fate, hides = self._random.randrange(4), self.history.hides
        free = one.visible_unix_ms
        if fate == 0:
            free = self._now
            hides.append(Hide(one.handle, self._now - 1, 0, ToldOutcome.OK, free))
        elif fate == 1:
            free = self._now + 4_000
            hides.append(Hide(one.handle, self._now - 1, 4_000, ToldOutcome.OK, free))
        elif fate == 2:
            hides.append(Hide(one.handle, self._now, 0, ToldOutcome.UNKNOWN))
            free = self._now
        self._now = free + self._random.choice((0, 20))
        if fate == 3:
            self._settle(one, is_ack=True, outcome=ToldOutcome.TOO_LATE)

    def _settle(self, one: PopDelivery, *, is_ack: bool, outcome: ToldOutcome) -> None:
        settle = Settle(one.handle, is_ack, self._now, self._now + 5, outcome)
        self.history.settles.append(settle)
        self._now += 6


def right_history(seed: int) -> PopHistory:
    return _Model(Random(seed)).history


def end(history: PopHistory, *, is_ack: bool) -> tuple[int, PopDelivery]:
    """Return an end that was answered well, and the delivery that it names."""
    for at, settle in enumerate(history.settles):
        if settle.outcome is ToldOutcome.OK and settle.is_ack is is_ack:
            delivery = next(one for one in history.deliveries if one.handle == settle.handle)
            return at, delivery
    raise AssertionError("the model has none")


def hand_out(history: PopHistory, one: PopDelivery, taken_unix_ms: int) -> None:
    """Give a message out once more, with a receive of its own."""
    more = replace(
        one,
        count=one.count + 1,
        handle="more",
        receive=10_000,
        taken_unix_ms=taken_unix_ms,
        visible_unix_ms=taken_unix_ms + INVISIBLE_MS,
    )
    history.deliveries.append(more)


def hand_out_ended(history: PopHistory, *, is_ack: bool) -> None:
    _, delivery = end(history, is_ack=is_ack)
    hand_out(history, delivery, delivery.visible_unix_ms + 60_000)


def ack_behind_the_back(history: PopHistory) -> None:
    """An ack counts for a delivery that came after the one that it names."""
    at, delivery = end(history, is_ack=True)
    hand_out(history, delivery, delivery.visible_unix_ms)
    late = delivery.visible_unix_ms + 10
    history.settles[at] = replace(history.settles[at], invoke_unix_ms=late, return_unix_ms=late + 5)


def share(history: PopHistory) -> None:
    """Hand a message out before the time of its holder is over, who never ends it."""
    at, delivery = end(history, is_ack=True)
    hand_out(history, delivery, delivery.visible_unix_ms - 1)
    history.settles[at] = replace(history.settles[at], handle="more")


def share_one_that_was_held_longer(history: PopHistory) -> None:
    at, held = end(history, is_ack=True)
    longer = held.visible_unix_ms + 5_000
    history.hides.append(Hide(held.handle, held.taken_unix_ms, 6_000, ToldOutcome.OK, longer))
    hand_out(history, held, longer - 1)
    history.settles[at] = replace(history.settles[at], handle="more")


def hand_out_twice(history: PopHistory, **changes: str) -> None:
    _, delivery = end(history, is_ack=True)
    history.deliveries.append(replace(delivery, receive=10_000, **changes))  # type: ignore[arg-type]


def lose(history: PopHistory) -> None:
    _, delivery = end(history, is_ack=True)
    value = delivery.value
    handles = {other.handle for other in history.deliveries if other.value == value}
    history.settles = [settle for settle in history.settles if settle.handle not in handles]


def lose_before_anybody_had_it(history: PopHistory) -> None:
    history.produced["unseen"] = ToldOutcome.OK


def lose_dead(history: PopHistory) -> None:
    _, delivery = end(history, is_ack=False)
    history.dead.remove(delivery.value)


def double_dead(history: PopHistory) -> None:
    history.dead.append(history.dead[0])


def bury_acked(history: PopHistory) -> None:
    """Somebody had rejected it before, without an answer; then another one acknowledged it."""
    _, delivery = end(history, is_ack=True)
    before = delivery.taken_unix_ms - 9_000
    earlier = replace(delivery, count=0, handle="before", receive=10_000, taken_unix_ms=before)
    history.deliveries.append(replace(earlier, visible_unix_ms=before + INVISIBLE_MS))
    began = delivery.taken_unix_ms - 8_500
    history.settles.append(Settle("before", False, began, began + 9, ToldOutcome.UNKNOWN))
    history.dead.append(delivery.value)


def bury_without_cause(history: PopHistory) -> None:
    """An ack without an answer, and yet it is dead."""
    at, delivery = end(history, is_ack=True)
    history.settles[at] = replace(history.settles[at], outcome=ToldOutcome.UNKNOWN)
    history.dead.append(delivery.value)


def invent(history: PopHistory) -> None:
    del history.produced[history.deliveries[0].value]


def show_refused(history: PopHistory) -> None:
    value = history.deliveries[0].value
    history.produced[value] = ToldOutcome.NOT_APPLIED


def overtake(history: PopHistory) -> None:
    """Hand out the last one of a group while the first one is in flight."""
    first = history.deliveries[0]
    at = max(
        at for at, one in enumerate(history.deliveries) if one.message_group == first.message_group
    )
    taken = first.taken_unix_ms
    early = replace(history.deliveries[at], receive=10_000, taken_unix_ms=taken)
    history.deliveries[at] = early


def swap_within_a_receive(history: PopHistory) -> None:
    first = next(at for at, one in enumerate(history.deliveries) if not one.queue_offset)
    value = history.deliveries[first].value
    other = replace(
        history.deliveries[first], value="later", queue_offset=10_000, handle="later", count=1
    )
    history.produced["later"] = ToldOutcome.OK
    settle = next(one for one in history.settles if one.handle.startswith(f"{value}/"))
    history.settles.append(replace(settle, handle="later", is_ack=True, outcome=ToldOutcome.OK))
    history.deliveries.insert(first, other)


PLANTS: list[tuple[Callable[[PopHistory], None], str]] = [
    (partial(hand_out_ended, is_ack=True), "again"),
    (partial(hand_out_ended, is_ack=False), "again"),
    (ack_behind_the_back, "again"),
    (share, "shared"),
    (share_one_that_was_held_longer, "shared"),
    (hand_out_twice, "twice"),
    (partial(hand_out_twice, handle="another"), "twice"),
    (lose, "lost"),
    (lose_before_anybody_had_it, "lost"),
    (lose_dead, "lost"),
    (double_dead, "doubled"),
    (bury_acked, "both"),
    (bury_without_cause, "causeless"),
    (invent, "phantom"),
    (show_refused, "refused"),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_history_has_no_violation(seed: int) -> None:
    assert check_pop(right_history(seed), is_fifo=True) == []


@pytest.mark.parametrize(("plant", "word"), PLANTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_found(
    plant: Callable[[PopHistory], None], word: str, seed: int
) -> None:
    history = right_history(seed)
    plant(history)
    violations = check_pop(history, is_fifo=False)
    assert {text.partition(":")[0] for text in violations} == {word}, violations


@pytest.mark.parametrize("plant", [overtake, swap_within_a_receive])
@pytest.mark.parametrize("seed", SEEDS)
def test_disorder_in_a_message_group_is_found(
    plant: Callable[[PopHistory], None], seed: int
) -> None:
    history = right_history(seed)
    plant(history)
    violations = check_pop(history, is_fifo=True)
    assert any(text.startswith("order: ") for text in violations), violations


def test_an_ack_of_an_earlier_holder_counts_after_a_later_one() -> None:
    history = PopHistory({"v": ToldOutcome.OK})
    first = PopDelivery("v", "g", 0, 0, 1, "a", 1, 1_000, 2_500)
    history.deliveries.append(first)
    hand_out(history, first, 2_500)
    history.settles.append(Settle("more", True, 2_600, 2_610, ToldOutcome.OK))
    history.settles.append(Settle("a", True, 2_700, 2_710, ToldOutcome.OK))
    assert check_pop(history, is_fifo=True) == []


def test_a_message_that_was_handed_out_as_often_as_allowed_may_die() -> None:
    history = PopHistory({"v": ToldOutcome.OK}, dead=["v"], failed_receive_count=2)
    at = 1_000
    for count in range(1, 15):
        history.deliveries.append(PopDelivery("v", "g", 0, 0, count, f"{count}", count, at, at + 9))
        at += 9
    assert check_pop(history, is_fifo=True) == []
    history.failed_receive_count = 1
    assert [text.partition(":")[0] for text in check_pop(history, is_fifo=True)] == ["causeless"]
