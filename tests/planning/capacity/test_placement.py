"""Copies are spread over zones and hosts, whatever the fleet."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.capacity.placement import FleetHost, PlacementError, next_host, place, shared_groups


def fleet(zones: int, per_zone: int, room: int) -> list[FleetHost]:
    return [FleetHost(f"z{z}-h{h}", f"z{z}", room) for z in range(zones) for h in range(per_zone)]


@given(
    zones=st.integers(1, 5),
    per_zone=st.integers(1, 6),
    copies=st.integers(1, 5),
    count=st.integers(1, 60),
)
def test_a_fleet_with_room_keeps_all_rules(
    zones: int, per_zone: int, copies: int, count: int
) -> None:
    hosts = fleet(zones, per_zone, 60)
    names = [f"g{n}" for n in range(count)]
    if copies > len(hosts):
        with pytest.raises(PlacementError, match="has no host for copy"):
            place(hosts, names, copies)
        return
    placement = place(hosts, names, copies)
    for chosen in placement.values():
        assert len(set(chosen)) == copies
        most = max(Counter(name.partition("-")[0] for name in chosen).values())
        assert most <= -(-copies // zones)
    assert sorted(placement) == sorted(names)
    used = Counter(host for chosen in placement.values() for host in chosen)
    loads = [used[host.name] for host in hosts]
    assert max(loads) <= hosts[0].node_count_max
    assert max(loads) - min(loads) <= 1 + (copies % zones != 0)


def test_rooms_of_different_size_are_filled_evenly() -> None:
    hosts = [FleetHost("a", "z", 30), FleetHost("b", "z", 10), FleetHost("c", "z", 20)]
    placement = place(hosts, [f"g{n}" for n in range(30)], 1)
    used = Counter(host for chosen in placement.values() for host in chosen)
    assert used == {"a": 15, "b": 5, "c": 10}


def test_no_host_takes_more_than_it_has_room_for() -> None:
    hosts = fleet(3, 1, 2)
    assert len(place(hosts, ["a", "b"], 3)) == 2
    with pytest.raises(PlacementError, match="room for 6 copies"):
        place(hosts, ["a", "b", "c"], 3)


def test_a_further_copy_goes_to_the_zone_with_fewest() -> None:
    hosts = fleet(3, 2, 10)
    chosen = ["z0-h0", "z1-h0"]
    assert next_host(hosts, chosen, {}, "g", shared={}).startswith("z2-")
    away = ["z2-h0", "z2-h1"]
    assert next_host(hosts, chosen, {}, "g", shared={}, away=away) in {"z0-h1", "z1-h1"}


def test_groups_of_a_host_are_shared_with_many_others() -> None:
    hosts = fleet(3, 10, 100)
    placement = place(hosts, [f"g{n}" for n in range(300)], 3)
    pairs = shared_groups(placement.values())
    for host in hosts:
        others = [count for pair, count in pairs.items() if host.name in pair]
        assert sum(others) == 60
        assert len(others) == 20, f"{host.name} shares with {len(others)} hosts of other zones"
        assert max(others) <= 5
