"""Ratios are of one round, reasons are told, and the page has both."""

from pathlib import Path
from typing import Any

import pytest

from bench import comparison_plot
from bench.comparison import compare
from bench.comparison_table import markdown

PEERS = ["quorumlog", "etcd", "nats", "pysyncobj"]
RATE, LATENCY = "1 KiB, batches", "1 KiB, one in flight, p50"


def session(
    peer: str, number: int, values: dict[str, float | str], failure: str | None = None
) -> dict[str, Any]:
    units = {RATE: "msg/s", LATENCY: "ms"}
    cells = [
        {"row": row, "unit": units[row], "value": value}
        if isinstance(value, float)
        else {"row": row, "unit": units[row], "value": None, "reason": value}
        for row, value in values.items()
    ]
    return {
        "peer": peer, "place": "tmpfs", "scenario": "rates", "round": number, "cells": cells,
        "failure": failure,
    }  # fmt: skip


def sessions() -> list[dict[str, Any]]:
    limits = session("", 0, {})
    limits |= {
        "scenario": "limits",
        "cells": [{"row": "the machine alone: syncs", "unit": "1/s", "value": 9e3}],
    }
    return [
        session("quorumlog", 0, {RATE: 100.0, LATENCY: 2.0}),
        session("etcd", 0, {RATE: 50.0, LATENCY: 1.0}),
        session("nats", 0, {RATE: "it has | none", LATENCY: 4.0}),
        session("pysyncobj", 0, {}, failure="not over after 60 s"),
        session("quorumlog", 1, {RATE: 80.0, LATENCY: 2.0}),
        session("etcd", 1, {RATE: 10.0, LATENCY: 3.0}),
        session("quorumlog", 2, {RATE: 60.0, LATENCY: 3.0}),
        limits,
    ]


def record() -> dict[str, Any]:
    facts = {"version": "1", "durability": "synced", "client": "c", "settings": "s"}
    return {
        "command": "bench/run", "begun": "today", "commit": "abc", "places": {"tmpfs": "tmpfs"},
        "machine": {"cpu_count": 2, "cpu": "x", "memory_mib": 1, "kernel": "6", "python": "3"},
        "peers": [{"name": name, **facts} for name in PEERS],
        "rows": compare(sessions(), PEERS),
    }  # fmt: skip


def test_a_ratio_is_of_values_of_one_round() -> None:
    limits, rate, latency = compare(sessions(), PEERS)
    assert limits["machine"]["median"] == 9e3
    assert rate["peers"]["etcd"]["ratio"] == {"median": 5.0, "lo": 2.0, "hi": 8.0, "count": 2}
    assert rate["peers"]["etcd"]["value"]["median"] == 30.0
    # Less is better: above 1 we are ahead here too.
    assert latency["peers"]["etcd"]["ratio"] == {"median": 1.0, "lo": 0.5, "hi": 1.5, "count": 2}
    assert latency["peers"]["nats"]["ratio"]["median"] == 2.0


def test_a_missing_value_has_its_reason() -> None:
    _, rate, latency = compare(sessions(), PEERS)
    assert rate["peers"]["nats"]["reason"] == "it has | none"
    assert latency["peers"]["nats"]["reason"] is None
    assert rate["peers"]["pysyncobj"]["reason"] == "not over after 60 s"
    assert rate["peers"]["quorumlog"]["ratio"] is None


def test_the_page_has_ratios_values_and_numbered_reasons() -> None:
    page = markdown(record())
    assert f"| {RATE} | 5.00 (2.00 to 8.00) | [1] | [2] |" in page
    assert f"| {LATENCY} | 1.00 (0.50 to 1.50) | 2.00 | [2] |" in page
    assert f"| {RATE} | msg/s | 80.0 | 30.0 |  |  |" in page
    assert "1. it has \\| none\n2. not over after 60 s" in page
    assert "the machine alone: syncs 9,000 1/s" in page


def test_a_place_without_rows_is_left_out() -> None:
    found = record()
    found["places"] = {**found["places"], "elsewhere": "disk"}
    assert "## elsewhere" not in markdown(found)


def test_a_slower_result_stands_out() -> None:
    found = record()
    found["rows"] = compare(
        [session("quorumlog", 0, {RATE: 1.0}), session("etcd", 0, {RATE: 4.0})], PEERS
    )
    assert "| **0.25** |" in markdown(found)


@pytest.mark.long  # matplotlib is imported.
def test_the_plot_is_drawn_where_there_are_ratios(tmp_path: Path) -> None:
    path = tmp_path / "tmpfs.svg"
    assert comparison_plot.draw(record(), "tmpfs", path)
    drawn = path.read_text("utf-8")
    assert "<svg" in drawn
    assert all(text in drawn for text in ("etcd", "times better than the peer"))
    assert comparison_plot.draw(record(), "tmpfs", path)
    assert path.read_text("utf-8") == drawn, "equal figures, equal files"
    assert not comparison_plot.draw({**record(), "rows": []}, "tmpfs", tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
