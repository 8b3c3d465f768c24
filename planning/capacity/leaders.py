"""The leaders of groups, spread over hosts so that none is hot.

Owns the choice of moves. A host is hot when the load of what it leads is above 1.2 of the mean over
all hosts that may lead. A move hands one group to another of its copies; where the coldest host has
no copy of a group of the hottest, a chain of moves over hosts between them does it. Few moves are
made: each one makes the sum of the squares of the loads smaller, and none is made once no host is
hot. Pure functions: the same input gives the same moves.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

HOT_RATIO: Final = 1.2
_LEAST_GAIN_SHARE: Final = 1e-9
"""Share of the square of all load that a chain must gain; below it are rounding errors."""


@dataclass(frozen=True, slots=True)
class LedGroup:
    """A group, the hosts that may lead it now, and its load."""

    name: str
    leader: str | None
    """Host of the leader; None: it has none, and is left alone."""
    candidates: tuple[str, ...]
    """Hosts with a copy that is able to lead, that of the leader included."""
    load: float = 1.0


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """A hand-over of one group from a host to another."""

    group: str
    source: str
    target: str


def loads_of(groups: Sequence[LedGroup], hosts: Collection[str]) -> dict[str, float]:
    """Return the load of what each host leads."""
    loads = dict.fromkeys(hosts, 0.0)
    for group in groups:
        if group.leader is not None:
            loads[group.leader] = loads.get(group.leader, 0.0) + group.load
    return loads


def hot_ratio(loads: Mapping[str, float]) -> float:
    """Return the largest load over the mean; 1 where there is no load."""
    total = sum(loads.values())
    return max(loads.values()) * len(loads) / total if total else 1.0


def attainable_ratio(groups: Sequence[LedGroup], hosts: Collection[str]) -> float:
    """Return the ratio above which a host is hot: 1.2, or more where groups are few and large.

    With 4 groups on 3 hosts one host leads 2, which is 1.5 of the mean: of the first k * hosts + 1
    groups by load some host leads k + 1, each at least as large as the last of these.
    """
    led = sorted((group.load for group in groups if group.leader is not None), reverse=True)
    mean = sum(led) / max(len(hosts), 1)
    if not mean:
        return HOT_RATIO
    least = max((k + 1) * load for k, load in enumerate(led[:: len(hosts)]))
    return max(HOT_RATIO, least / mean)


def balance(
    groups: Sequence[LedGroup], hosts: Collection[str], *, ratio: float = HOT_RATIO
) -> list[LeaderMove]:
    """Return moves after which no host is above `ratio` of the mean, or none can be made colder.

    Each group moves at most once. `hosts` are all that may lead, also those that lead nothing.
    """
    leads = {group.name: group.leader for group in groups if group.leader is not None}
    by_name = {group.name: group for group in groups}
    loads = loads_of(groups, hosts)
    while hot_ratio(loads) > ratio:
        chain = _chain(by_name, leads, loads)
        if chain is None:
            break
        for move in chain:
            load = by_name[move.group].load
            leads[move.group] = move.target
            loads[move.source] -= load
            loads[move.target] += load
    return [
        LeaderMove(group.name, group.leader, leads[group.name])
        for group in groups
        if group.leader is not None and leads[group.name] != group.leader
    ]


def preferred_leaders(placement: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the host that should lead each group, as evenly as the placement allows.

    For `preferred_leader` in the settings of new nodes: all groups count the same.
    """
    groups = [LedGroup(name, hosts[0], tuple(hosts)) for name, hosts in placement.items()]
    used = {host for hosts in placement.values() for host in hosts}
    targets = {move.group: move.target for move in balance(groups, used, ratio=1.0)}
    return {name: targets.get(name, hosts[0]) for name, hosts in placement.items()}


def _chain(
    groups: Mapping[str, LedGroup], leads: Mapping[str, str], loads: Mapping[str, float]
) -> list[LeaderMove] | None:
    """Return the shortest chain from a hot host that makes the loads more even; None: there is
    none. The hottest host comes first, then the next one above the mean."""
    led: dict[str, list[LedGroup]] = {host: [] for host in loads}
    for name, host in leads.items():
        led[host].append(groups[name])
    for of_host in led.values():
        of_host.sort(key=lambda group: (-group.load, group.name))
    mean, sizes = sum(loads.values()) / len(loads), {groups[name].load for name in leads}
    # Of equal groups a chain gains only if its end leads two less than its beginning.
    least = min(loads.values()) + 2 * sizes.pop() if len(sizes) == 1 else 0.0
    for source in sorted(loads, key=lambda host: (-loads[host], host)):
        if loads[source] <= mean or loads[source] < least:
            return None
        chain = _chain_from(source, groups, led, loads)
        if chain is not None:
            return chain
    return None


def _chain_from(
    source: str,
    groups: Mapping[str, LedGroup],
    led: Mapping[str, Sequence[LedGroup]],
    loads: Mapping[str, float],
) -> list[LeaderMove] | None:
    """Search breadth first. A host is gone on from once, so that the search ends; each group that
    it leads is tried as the last link, for a small one may fit where a large one does not."""
    reached: dict[str, list[LeaderMove]] = {source: []}
    least = _LEAST_GAIN_SHARE * sum(loads.values()) ** 2
    queue = deque([source])
    while queue:
        at = queue.popleft()
        for group in led[at]:
            for target in sorted(set(group.candidates) - {at}, key=lambda h: (loads.get(h, 0), h)):
                before = reached[at]
                if target not in loads or target == source or target in _targets(before):
                    continue
                chain = [*before, LeaderMove(group.name, at, target)]
                if _gain(chain, groups, loads) > least:
                    return chain
                if target not in reached:
                    reached[target] = chain
                    queue.append(target)
    return None


def _targets(chain: Sequence[LeaderMove]) -> set[str]:
    return {move.target for move in chain}


def _gain(
    chain: Sequence[LeaderMove], groups: Mapping[str, LedGroup], loads: Mapping[str, float]
) -> float:
    """Return by how much the sum of the squares of the loads falls."""
    change: dict[str, float] = {}
    for move in chain:
        load = groups[move.group].load
        change[move.source] = change.get(move.source, 0.0) - load
        change[move.target] = change.get(move.target, 0.0) + load
    return sum(loads[host] ** 2 - (loads[host] + delta) ** 2 for host, delta in change.items())
