"""`qlog produce --delay` and `qlog delay` against a cluster of real processes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qlog import main
from quorumlog.command_errors import ExitCode
from tests.patience import wait_for
from tests.qlog.running import Qlog


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--delay", "soon"], "no duration"),
        (["--deliver-at", "tomorrow"], "no time"),
        (["--level", "19"], "19"),
        (["--delay", "1s", "--level", "1"], "give one of"),
    ],
)
def test_a_time_that_means_nothing_is_a_usage_error(options: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, ["produce", "orders", *options])
    assert result.exit_code == ExitCode.USAGE
    assert problem in result.output


def held_ids(qlog: Qlog) -> list[str]:
    lines = qlog("consume", "rmq_sys_wheel_timer", "--until", "end", "-o", "jsonl").stdout
    return [json.loads(line)["message_id"] for line in lines.splitlines()]


def test_messages_wait_are_counted_cancelled_and_delivered(
    qlog: Qlog, tmp_path: Path, topic: str
) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"late\n")
    written_ms = source.stat().st_mtime_ns // 1_000_000
    assert qlog.json("produce", topic, "-f", source, "--level", 18)["acked_count"] == 1
    assert qlog.json("produce", topic, "-f", source, "--delay", "2h")["acked_count"] == 1
    status = qlog.json("delay", "status")
    assert status["held_count"] == 2
    rows = {row["level"]: (row["delay_ms"], row["held_count"]) for row in status["queues"]}
    assert rows == {0: (0, 1), 18: (7_200_000, 1)}
    cancelled = qlog.json("delay", "cancel", held_ids(qlog)[-1])
    assert (cancelled["topic"], cancelled["queue_id"]) == (topic, 0)
    assert cancelled["due_unix_ms"] >= written_ms + 7_200_000
    assert qlog.json("delay", "status")["held_count"] == 1
    source.write_bytes(b"soon\n")
    qlog("produce", topic, "-f", source, "--delay", "50ms")
    bodies = wait_for("it", lambda: qlog("consume", topic, "--until", "end").stdout_bytes)
    assert bodies == b"soon\n"
    refused = qlog("delay", "cancel", held_ids(qlog)[-1], code=ExitCode.REFUSED)
    assert "delivered" in refused.stderr
