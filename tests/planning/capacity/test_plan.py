"""Figures of a plan follow from their formulas, and what cannot be is a warning."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.capacity.demand import DemandError, HostSize
from planning.capacity.figure import amount
from planning.capacity.plan import CapacityPlan, plan
from planning.capacity.traffic import FRAME_RATIO
from planning.commands.formats import format_sizes
from tests.planning.capacity.sizes import calibration, demand

FORMATS = format_sizes()
LARGE = HostSize(
    cores=64, memory_size_bytes=1 << 40, disk_size_bytes=1 << 50, network_bytes_per_s=1e10
)


def planned(**changes: Any) -> CapacityPlan:
    return plan(demand(**{"host": LARGE, **changes}), calibration(), FORMATS)


def test_sizes_are_sums() -> None:
    sizing = planned(topic_size_bytes=6, properties_size_bytes=10)
    record = 91 + 6 + 10 + 1024
    assert sizing.value("record_size_bytes") == record
    entry = 48 + FORMATS.command_record_size_bytes + 50 * record
    assert sizing.value("entry_size_bytes") == entry
    assert sizing.value("log_bytes_per_msg") == entry / 50
    assert sizing.value("node_retained_size_bytes") == pytest.approx(
        5_000 * 3_600 * entry / 50 / sizing.value("broker_group_count")
    )


def test_the_smallest_limit_is_the_rate_of_a_group() -> None:
    slow_disk = calibration(disk_write_bytes_per_s=1e6)
    for host, costs, name in (
        (replace(LARGE, network_bytes_per_s=2e7), calibration(), "limit_network_msgs_per_s"),
        (LARGE, calibration(), "limit_appends_msgs_per_s"),
        (LARGE, slow_disk, "limit_disk_msgs_per_s"),
    ):
        sizing = plan(demand(host=host), costs, FORMATS)
        limits = {f.name: f.value for f in sizing.figures if f.name.startswith("limit_")}
        assert sizing.limits.bottleneck.name == name == min(limits, key=lambda n: limits[n] or 0)
        assert sizing.value("broker_group_msgs_per_s") == limits[name]


def test_a_long_way_limits() -> None:
    sizing = planned(round_trip_ms=10_000.0, host=replace(LARGE, network_bytes_per_s=1e12))
    assert sizing.limits.bottleneck.name == "limit_window_msgs_per_s"
    log = sizing.value("log_bytes_per_msg")
    assert sizing.value("broker_group_msgs_per_s") == pytest.approx((8 << 20) / 10.001 / log)


def test_traffic_counts_followers_consumers_and_frames() -> None:
    sizing = planned(consumer_count=3, copies=5)
    log, record = sizing.value("log_bytes_per_msg"), sizing.value("record_size_bytes")
    sent = 10_000 * FRAME_RATIO * (4 * log + 3 * record)
    assert sizing.value("network_sent_bytes_per_s") == pytest.approx(sent)
    received = 10_000 * FRAME_RATIO * (4 * log + record)
    assert sizing.value("network_received_bytes_per_s") == pytest.approx(received)


def test_followers_in_other_zones_cost_traffic_between_them() -> None:
    assert planned(zones=1).value("zone_traffic_bytes_per_s") == 0
    sizing = planned(zones=3)
    log = sizing.value("log_bytes_per_msg")
    expected = 10_000 * 2 * log * FRAME_RATIO
    assert sizing.value("zone_traffic_bytes_per_s") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host_failures": 2}, "2 failures cannot be tolerated with 3 copies"),
        ({"copies": 1}, "1 failures cannot be tolerated with 1 copies"),
        ({"copies": 4, "zones": 4}, "4 copies tolerate no more than 3 do"),
        ({"zones": 2, "zone_failures": 1}, "1 of 2 zones cannot fail with 3 copies"),
        ({"zones": 3, "zone_failures": 2}, "2 of 3 zones cannot fail with 3 copies"),
        ({"zones": 1}, "all hosts are in one zone"),
        ({"zones": 2}, "the loss of one zone can stop a group"),
        ({"zones": 3, "outage_s": 9e6}, "nothing of what a node has is retained"),
        ({"zones": 3, "peak_msgs_per_s": 5e7, "batch_count": 1}, "a client follows 33 groups"),
    ],
)
def test_a_plan_warns_of_what_cannot_be(changes: dict[str, Any], text: str) -> None:
    assert text in "; ".join(planned(**changes).warnings)


def test_a_plan_that_can_be_has_no_warning() -> None:
    sizing = planned(zones=3, zone_failures=1)
    assert sizing.warnings == ()
    assert (sizing.value("tolerated_copies"), sizing.value("tolerated_zones")) == (1, 1)


def test_a_node_that_never_catches_up_is_told() -> None:
    slow = calibration(catch_up_bytes_per_s=1e5)
    sizing = plan(demand(host=LARGE, zones=3), slow, FORMATS)
    assert sizing.figure("catch_up_s").value is None
    assert sizing.figure("catch_up_s").text == "never"
    assert any("never catches up" in warning for warning in sizing.warnings)
    with pytest.raises(KeyError):
        sizing.value("catch_up_s")


def test_times_follow_from_backlog_and_spare_rate() -> None:
    sizing = planned(zones=3, outage_s=600.0)
    incoming = 10_000 / sizing.value("broker_group_count") * sizing.value("log_bytes_per_msg")
    rate = sizing.value("catch_up_bytes_per_s")
    assert sizing.value("catch_up_s") == pytest.approx(incoming * 600 / (rate - incoming))
    retained = sizing.value("node_retained_size_bytes")
    assert sizing.value("restore_s") == pytest.approx(retained / (rate - incoming))
    assert sizing.value("restore_backup_s") == pytest.approx(retained / 500e6 + retained / 200e6)
    assert sizing.value("failover_s") == pytest.approx(1.003)


def test_a_node_alone_has_no_failover_and_the_same_figures() -> None:
    alone, three = planned(copies=1, zones=3), planned(zones=3)
    assert alone.figure("failover_s").value is None
    assert alone.value("catch_up_s") > 0
    assert [one.name for one in alone.figures] == [one.name for one in three.figures]
    assert not any("catches up" in warning for warning in alone.warnings)


def test_more_groups_fill_hosts_better() -> None:
    host = replace(LARGE, disk_size_bytes=160 << 30)
    sizing = planned(zones=3, host=host, retention_s=86_400.0)
    nodes, fitting = (
        sizing.value("node_count"),
        160 * (1 << 30) // sizing.value("node_disk_size_bytes"),
    )
    assert sizing.value("broker_group_count") > 1
    assert fitting > 1
    assert sizing.value("hosts_for_disk") == -(-nodes // fitting)
    assert "fit onto hosts" in sizing.figure("broker_group_count").formula
    # One group of three nodes would leave much of its hosts empty.
    alone = 3 * sizing.value("node_disk_size_bytes") * sizing.value("broker_group_count")
    assert sizing.value("hosts_for_disk") * (160 << 30) < 1.5 * alone


def test_copies_stay_when_a_zone_fails_and_clients_move() -> None:
    safe = {"zones": 3, "host": replace(LARGE, disk_size_bytes=160 << 30), "retention_s": 86_400.0}
    kept, moved = planned(**safe), planned(**safe, zone_failures=1)
    assert kept.value("hosts_for_disk") == moved.value("hosts_for_disk") > 3
    assert kept.value("host_count") == moved.value("host_count")
    small = {"zones": 3, "host": replace(LARGE, cores=1), "peak_msgs_per_s": 1e6}
    few, many = planned(**small), planned(**small, zone_failures=1)
    assert many.value("host_count") >= 1.5 * many.value("hosts_for_cores")
    assert many.value("host_count") > few.value("host_count")


@pytest.mark.long
@given(
    st.fixed_dictionaries(
        {
            "peak_msgs_per_s": st.floats(5_000, 1e7),
            "body_size_bytes": st.integers(1, 30_000),
            "batch_count": st.integers(1, 100),
            "copies": st.integers(1, 9),
            "consumer_count": st.integers(0, 20),
            "zones": st.integers(1, 9),
            "host_failures": st.integers(0, 4),
            "retention_s": st.floats(1, 1e6),
        }
    )
)
def test_hosts_carry_the_load_without_those_that_fail(changes: dict[str, Any]) -> None:
    sizing = planned(**changes)
    d = sizing.demand
    left = sizing.value("host_count") - d.host_failures
    assert left >= d.copies
    assert sizing.value("host_count") % d.zones == 0
    assert left * LARGE.network_bytes_per_s * d.utilisation >= 0.999 * max(
        sizing.value("network_sent_bytes_per_s"), sizing.value("network_received_bytes_per_s")
    )
    assert left * LARGE.cores * d.utilisation >= 0.999 * sizing.value("cores")
    assert left * LARGE.disk_size_bytes >= sizing.value("total_disk_size_bytes")
    capacity = (
        sizing.value("broker_group_count") * sizing.value("broker_group_msgs_per_s") * d.utilisation
    )
    assert capacity >= 0.999 * d.peak_msgs_per_s
    assert all(figure.formula for figure in sizing.figures)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1211, "B", "1,211 B"),
        (1 << 20, "B", "1 MiB"),
        (5 * 1024, "B", "5 KiB"),
        (125e6, "B/s", "125 MB/s"),
        (0.5, "B/s", "0.5 B/s"),
        (90, "s", "1.5 min"),
        (0.25, "s", "0.25 s"),
        (12345.678, "msg/s", "12,346 msg/s"),
        (0.0, "B", "0 B"),
    ],
)
def test_amounts_are_readable(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(("body", "count"), [(1 << 20, 10), (1 << 10, 100_000), (4 << 20, 1)])
def test_what_a_refusal_proposes_is_not_refused(body: int, count: int) -> None:
    with pytest.raises(DemandError) as refused:
        planned(body_size_bytes=body, batch_count=count)
    proposed = re.search(r"--batch (\d+)", str(refused.value))
    if proposed is not None:
        planned(body_size_bytes=body, batch_count=int(proposed[1]))
        with pytest.raises(DemandError):
            planned(body_size_bytes=body, batch_count=int(proposed[1]) + 1)
    else:
        with pytest.raises(DemandError):
            planned(body_size_bytes=body, batch_count=1)


@pytest.mark.parametrize("failures", [{"host_failures": n, "copies": 1} for n in (1, 4, 5, 100)])
def test_the_copies_that_a_warning_proposes_can_be_planned(failures: dict[str, int]) -> None:
    (warning,) = [one for one in planned(**failures).warnings if "cannot be tolerated" in one]
    copies = int(re.findall(r"(\d+) copies", warning)[-1])
    assert not any(
        "cannot be" in one
        for one in planned(
            copies=copies, host_failures=min(failures["host_failures"], copies // 2)
        ).warnings
    )
