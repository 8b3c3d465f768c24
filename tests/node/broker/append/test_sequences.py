"""Batches under way of one producer: known until the last of them is decided."""

from types import SimpleNamespace
from typing import Any

import pytest

from node.broker.append.sequences import Sequences
from node.errors.common import DuplicateExpiredError


def test_a_batch_under_way_is_known_after_the_one_before_it_was_decided() -> None:
    """Else its repetition would be written a second time."""
    context: Any = SimpleNamespace(driver=SimpleNamespace(term=3))
    sequences: Sequences[str] = Sequences(context)
    flight = sequences.begin(7, 0, "first")
    assert sequences.begin(7, 1, "second") is flight

    sequences.end(7, 0, flight)

    kept = sequences._flight(7)
    assert kept is flight
    assert kept.appends == {1: "second"}
    sequences.end(7, 1, flight)
    assert sequences._flight(7) is None


def test_a_failed_batch_of_a_producer_that_is_not_known_yet_is_refused_by_name() -> None:
    """The one after it is still under way, and none was applied."""
    state = SimpleNamespace(producers={})
    context: Any = SimpleNamespace(
        driver=SimpleNamespace(term=3), machine=SimpleNamespace(state=state)
    )
    sequences: Sequences[str] = Sequences(context)
    flight = sequences.begin(7, 0, "first")
    sequences.begin(7, 1, "second")
    sequences.end(7, 0, flight)
    with pytest.raises(DuplicateExpiredError):
        sequences.find(7, 0)


def test_the_end_of_an_old_flight_leaves_the_new_one_alone() -> None:
    context: Any = SimpleNamespace(driver=SimpleNamespace(term=3))
    sequences: Sequences[str] = Sequences(context)
    old = sequences.begin(7, 0, "of term 3")
    context.driver.term = 4
    new = sequences.begin(7, 0, "of term 4")
    assert new is not old

    sequences.end(7, 0, old)

    assert sequences._flight(7) is new
