"""The loop of a fleet: the next event, or the end of the next repair, whichever comes first.

Owns time, the order of events, and what each of them changes. All chance comes from the seed of the
scenario. Between two events all rates are constant.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from planning.capacity.fleet.report import FleetReport, FleetSample
from planning.capacity.fleet.scenario import FaultKind, FleetFault, FleetScenario
from planning.capacity.fleet.state import Copy, FleetGroup, FleetState
from planning.capacity.fleet.traffic_flow import Rates, rates_of
from planning.capacity.leaders import (
    attainable_ratio,
    balance,
    hot_ratio,
    loads_of,
    preferred_leaders,
)
from planning.capacity.placement import PlacementError, next_host, place, shared_groups

SAMPLE_COUNT: Final = 120
"""Samples of a run, besides one after each fault."""
_RETRY_S_MIN: Final = 1.0
"""Pause before copies for which no host had room are placed again."""

Action = Callable[[], None]


class FleetSimulation:
    """One run. `run` returns the report; the state at the end stays."""

    def __init__(self, scenario: FleetScenario) -> None:
        """Place the groups, and spread the leaders. Raises PlacementError without room."""
        self.scenario: Final = scenario
        self.now_s = 0.0
        self._rng = random.Random(scenario.seed)
        names = [f"g{at}" for at in range(scenario.group_count)]
        placement = place(scenario.hosts, names, scenario.copies)
        leaders = preferred_leaders(placement)
        groups = [
            FleetGroup(name, [Copy(host) for host in hosts], leaders[name])
            for name, hosts in placement.items()
        ]
        self.state: Final = FleetState(
            {host.name: host for host in scenario.hosts}, groups, scenario.copies // 2 + 1
        )
        self._by_name = {group.name: group for group in groups}
        self.report: Final = FleetReport()
        self._events: list[tuple[float, int, Action]] = []
        self._event_count = 0
        self._awaited_count = 0
        self._known_rates: Rates | None = None

    def run(self, show: Callable[[str, float, float], object] = lambda *_: None) -> FleetReport:
        """Run to the end of the scenario and return what was seen. `show` is called with a text,
        the simulated seconds by now and their total."""
        scenario = self.scenario
        for fault in scenario.faults:
            if fault.at_s <= scenario.duration_s:
                self._at(fault.at_s, partial(self._begin, fault))
        for at in range(SAMPLE_COUNT + 1):
            self._at(at * scenario.duration_s / SAMPLE_COUNT, self._sample)
        if scenario.rebalance_s:
            self._at(scenario.rebalance_s, self._rebalance)
        while self._events:
            at_s = self._events[0][0]
            if at_s > scenario.duration_s:
                break
            if self._advance(at_s):
                continue  # A copy is level before that event: rates have changed.
            _, _, action = heapq.heappop(self._events)
            if action == self._sample:
                show("simulated time (s)", at_s, scenario.duration_s)
            else:
                self._known_rates = None
            action()
        self.report.unplaced_count = sum(
            copy.host in self.state.lost
            for group in self.state.groups
            for copy in group.copies
            if not group.is_lost
        )
        self.report.lost_count = sum(group.is_lost for group in self.state.groups)
        return self.report

    def _rates(self) -> Rates:
        """Return the rates, which stay the same until an event changes the state."""
        if self._known_rates is None:
            self._known_rates = rates_of(self.state, self.scenario)
        return self._known_rates

    def _at(self, at_s: float, action: Action) -> None:
        self._event_count += 1  # Events of one time keep their order.
        heapq.heappush(self._events, (at_s, self._event_count, action))

    def _advance(self, to_s: float) -> bool:
        """Let time pass up to `to_s`; return whether a copy was level before, and time is there."""
        rates = self._rates()
        ends = []
        for flow in rates.flows:
            gained = flow.bytes_per_s - self._incoming(flow.group, rates)
            if gained > 0:
                ends.append((flow.copy.behind_size_bytes / gained, flow.copy))
        first = min((end for end, _ in ends), default=float("inf"))
        is_early = self.now_s + first < to_s
        passed_s = first if is_early else to_s - self.now_s
        self._pass(passed_s, rates)
        if is_early:
            self._known_rates = None
            for end, copy in ends:
                if end <= first:  # By name: what is left may be an error of floating point.
                    copy.behind_size_bytes, copy.is_voter = 0.0, True
            self._elect_where_possible()
        return is_early

    def _incoming(self, group: FleetGroup, rates: Rates) -> float:
        return rates.served.get(group.name, 0.0) * self.scenario.log_size_bytes

    def _pass(self, passed_s: float, rates: Rates) -> None:
        report, scenario = self.report, self.scenario
        self.now_s += passed_s
        report.offered_count += scenario.msgs_per_s * len(self.state.groups) * passed_s
        report.acked_count += sum(rates.served.values()) * passed_s
        for group in self.state.groups:
            grown = self._incoming(group, rates) * passed_s
            level = {id(copy) for copy in self.state.level_copies(group)}
            for copy in group.copies:
                if id(copy) not in level and copy.host not in self.state.lost:
                    copy.behind_size_bytes += grown
                    report.missed_size_bytes += grown
        for flow in rates.flows:
            size = flow.bytes_per_s * passed_s
            flow.copy.behind_size_bytes = max(flow.copy.behind_size_bytes - size, 0.0)
            report.repair_sent[flow.source] += size
            report.repair_received[flow.copy.host] += size

    # --- Faults ---

    def _begin(self, fault: FleetFault) -> None:
        state = self.state
        if fault.kind is FaultKind.ZONE:
            hosts = [name for name, host in state.hosts.items() if host.zone == fault.name]
        else:
            hosts = [fault.name]
        for host in hosts:
            if fault.kind is FaultKind.LOST:
                self._lose(host)
            else:
                state.away[host] = state.away.get(host, 0) + 1
        for group in state.groups:
            if group.leader is not None and not state.is_up(group.leader):
                self._lose_leader(group)
        if fault.kind is not FaultKind.LOST:
            self._at(self.now_s + fault.for_s, partial(self._end, fault, hosts))
        self._note(str(fault))

    def _end(self, fault: FleetFault, hosts: list[str]) -> None:
        for host in hosts:
            self.state.away[host] -= 1
        self._elect_where_possible()
        self._note(f"end of {fault}")

    def _lose(self, host: str) -> None:
        if host in self.state.lost:
            return
        self.state.lost.add(host)
        for group in self.state.groups:
            copy = group.copy_on(host)
            if copy is None:
                continue
            self.report.forgotten_size_bytes += copy.behind_size_bytes
            copy.behind_size_bytes = 0.0
            if all(one.host in self.state.lost or not one.is_level for one in group.copies):
                group.is_lost = True
        self._at(self.now_s + self.scenario.replace_after_s, partial(self._replace, host))

    def _replace(self, host: str) -> None:
        """Place the copies of a lost host on others; each has the whole log to get."""
        used = Counter(copy.host for group in self.state.groups for copy in group.copies)
        away = {name for name in self.state.hosts if not self.state.is_up(name)}
        hosts = list(self.state.hosts.values())
        shared = shared_groups([one.host for one in g.copies] for g in self.state.groups)
        is_whole = True
        for group in self.state.groups:
            copy = group.copy_on(host)
            if copy is None or group.is_lost:
                continue
            chosen = [one.host for one in group.copies if one is not copy]
            try:
                target = next_host(hosts, chosen, used, group.name, shared=shared, away=away)
            except PlacementError:
                is_whole = False
                continue
            used[host] -= 1
            used[target] += 1
            shared.update(shared_groups([target, other] for other in chosen))
            group.copies[group.copies.index(copy)] = Copy(
                target, self.scenario.retained_size_bytes, is_voter=False
            )
            self.report.replaced_count += 1
            self.report.missed_size_bytes += self.scenario.retained_size_bytes
        if is_whole:
            self._note(f"copies of {host} are placed on other hosts")
        else:  # Hosts that are away may be back then.
            pause_s = max(self.scenario.replace_after_s, _RETRY_S_MIN)
            self._at(self.now_s + pause_s, partial(self._replace, host))

    # --- Leaders ---

    def _lose_leader(self, group: FleetGroup) -> None:
        group.leader, group.awaited = None, 0
        group.leaderless_since_s = self.now_s
        self._elect(group)

    def _elect_where_possible(self) -> None:
        for group in self.state.groups:
            if group.leader is None and not group.awaited:
                self._elect(group)

    def _elect(self, group: FleetGroup) -> None:
        """Begin an election if it can succeed; else one begins when hosts or copies are back."""
        if group.is_lost or not self.state.can_elect(group):
            return
        after_s = self._rng.uniform(*self.scenario.failover_s)
        self._at(self.now_s + after_s, partial(self._elected, group, self._await(group)))

    def _await(self, group: FleetGroup) -> int:
        self._awaited_count += 1
        group.awaited = self._awaited_count
        return group.awaited

    def _elected(self, group: FleetGroup, number: int) -> None:
        if number != group.awaited:
            return
        group.awaited = 0
        if not self.state.can_elect(group):
            return
        copies = self.state.level_copies(group)
        self._lead(group, self._rng.choice(sorted(copy.host for copy in copies)))

    def _lead(self, group: FleetGroup, host: str) -> None:
        assert group.leaderless_since_s is not None, f"{group.name} had a leader"
        self.report.failovers_s.append(self.now_s - group.leaderless_since_s)
        group.leader, group.leaderless_since_s = host, None

    def _rebalance(self) -> None:
        groups, hosts = self.state.led_groups(), self.state.able_hosts()
        for move in balance(groups, hosts, ratio=attainable_ratio(groups, hosts)):
            group = self._by_name[move.group]
            group.leader, group.leaderless_since_s = None, self.now_s
            at_s = self.now_s + self.scenario.hand_over_s
            self._at(at_s, partial(self._take_over, group, move.target, self._await(group)))
        self._at(self.now_s + self.scenario.rebalance_s, self._rebalance)

    def _take_over(self, group: FleetGroup, target: str, number: int) -> None:
        if number != group.awaited:
            return
        group.awaited = 0
        copy = group.copy_on(target)
        if copy is None or not copy.is_level or not self.state.is_up(target):
            self._elect(group)
            return
        group.leader, group.leaderless_since_s = target, None
        self.report.hand_over_count += 1

    # --- What is seen ---

    def _note(self, event: str) -> None:
        """Take a sample after a change, which this event has just made."""
        self._known_rates = None
        self.report.samples.append(self._seen(event))

    def _sample(self) -> None:
        self.report.samples.append(self._seen(""))

    def _seen(self, event: str) -> FleetSample:
        state, scenario = self.state, self.scenario
        rates = self._rates()
        loads = loads_of(state.led_groups(), state.able_hosts())
        offered = scenario.msgs_per_s * len(state.groups)
        return FleetSample(
            at_s=self.now_s,
            event=event,
            acked_share=sum(rates.served.values()) / offered,
            leaderless_count=sum(1 for group in state.groups if group.leader is None),
            no_quorum_count=sum(1 for group in state.groups if not state.has_quorum(group)),
            behind_count=sum(1 for _ in state.behind_copies()),
            down_count=len(state.hosts) - len(state.up_hosts()),
            hot_ratio=hot_ratio(loads) if loads else 1.0,
            repair_bytes_per_s=sum(flow.bytes_per_s for flow in rates.flows),
        )
