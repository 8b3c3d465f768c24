"""A simulated fleet keeps its quorums when one zone of three fails, and no byte goes astray."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.capacity.demand import HostSize
from planning.capacity.fleet.report import FleetReport
from planning.capacity.fleet.scenario import (
    FaultKind,
    FleetFault,
    FleetScenario,
    fleet_hosts,
    parse_fault,
    random_faults,
    scenario_of,
    usual_faults,
)
from planning.capacity.fleet.simulation import FleetSimulation
from planning.capacity.leaders import HOT_RATIO, attainable_ratio
from planning.capacity.plan import plan
from planning.commands.formats import format_sizes
from tests.planning.capacity.sizes import calibration, demand
from tests.seeds import examples


def scenario(**changes: Any) -> FleetScenario:
    """Nine hosts in three zones with 30 groups, 1 MB/s each, and disks of 60 MB a copy."""
    values: dict[str, Any] = {
        "hosts": fleet_hosts(9, 3, 20),
        "group_count": 30,
        "copies": 3,
        "msgs_per_s": 1_000.0,
        "group_msgs_per_s_max": 5_000.0,
        "log_size_bytes": 1_000.0,
        "derived_size_bytes": 30.0,
        "record_size_bytes": 1_000.0,
        "consumer_count": 1,
        "retained_size_bytes": 60e6,
        "leader_cpu_s": 50e-6,
        "follower_cpu_s": 20e-6,
        "cores": 4.0,
        "network_bytes_per_s": 125e6,
        "disk_write_bytes_per_s": 300e6,
        "catch_up_bytes_per_s": 50e6,
        "failover_s": (0.5, 1.5),
        "hand_over_s": 0.01,
        "replace_after_s": 30.0,
        "rebalance_s": 20.0,
        "duration_s": 600.0,
    }
    return FleetScenario(**{**values, **changes})


def ran(**changes: Any) -> tuple[FleetSimulation, FleetReport]:
    simulation = FleetSimulation(scenario(**changes))
    report = simulation.run()
    check_conservation(simulation, report)
    return simulation, report


def check_conservation(simulation: FleetSimulation, report: FleetReport) -> None:
    """What was sent arrived; what copies lacked arrived, is lacking, or is gone with its disk."""
    sent, received = sum(report.repair_sent.values()), sum(report.repair_received.values())
    assert sent == pytest.approx(received)
    behind = sum(
        copy.behind_size_bytes for group in simulation.state.groups for copy in group.copies
    )
    missed = report.missed_size_bytes
    # A copy ends its repair with an error of rounding, which is set to nothing.
    assert missed == pytest.approx(
        received + behind + report.forgotten_size_bytes, rel=1e-6, abs=1e3
    )
    assert 0 <= report.acked_count <= report.offered_count * (1 + 1e-9)
    s = simulation.scenario
    assert report.offered_count == pytest.approx(s.msgs_per_s * s.group_count * s.duration_s)


def test_a_fleet_without_faults_serves_everything() -> None:
    _, report = ran()
    assert report.acked_count == pytest.approx(report.offered_count)
    assert (report.failovers_s, report.missed_size_bytes) == ([], 0.0)
    assert all(
        sample.acked_share == 1 and sample.hot_ratio <= HOT_RATIO for sample in report.samples
    )


@pytest.mark.parametrize("zone", ["z0", "z1", "z2"])
@pytest.mark.parametrize("copies", [3, 5])
def test_no_group_loses_its_majority_with_one_zone_of_three(zone: str, copies: int) -> None:
    simulation, report = ran(
        copies=copies,
        hosts=fleet_hosts(9, 3, 30),
        faults=(FleetFault(FaultKind.ZONE, zone, 100.0, 200.0),),
    )
    assert max(sample.no_quorum_count for sample in report.samples) == 0
    assert report.failovers_s, "no leader was in the zone"
    assert all(0.5 <= seconds <= 1.5 for seconds in report.failovers_s)
    during = [s for s in report.samples if 110 < s.at_s < 299]
    assert all(sample.acked_share == 1 and sample.leaderless_count == 0 for sample in during)
    assert report.samples[-1].behind_count == 0
    assert all(group.leader is not None for group in simulation.state.groups)


def test_two_zones_of_three_stop_every_group_and_nothing_is_lost() -> None:
    faults = (
        FleetFault(FaultKind.ZONE, "z0", 100.0, 100.0),
        FleetFault(FaultKind.ZONE, "z1", 110.0, 100.0),
    )
    simulation, report = ran(faults=faults)
    [during] = [s for s in report.samples if s.at_s == 150]
    assert (during.acked_share, during.no_quorum_count) == (0, 30)
    assert report.samples[-1].acked_share == 1
    assert not any(group.is_lost for group in simulation.state.groups)


def test_a_lost_host_is_replaced_and_its_whole_log_is_copied() -> None:
    simulation, report = ran(faults=(FleetFault(FaultKind.LOST, "z1-h0", 50.0),))
    assert report.replaced_count == 10
    assert report.unplaced_count == 0
    assert report.missed_size_bytes >= 10 * 60e6
    assert report.samples[-1].behind_count == 0
    zones = {host.name: host.zone for host in simulation.scenario.hosts}
    for group in simulation.state.groups:
        assert "z1-h0" not in [copy.host for copy in group.copies]
        assert Counter(zones[copy.host] for copy in group.copies) == {"z0": 1, "z1": 1, "z2": 1}


def test_copies_without_another_host_stay_unplaced() -> None:
    _, report = ran(
        hosts=fleet_hosts(3, 3, 20),
        group_count=10,
        faults=(FleetFault(FaultKind.LOST, "z1-h0", 50.0),),
    )
    assert (report.replaced_count, report.unplaced_count) == (0, 10)


def test_copies_are_placed_once_hosts_with_room_are_back() -> None:
    simulation, report = ran(
        hosts=fleet_hosts(4, 1, 20),
        group_count=10,
        faults=(
            FleetFault(FaultKind.LOST, "z0-h0", 50.0),
            FleetFault(FaultKind.HOST, "z0-h1", 60.0, 100.0),
        ),
    )
    assert report.unplaced_count == 0
    assert report.samples[-1].behind_count == 0
    for group in simulation.state.groups:
        assert {copy.host for copy in group.copies} == {"z0-h1", "z0-h2", "z0-h3"}


def test_groups_without_a_whole_copy_are_lost() -> None:
    faults = tuple(FleetFault(FaultKind.LOST, f"z{n}-h0", 50.0) for n in range(3))
    simulation, _ = ran(hosts=fleet_hosts(3, 3, 20), group_count=10, faults=faults)
    assert all(group.is_lost for group in simulation.state.groups)


def test_leaders_are_spread_again_after_a_host_is_back() -> None:
    simulation, report = ran(faults=(FleetFault(FaultKind.ZONE, "z0", 100.0, 60.0),))
    assert any(sample.hot_ratio > HOT_RATIO for sample in report.samples), "nothing to rebalance"
    assert report.hand_over_count > 0
    limit = attainable_ratio(simulation.state.led_groups(), simulation.state.able_hosts())
    assert report.samples[-1].hot_ratio <= limit
    _, lazy = ran(faults=(FleetFault(FaultKind.ZONE, "z0", 100.0, 60.0),), rebalance_s=0.0)
    assert lazy.samples[-1].hot_ratio > HOT_RATIO


def test_short_resources_cut_what_is_served() -> None:
    for changes in (
        {"cores": 0.25},
        {"network_bytes_per_s": 11e6},
        {"disk_write_bytes_per_s": 15e6},
    ):
        _, report = ran(**changes)
        assert 0.3 < report.acked_count / report.offered_count < 0.95, changes


def test_clients_come_before_repair() -> None:
    faults = (FleetFault(FaultKind.HOST, "z0-h0", 50.0, 100.0),)
    _, report = ran(faults=faults, network_bytes_per_s=25e6)
    back = [sample for sample in report.samples if sample.behind_count]
    assert back, "no copy was behind"
    assert all(sample.acked_share == 1 for sample in back if not sample.leaderless_count)


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 12), zones=st.integers(1, 4))
def test_random_faults_keep_the_sums(seed: int, count: int, zones: int) -> None:
    hosts = fleet_hosts(8, zones, 30)
    faults = random_faults(hosts, count, 600.0, seed)
    simulation, report = ran(hosts=hosts, group_count=12, faults=faults, seed=seed)
    for group in simulation.state.groups:
        assert len({copy.host for copy in group.copies}) == 3
        assert group.leader is None or simulation.state.is_up(group.leader)
    assert all(0 <= sample.acked_share <= 1 + 1e-9 for sample in report.samples)
    again = FleetSimulation(simulation.scenario).run()
    assert [sample.row() for sample in again.samples] == [s.row() for s in report.samples]


def test_another_seed_has_other_elections() -> None:
    faults = (FleetFault(FaultKind.ZONE, "z0", 100.0, 60.0),)
    assert ran(faults=faults)[1].failovers_s != ran(faults=faults, seed=2)[1].failovers_s


def test_a_plan_becomes_a_fleet() -> None:
    host = HostSize(cores=32, memory_size_bytes=1 << 40, disk_size_bytes=1 << 50)
    made = plan(demand(zones=3, host=host, retention_s=60.0), calibration(), format_sizes())
    fleet = scenario_of(made, calibration(), group_count=60, host_count=12)
    fleet = replace(fleet, faults=usual_faults(fleet.hosts, fleet.duration_s))
    assert fleet.msgs_per_s * 60 == 10_000
    assert fleet.group_msgs_per_s_max == made.limits.msgs_per_s
    retained = made.value("broker_group_count") * made.value("node_retained_size_bytes")
    assert fleet.retained_size_bytes * 60 == pytest.approx(retained)
    assert fleet.log_size_bytes == made.value("log_bytes_per_msg")
    assert fleet.derived_size_bytes == made.value("derived_bytes_per_msg") > 0
    assert [fault.kind for fault in fleet.faults] == list(FaultKind)
    simulation = FleetSimulation(fleet)
    report = simulation.run()
    check_conservation(simulation, report)
    assert report.row()["no_quorum_count_max"] == 0
    assert report.samples[-1].acked_share == 1


@pytest.mark.parametrize("text", ["host:z0-h0@60+300", "lost:z2-h1@5", "zone:z1@0+10"])
def test_faults_have_a_text(text: str) -> None:
    assert str(parse_fault(text)) == text


def test_a_group_takes_no_more_than_its_limit_however_idle_its_hosts_are() -> None:
    _, report = ran(group_msgs_per_s_max=250.0)
    assert report.acked_count == pytest.approx(report.offered_count / 4)


def test_disks_are_written_log_twice_and_derived_files_and_no_frames() -> None:
    """Ten of 30 groups have a copy on each of nine hosts, so a host writes 10 x 1,000 messages."""
    enough = 10 * 1_000 * (2 * 1_000 + 30)
    assert ran(disk_write_bytes_per_s=enough)[1].row()["acked_share"] == 1
    _, report = ran(disk_write_bytes_per_s=enough / 2)
    assert report.acked_count == pytest.approx(report.offered_count / 2, rel=1e-6)
