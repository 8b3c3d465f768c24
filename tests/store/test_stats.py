"""Counters and the snapshot of them."""

import pytest

from store.maintenance.retention import DiskState
from store.stats import LATENCY_BUCKET_COUNT, Latencies, StoreCounters, StoreGauges, snapshot


@pytest.mark.parametrize(
    ("duration_us", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (1 << 25, 26), (1 << 50, 26)],
)
def test_buckets_are_powers_of_two(duration_us: int, bucket: int) -> None:
    latencies = Latencies()
    latencies.note(duration_us)
    stats = latencies.snapshot()
    assert stats.counts[bucket] == 1
    assert (stats.count, stats.max_us, stats.total_us) == (1, duration_us, duration_us)
    assert len(stats.counts) == LATENCY_BUCKET_COUNT


def test_many_durations_at_once_are_counted_as_one_by_one() -> None:
    durations_us = [5, 1 << 50, 0, 1023, 1024, 4, 1 << 25, 1, 4, 7]
    one_by_one, at_once = Latencies(), Latencies()
    for duration_us in durations_us:
        one_by_one.note(duration_us)
    for part in [], durations_us[:6], durations_us[6:]:
        at_once.note_all(part)
    assert at_once.snapshot() == one_by_one.snapshot()


def test_a_snapshot_stays_as_it_is_and_derives_what_people_ask_for() -> None:
    counters = StoreCounters()
    for _ in range(6):
        counters.on_put(record_count=2, size_bytes=100, duration_us=5)
    counters.sync_bytes += 500
    counters.sync_latencies.note(90)
    counters.sync_latencies.note(110)
    gauges = StoreGauges(
        max_position=600, wrote_position=650, flushed_position=500, dispatched_position=550
    )
    stats = snapshot(counters, gauges)
    counters.on_put(record_count=1, size_bytes=1, duration_us=1)
    assert (stats.counters["put_count"], stats.counters["record_count"]) == (6, 12)
    assert (stats.counters["put_bytes"], stats.counters["sync_bytes"]) == (600, 500)
    assert stats.bytes_to_flush == 150
    assert (stats.sync_count, stats.sync_latency.total_us) == (2, 200)


def test_warnings_name_each_degraded_part() -> None:
    counters = StoreCounters()
    assert snapshot(counters, StoreGauges()).warnings() == ()
    counters.memory_lock_failed_count = 1
    counters.prepare_failed_count = 2
    counters.pool_empty_count = 3
    gauges = StoreGauges(disk_state="full", disk_refusal="the disk is small; lower the reserve")
    texts = snapshot(counters, gauges).warnings()
    assert [text.split(";")[0] for text in texts] == [
        "1 times memory could not be locked",
        "2 times a file could not be made ahead",
        "3 files got no write buffer",
        "appends are refused: the disk is small",
    ]


@pytest.mark.parametrize(
    ("state", "consequence"),
    [
        (DiskState.WARN, "free space"),
        (DiskState.FORCE, "the oldest files go"),
    ],
)
def test_a_warning_says_what_follows_from_how_full_the_disk_is(
    state: DiskState, consequence: str
) -> None:
    gauges = StoreGauges(disk_state=state.value, disk_used_ratio=0.93)
    (text,) = snapshot(StoreCounters(), gauges).warnings()
    assert text.split("; ")[1].startswith(consequence)
