"""Epochs that no promotions explain: refused before they are bound, wherever they come from."""

from __future__ import annotations

import pytest

from node.config.limits import EPOCH_END
from node.replication.ha.core.ceiling import (
    EPOCH_JUMP_AT_START_MAX,
    EPOCH_JUMP_MAX,
    EPOCH_WINDOW_MS,
    EpochCeiling,
)
from node.replication.ha.core.types import (
    EpochStart,
    HaBinding,
    HaRole,
    HaStanding,
    PromotionError,
)
from node.replication.ha.core.wire import (
    POSITION_MAX,
    Bind,
    Bound,
    DownFrame,
    DownParser,
    HaFrameError,
    HandshakeReply,
    Transfer,
    UpParser,
    encode,
)
from tests.node.replication.ha.core.machines import bound, follower, joined, machine, master

ABSURD = [EPOCH_JUMP_AT_START_MAX + 6, (1 << 31) - 1]


@pytest.mark.parametrize("number", ABSURD)
def test_an_absurd_fence_is_refused_before_it_is_bound(number: int) -> None:
    m = follower()
    before = m.state.replica
    fx = m.received("up", Bind(HaBinding(number, 0, 9)))
    assert [close.link for close in fx.close] == ["up"]
    assert "too far ahead" in fx.close[0].reason
    assert (fx.state, fx.send, m.state.replica) == (None, [], before)
    assert m.state.highest_seen == before.bound.number
    assert m.stats()["epoch_jumps"] == 1


@pytest.mark.parametrize("number", ABSURD)
def test_an_absurd_promise_neither_deposes_nor_is_noted(number: int) -> None:
    for answer in (bound(HaBinding(number, 2, 9)), bound(HaBinding(5, 0, 7), epoch=number)):
        m = master(10, (1, 0))
        fx = m.received("one", answer)
        assert [close.link for close in fx.close] == ["one"]
        assert (m.role, m.state.highest_seen) == (HaRole.MASTER, 5)
        assert m.stats()["epoch_jumps"] == 1


@pytest.mark.parametrize("number", ABSURD)
def test_an_absurd_advice_is_counted_and_not_followed(number: int) -> None:
    m = machine(0)
    fx = m.advise(number, 0, 7)
    assert (fx.state, m.role) == (None, HaRole.SLAVE)
    assert m.stats()["advice_refused"] == 1
    assert m.advise(3, 0, 7).state is not None


def test_the_epochs_of_a_log_are_not_above_the_fence() -> None:
    m = follower(30, (1, 0))
    fx = m.received("up", HandshakeReply(100, 6, (EpochStart(1, 0), EpochStart(6, 30))))
    assert [close.link for close in fx.close] == ["up"]
    assert (fx.epochs, fx.cut) == (None, None)


def test_a_promotion_to_the_end_is_refused_and_names_the_way_back() -> None:
    m = machine(0, bound=HaBinding(EPOCH_END - 1, 1, 9))
    with pytest.raises(PromotionError, match="new cluster is the way back"):
        m.promote(7)
    with pytest.raises(PromotionError, match="new cluster is the way back"):
        m.check_promotion()
    assert m.role is HaRole.SLAVE


def test_a_replica_that_slept_follows_and_steps_have_a_speed() -> None:
    far = 5 + EPOCH_JUMP_AT_START_MAX + 2 * EPOCH_JUMP_MAX
    m = follower()
    now = 1_000_000
    for _ in range(3):
        m.tick(now)
        m.dialled("again", 0)
        m.received("again", Bind(HaBinding(far, 0, 9)))
        assert m.state.bound.number == 5
        now += EPOCH_WINDOW_MS
    m.tick(now)
    m.dialled("at last", 0)
    m.received("at last", Bind(HaBinding(far, 0, 9)))
    assert m.state.bound.number == far
    years = EPOCH_END / EPOCH_JUMP_MAX * EPOCH_WINDOW_MS / 1000 / 86_400 / 365
    assert years > 39


def test_a_quiet_window_begins_from_what_is_known() -> None:
    ceiling = EpochCeiling(5)
    ceiling.pass_time(100, 5)
    assert ceiling.limit == 5 + EPOCH_JUMP_AT_START_MAX
    ceiling.pass_time(99 + EPOCH_WINDOW_MS, 7)
    assert ceiling.limit == 5 + EPOCH_JUMP_AT_START_MAX
    ceiling.pass_time(100 + EPOCH_WINDOW_MS, 7)
    assert ceiling.limit == 7 + EPOCH_JUMP_MAX
    top = EpochCeiling(EPOCH_END - 2)
    assert top.limit == EPOCH_END - 1
    assert top.refuses(EPOCH_END)


def test_a_master_that_was_told_of_the_bound_still_promotes() -> None:
    """What is allowed is followed: the next epoch is above it."""
    m = master(10, (1, 0))
    high = 1000
    m.received("one", bound(HaBinding(high, 2, 9)))
    assert (m.role, m.state.highest_seen) == (HaRole.SLAVE, high)
    joined(m, "two", 2)
    m.promote(8)
    assert m.state.bound.number == high + 1


@pytest.mark.parametrize("position", [POSITION_MAX + 1, (1 << 63) - 1])
def test_a_position_that_no_log_reaches_is_no_frame(position: int) -> None:
    places = [(position, 0, 0), (0, position, 0), (0, 0, position)]
    for end, confirm, known in places:
        frame = Bound(HaBinding(5, 0, 7), 1, end, confirm, known, HaStanding.FULL, 11)
        with pytest.raises(HaFrameError, match="position"):
            UpParser().feed(encode(frame))
    down: list[DownFrame] = [
        HandshakeReply(position, 1, (EpochStart(1, 0),)),
        HandshakeReply(9, 1, (EpochStart(1, position),)),
        Transfer(position, 1, 0, 0),
        Transfer(0, 1, position, 0),
        Transfer(0, 1, 0, position),
    ]
    for other in down:
        with pytest.raises(HaFrameError, match="position"):
            DownParser().feed(encode(other))
