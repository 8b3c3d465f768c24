"""How samples become numbers, and how a place is named."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.report import directory_kind, histogram, latency, machine, percentile


def test_a_percentile_is_a_value_of_the_sample() -> None:
    sample = [float(n) for n in range(1, 101)]
    assert [percentile(sample, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(AssertionError):
        percentile(sample, 50)


def test_latency_sorts_and_names_what_is_missing() -> None:
    assert latency([3.0, 1.0, 2.0]) == {
        "count": 3,
        "p50_ms": 2.0,
        "p90_ms": 3.0,
        "p99_ms": 3.0,
        "max_ms": 3.0,
    }
    assert latency([])["p50_ms"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_histogram_counts_each_value_once_in_a_dozen_steps(values: list[float]) -> None:
    bars = histogram(values)
    assert sum(bar["count"] for bar in bars) == len(values)
    assert 1 <= len(bars) <= 12
    assert all(a["hi_ms"] == b["lo_ms"] for a, b in itertools.pairwise(bars))
    assert bars[0]["lo_ms"] <= min(values)
    assert bars[-1]["hi_ms"] > max(values)
    assert bars[0]["count"]
    assert bars[-1]["count"]


def test_an_empty_histogram_has_no_bars() -> None:
    assert histogram([]) == []


def test_places_and_machines_are_named(tmp_path: Path) -> None:
    assert directory_kind("/dev/shm") == "tmpfs"
    assert directory_kind(str(tmp_path)) in ("disk", "tmpfs")
    assert directory_kind("/proc/..") == directory_kind("/")
    found = machine()
    assert found["cpu_count"] >= 1
    assert found["memory_mib"] > 0
