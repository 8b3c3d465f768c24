"""Rates, percentiles and lag are those that can be counted by hand."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
from pipeline.jobs.latency import COMMAND_TOPIC, from_segments, lags, rates, rows_of
from pipeline.plot import draw
from quorumlog.pb.state_pb2 import Command
from store.record.message import encode_message
from tests.store.fsck_stores import Clock, fsck_config, open_store

BORN_MS = 1_700_000_040_000
"""2023-11-14T22:14:00Z."""


def commit(group: str, offsets: dict[int, int]) -> bytes:
    command = Command()
    command.commit_offsets.group = group
    for queue_id, offset in offsets.items():
        command.commit_offsets.offsets.add(topic="orders", queue_id=queue_id, offset=offset)
    return encode_message(COMMAND_TOPIC, 0, command.SerializeToString())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three minutes: 100 messages that are 1 to 100 ms late; nothing; 4 messages to two queues."""
    directory, clock = tmp_path_factory.mktemp("latency") / "node", Clock()
    with open_store(directory, fsck_config("ledger", file_size_bytes=1 << 16), clock) as store:
        clock.unix_ms = BORN_MS + 1_000
        for late_ms in range(1, 101):
            store.put(
                encode_message(
                    "orders", 0, b"x" * late_ms, {"TAGS": "a"},
                    born_unix_ms=clock.unix_ms - late_ms,
                )
            )  # fmt: skip
        store.put(encode_message("other", 0, b"", born_unix_ms=clock.unix_ms))
        store.put(commit("g", {0: 40}))
        store.put(commit("g", {0: 60}))
        clock.unix_ms = BORN_MS + 61_000
        store.put(commit("g", {0: 100}))
        store.put(commit("late", {0: 10, 1: 0}))
        clock.unix_ms = BORN_MS + 121_000
        for queue_id in (0, 1, 1, 1):
            store.put(encode_message("orders", queue_id, b"yy", born_unix_ms=clock.unix_ms - 5))
    return directory


@pytest.mark.long
def test_rates_sizes_percentiles_and_lag(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    pipeline.register(spark)
    rows = from_segments(spark, str(root))

    rate_rows = rows_of(rates(rows))
    assert [(row["minute"], row["topic"], row["tag"]) for row in rate_rows] == [
        ("2023-11-14T22:14:00Z", "orders", "a"),
        ("2023-11-14T22:14:00Z", "other", None),
        ("2023-11-14T22:16:00Z", "orders", None),
    ]
    first, _, last = rate_rows
    assert (first["message_count"], first["body_bytes"]) == (100, 5050)
    assert (first["body_bytes_mean"], first["body_bytes_max"]) == (50.5, 100)
    assert first["messages_per_s"] == pytest.approx(100 / 60)
    assert [first[name] for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms")] == [50, 90, 99, 100]
    assert (last["message_count"], last["p50_ms"], last["max_ms"]) == (4, 5, 5)

    lag = rows_of(lags(rows, from_segments(spark, str(root), COMMAND_TOPIC)))
    assert [(str(r["minute"])[11:16], r["group"], r["lag"], r["queue_count"]) for r in lag] == [
        ("22:14", "g", 40, 1),
        ("22:15", "g", 0, 1),
        ("22:15", "late", 90, 2),
        ("22:16", "g", 1, 1),
        ("22:16", "late", 94, 2),
    ]
    draw(rate_rows, lag, tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
