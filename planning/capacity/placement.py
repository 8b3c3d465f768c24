"""The hosts of each group: spread over zones, then over hosts.

Owns the rules. A group has at most one copy on a host; its copies differ by at most one between two
zones, as far as the zones have room, so that with three zones or more none holds a majority; of the
hosts of a zone the one with the most room takes the copy, and of several the one that shares fewest
groups with the hosts of the other copies. Without the last rule hosts would form sets that hold the
same groups, and when one of a set fails, the others alone would have to lead them all. Pure
functions: the same input gives the same placement.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from planning.capacity.demand import DemandError


@dataclass(frozen=True, slots=True)
class FleetHost:
    """A host that takes copies."""

    name: str
    zone: str
    node_count_max: int
    """Copies, of different groups, for which the host has room."""


class PlacementError(DemandError):
    """The hosts do not have the room that a rule needs."""


Placement = dict[str, tuple[str, ...]]
"""Names of the hosts of each group."""


Shared = Counter[tuple[str, str]]
"""Count of the groups that two hosts have both a copy of; the names are in order."""


def shared_groups(placement: Iterable[Sequence[str]]) -> Shared:
    """Count the groups of each pair of hosts."""
    return Counter(
        _pair(host, other) for chosen in placement for host, other in combinations(chosen, 2)
    )


def _pair(host: str, other: str) -> tuple[str, str]:
    return (host, other) if host < other else (other, host)


def place(hosts: Sequence[FleetHost], groups: Sequence[str], copies: int) -> Placement:
    """Choose hosts for new groups. Raises PlacementError if there is no room for all."""
    placement: Placement = {}
    used: Counter[str] = Counter()
    shared: Shared = Counter()
    for group in groups:
        chosen: list[str] = []
        for _ in range(copies):
            host = next_host(hosts, chosen, used, group, shared=shared)
            used[host] += 1
            shared.update(_pair(host, other) for other in chosen)
            chosen.append(host)
        # The first copy moves on from zone to zone: leaders that begin there are spread.
        placement[group] = tuple(chosen)
    return placement


def next_host(
    hosts: Sequence[FleetHost],
    chosen: Collection[str],
    used: Mapping[str, int],
    group: str,
    *,
    shared: Mapping[tuple[str, str], int],
    away: Collection[str] = (),
) -> str:
    """Return the host for one more copy of a group that has its others on `chosen`.

    `used`: copies on each host by now; `shared`: groups of each pair of hosts (`shared_groups`).
    `away`: hosts that take none. Raises PlacementError.
    """
    by_name = {host.name: host for host in hosts}
    in_zone = Counter(by_name[name].zone for name in chosen)
    room: Counter[str] = Counter()
    for host in hosts:
        if host.name not in away:
            room[host.zone] += host.node_count_max - used.get(host.name, 0)
    free = [
        host
        for host in hosts
        if host.name not in chosen
        and host.name not in away
        and used.get(host.name, 0) < host.node_count_max
    ]
    if not free:
        raise PlacementError(
            f"group {group} has no host for copy {len(chosen) + 1}",
            f"{len(hosts)} hosts have room for {sum(host.node_count_max for host in hosts)} copies",
            "use more hosts, or hosts with room for more",
        )
    best = min(
        free,
        key=lambda host: (
            in_zone[host.zone],
            -room[host.zone],
            used.get(host.name, 0) / host.node_count_max,
            sum(shared.get(_pair(host.name, other), 0) for other in chosen),
            host.name,
        ),
    )
    return best.name
