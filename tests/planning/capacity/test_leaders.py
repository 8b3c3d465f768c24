"""Leaders are spread until no host is hot, with few moves, and never to a host without a copy."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.capacity import leaders
from planning.capacity.leaders import (
    HOT_RATIO,
    LeaderMove,
    LedGroup,
    attainable_ratio,
    balance,
    hot_ratio,
    loads_of,
)
from planning.capacity.placement import FleetHost, place


def moved(groups: list[LedGroup], moves: list[LeaderMove]) -> list[LedGroup]:
    """The groups after the moves, each of which has to be possible."""
    by_name = {group.name: group for group in groups}
    for move in moves:
        group = by_name[move.group]
        assert group.leader == move.source
        assert move.target in group.candidates
        by_name[move.group] = replace(group, leader=move.target)
    assert len({move.group for move in moves}) == len(moves), "a group moves twice"
    return list(by_name.values())


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[LedGroup], list[str]]:
    hosts = [f"h{n}" for n in range(draw(st.integers(1, 8)))]
    groups = []
    for n in range(draw(st.integers(1, 25))):
        candidates = tuple(draw(st.sets(st.sampled_from(hosts), min_size=1, max_size=3)))
        leader = draw(st.none() | st.sampled_from(sorted(candidates)))
        load = draw(st.sampled_from([0.0, 0.1, 1.0, 1.0, 1.0, 7.5]))
        groups.append(LedGroup(f"g{n}", leader, tuple(sorted(candidates)), load))
    return groups, hosts


@pytest.mark.long
@given(fleets())
def test_moves_are_possible_and_make_no_host_hotter(
    fleet: tuple[list[LedGroup], list[str]],
) -> None:
    groups, hosts = fleet
    before = loads_of(groups, hosts)
    moves = balance(groups, hosts)
    after = loads_of(moved(groups, moves), hosts)
    assert sum(after.values()) == pytest.approx(sum(before.values()))
    if moves:
        assert sum(x * x for x in after.values()) < sum(x * x for x in before.values())
    assert hot_ratio(after) <= hot_ratio(before) + 1e-9
    if hot_ratio(before) <= HOT_RATIO:
        assert moves == []
    leaderless = {group.name for group in groups if group.leader is None}
    assert not leaderless & {move.group for move in moves}


@pytest.mark.long
@given(fleets())
def test_equal_groups_end_as_even_as_can_be(fleet: tuple[list[LedGroup], list[str]]) -> None:
    groups, hosts = fleet
    led = [replace(group, load=1.0) for group in groups if group.leader is not None][:7]
    after = loads_of(moved(led, balance(led, hosts)), hosts)
    choices = itertools.product(*(group.candidates for group in led))
    best = min(max([choice.count(host) for host in hosts], default=0) for choice in choices)
    mean = len(led) / len(hosts)
    assert max(after.values()) <= max(best, HOT_RATIO * mean)


@pytest.mark.parametrize("seed", range(5))
def test_hundreds_of_groups_have_no_hot_host(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [FleetHost(f"z{n % 3}-h{n}", f"z{n % 3}", 100) for n in range(30)]
    placement = place(hosts, [f"g{n}" for n in range(300)], 3)
    names = [host.name for host in hosts]
    for weighted in (False, True):
        groups = [
            # All led from one zone, as after the loss of the two others.
            LedGroup(name, min(chosen), chosen, rng.uniform(0.5, 2) if weighted else 1.0)
            for name, chosen in placement.items()
        ]
        assert hot_ratio(loads_of(groups, names)) > 2.5
        after = moved(groups, balance(groups, names))
        assert hot_ratio(loads_of(after, names)) <= HOT_RATIO


def test_a_chain_of_moves_reaches_a_host_without_a_copy_of_the_hot_ones() -> None:
    groups = [
        LedGroup("a", "x", ("x", "y")),
        LedGroup("b", "x", ("x", "y")),
        LedGroup("c", "y", ("y", "z")),
    ]
    moves = balance(groups, ["x", "y", "z"])
    assert loads_of(moved(groups, moves), "xyz") == {"x": 1, "y": 1, "z": 1}
    assert [(move.source, move.target) for move in moves] == [("x", "y"), ("y", "z")]


def test_a_small_group_moves_where_a_large_one_does_not_fit() -> None:
    groups = [
        LedGroup("large", "x", ("x", "y"), 5.0),
        LedGroup("small", "x", ("x", "y"), 1.0),
        LedGroup("other", "y", ("y",), 3.0),
    ]
    assert balance(groups, ["x", "y"]) == [LeaderMove("small", "x", "y")]


def test_leaders_of_an_even_or_empty_fleet_stay() -> None:
    assert balance([], ["x"]) == []
    assert hot_ratio({"x": 0.0, "y": 0.0}) == 1.0
    even = [LedGroup(f"g{n}", "xy"[n % 2], ("x", "y")) for n in range(10)]
    assert balance(even, ["x", "y"]) == []


def test_equal_groups_that_are_even_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more hosts than groups a look at the leaders would else try every chain in vain."""
    monkeypatch.setattr(leaders, "_chain_from", lambda *_: pytest.fail("searched"))
    hosts = [f"h{n}" for n in range(9)]
    groups = [LedGroup(f"g{n}", f"h{n}", tuple(hosts)) for n in range(4)]
    assert balance(groups, hosts) == []


@pytest.mark.parametrize(
    ("loads", "hosts", "ratio"),
    [
        ([1] * 4, 3, 1.5),
        ([1] * 300, 30, 1.2),
        ([1], 3, 3.0),
        ([9, 1], 2, 1.8),
        ([3, 3, 3, 1, 1, 1], 3, 1.2),
        ([], 3, 1.2),
    ],
)
def test_hot_begins_where_nobody_could_do_better(
    loads: list[float], hosts: int, ratio: float
) -> None:
    groups = [LedGroup(f"g{n}", "h0", ("h0",), load) for n, load in enumerate(loads)]
    attainable = attainable_ratio(groups, [f"h{n}" for n in range(hosts)])
    assert math.isclose(attainable, ratio)


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 3))
def test_hot_is_never_below_what_the_best_choice_of_leaders_has(
    loads: list[int], host_count: int
) -> None:
    hosts = [f"h{n}" for n in range(host_count)]
    groups = [LedGroup(f"g{n}", "h0", tuple(hosts), load) for n, load in enumerate(loads)]
    choices = itertools.product(hosts, repeat=len(loads))
    best = min(
        hot_ratio(loads_of([replace(g, leader=h) for g, h in zip(groups, c, strict=True)], hosts))
        for c in choices
    )
    assert attainable_ratio(groups, hosts) <= max(HOT_RATIO, best) + 1e-9
