"""The judge of delayed messages: planted faults of each kind are found, right histories are not."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from chaos.delayed import Cancel, DelayHistory, Delivered, Sent, check_delayed
from chaos.told import ToldOutcome

COUNT = 60
SEEDS = range(5)


def right_history(random: Random) -> DelayHistory:
    """What a cluster that keeps its word may have done: at least one message of each fate."""
    history, offset = DelayHistory(), 0
    for number in range(COUNT):
        value, due = f"v{number}", 1_000_000 + random.randrange(5_000)
        fate = random.choices(
            (ToldOutcome.OK, ToldOutcome.UNKNOWN, ToldOutcome.NOT_APPLIED), (8, 1, 1)
        )[0]
        if number < 3:
            fate = (ToldOutcome.OK, ToldOutcome.OK, ToldOutcome.NOT_APPLIED)[number]
        history.sent[value] = Sent(value, random.randrange(2), due, fate)
        comes = fate is ToldOutcome.OK or (fate is ToldOutcome.UNKNOWN and random.random() < 0.5)
        if fate is ToldOutcome.OK and (number == 1 or (number > 2 and random.random() < 0.4)):
            answer = (
                ToldOutcome.OK
                if number == 1
                else random.choice((ToldOutcome.OK, ToldOutcome.TOO_LATE, ToldOutcome.UNKNOWN))
            )
            history.cancels.append(Cancel(value, answer, due))
            comes = answer is ToldOutcome.TOO_LATE or (
                answer is ToldOutcome.UNKNOWN and random.random() < 0.5
            )
        if comes:
            at = due + random.choice((0, random.randrange(3_000)))
            queue_id = history.sent[value].queue_id
            history.delivered.append(Delivered(value, queue_id, offset, at))
            history.seen_unix_ms[value] = at + random.randrange(100)
            offset += 1
    return history


def came(history: DelayHistory) -> int:
    """Return where the delivery of a message that had to come is."""
    wanted = history.wanted()
    return next(at for at, one in enumerate(history.delivered) if one.value in wanted)


def lose(history: DelayHistory) -> None:
    del history.delivered[came(history)]


def double(history: DelayHistory) -> None:
    copy = replace(history.delivered[came(history)], queue_offset=10_000)
    history.delivered.append(copy)


def hurry(history: DelayHistory) -> None:
    at = came(history)
    delivery = history.delivered[at]
    due = history.sent[delivery.value].due_unix_ms
    history.delivered[at] = replace(delivery, store_unix_ms=due - 1)


def show_early(history: DelayHistory) -> None:
    value = history.delivered[came(history)].value
    history.seen_unix_ms[value] = history.sent[value].due_unix_ms - 1


def move(history: DelayHistory) -> None:
    at = came(history)
    delivery = history.delivered[at]
    history.delivered[at] = replace(delivery, queue_id=1 - delivery.queue_id)


def bring_back_cancelled(history: DelayHistory) -> None:
    bring(history, min(history.cancelled()))


def bring_refused(history: DelayHistory) -> None:
    bring(history, next(v for v, s in history.sent.items() if s.outcome is ToldOutcome.NOT_APPLIED))


def bring(history: DelayHistory, value: str) -> None:
    sent = history.sent[value]
    history.delivered.append(Delivered(value, sent.queue_id, 10_000, sent.due_unix_ms))


def invent(history: DelayHistory) -> None:
    history.delivered.append(Delivered("nobody's", 0, 10_000, 2_000_000))


def lose_one_called_gone(history: DelayHistory) -> None:
    """A cancel that came too late says that the message came."""
    value = history.delivered[came(history)].value
    history.cancels.append(Cancel(value, ToldOutcome.TOO_LATE))
    lose(history)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_history_has_no_violation(seed: int) -> None:
    assert check_delayed(right_history(Random(seed))) == []


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (lose, "lost"),
        (lose_one_called_gone, "lost"),
        (double, "doubled"),
        (hurry, "early"),
        (show_early, "early"),
        (move, "changed"),
        (bring_back_cancelled, "cancelled"),
        (bring_refused, "refused"),
        (invent, "phantom"),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_found(
    plant: Callable[[DelayHistory], None], word: str, seed: int
) -> None:
    history = right_history(Random(seed))
    plant(history)
    violations = check_delayed(history)
    assert len(violations) == 1, violations
    assert violations[0].startswith(f"{word}: ")
