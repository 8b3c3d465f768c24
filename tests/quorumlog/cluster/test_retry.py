"""Pauses between attempts: they double, are bounded, differ, and end with the deadline (N11)."""

import pytest

from quorumlog.cluster.retry import (
    PAUSE_ADVISED_MAX_MS,
    PAUSE_FIRST_MS,
    PAUSE_MAX_MS,
    Backoff,
    Deadline,
)
from quorumlog.errors import BusyError, DeadlineError, UnavailableError

FAR_MS = 3_600_000
CLIENTS = 200


def pauses_ms(count: int, advised_ms: float = 0) -> list[float]:
    backoff = Backoff(Deadline(FAR_MS))
    return [backoff.next_s(advised_ms) * 1000 for _ in range(count)]


def test_pauses_double_up_to_a_limit_and_stay_there() -> None:
    """Also after more attempts than a shift of bits could hold."""
    for number, pause_ms in enumerate(pauses_ms(2_000)):
        whole_ms = min(PAUSE_FIRST_MS * 2 ** min(number, 16), PAUSE_MAX_MS)
        assert whole_ms / 2 <= pause_ms <= whole_ms


@pytest.mark.parametrize("advised_ms", [0, 300, 10 * PAUSE_ADVISED_MAX_MS])
def test_clients_that_failed_together_come_back_apart(advised_ms: float) -> None:
    """Else they would meet a new leader all at once, again and again."""
    third = sorted(pauses_ms(3, advised_ms)[-1] for _ in range(CLIENTS))
    assert len(set(third)) > CLIENTS / 2
    assert third[3 * CLIENTS // 4] - third[CLIENTS // 4] > 5


def test_a_node_that_advises_is_not_asked_before_that_but_within_reason() -> None:
    assert all(300 <= pause_ms <= 500 for pause_ms in pauses_ms(20, advised_ms=300))
    for pause_ms in pauses_ms(20, advised_ms=10 * PAUSE_ADVISED_MAX_MS):
        assert PAUSE_ADVISED_MAX_MS <= pause_ms <= PAUSE_ADVISED_MAX_MS + PAUSE_MAX_MS


def test_no_pause_is_longer_than_the_time_that_is_left() -> None:
    backoff = Backoff(Deadline(20), count=16)
    assert backoff.next_s() * 1000 <= 20
    assert backoff.next_s(advised_ms=5_000) * 1000 <= 20
    late = Backoff(Deadline(1e-6))
    assert late.next_s(advised_ms=5_000) == 0


def test_a_call_that_came_to_no_attempt_says_why_and_counts_none() -> None:
    last = UnavailableError("refused; ask another node")
    said = [str(Deadline(9).error("it", last, attempts=n)).partition(";")[0] for n in (0, 1)]
    assert said == [
        "it was not done within 9 ms: client.unavailable: refused",
        "it was not done within 9 ms in 1 attempt, the last with client.unavailable: refused",
    ]


def test_a_call_whose_last_attempt_ran_out_of_time_names_one_time_and_one_remedy() -> None:
    last = DeadlineError("no answer within 1 ms; ask again", code="node.read_timeout")
    assert str(Deadline(9).error("it", last, attempts=3)) == (
        "it was not done within 9 ms in 3 attempts, the last with node.read_timeout; allow more "
        "time or look at the cluster (qlog cluster status)"
    )


def test_a_deadline_within_another_is_told_once() -> None:
    busy = BusyError("a queue is full; wait", code="node.busy")
    inner = Deadline(3_000).error_unknown("the append", busy, attempts=2)
    text = str(Deadline(3_000).error("the call", inner, attempts=2))
    assert text.count("not done within") == text.count("node.busy: a queue is full") == 1


def test_a_call_that_a_rate_held_up_is_no_trouble_of_the_cluster() -> None:
    rate = BusyError("5 messages of user 'b' are over; try again", code="node.rate_limited")
    text = str(Deadline(9).error("it", rate, attempts=2))
    assert text.endswith("; send less, allow more time, or ask an admin for a higher limit")
