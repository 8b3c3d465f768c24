"""The verdict of a comparison of modes: which losses are wrong."""

from typing import Any

import pytest

from bench.compare import MODES, is_wrong


def row(mode: str, **counts: int) -> dict[str, Any]:
    latency = {"p50_ms": 1.0, "p99_ms": 3.0, "max_ms": 4.0}
    return {
        "mode": mode,
        "acked_msgs_per_s": 50_000.0,
        "serial_latency": latency,
        "rto": latency,
        "lost_count": 0,
        "reported_lost_count": 0,
        "duplicate_count": 0,
        "out_of_order_count": 0,
        **counts,
    }


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_a_run_without_trouble_is_right_in_every_mode(mode: str) -> None:
    assert not is_wrong(row(mode))


@pytest.mark.parametrize("mode", [mode.name for mode in MODES if mode.promises_no_loss])
def test_a_promise_is_broken_by_one_message_reported_or_not(mode: str) -> None:
    assert is_wrong(row(mode, lost_count=1, reported_lost_count=1))


def test_an_async_master_may_lose_what_it_reports_and_no_more() -> None:
    assert not is_wrong(row("async_master", lost_count=60, reported_lost_count=62))
    assert is_wrong(row("async_master", lost_count=60, reported_lost_count=59))


@pytest.mark.parametrize("what", ["duplicate_count", "out_of_order_count"])
def test_no_mode_may_double_or_reorder(what: str) -> None:
    for mode in MODES:
        assert is_wrong(row(mode.name, **{what: 1}))
