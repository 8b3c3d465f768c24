"""`qlog bench produce`, `consume` and `compare`: short runs, and what their results must name.

No test measures time: figures are only compared with what is in the cluster afterwards.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qlog import main
from tests.qlog.running import Qlog, check_keys

pytestmark = pytest.mark.long


def bench(*arguments: object, code: int = 0) -> Any:
    command = ["bench", *map(str, arguments), "-o", "json"]
    result = CliRunner().invoke(main, command, prog_name="qlog")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    if code not in (0, 1):
        return None
    found = json.loads(result.stdout)
    check_keys(found, "bench", *arguments)
    return found


def message_count(qlog: Qlog) -> int:
    return int(qlog.json("topic", "describe", "bench")["message_count"])


def test_produce_counts_what_the_cluster_has(qlog: Qlog) -> None:
    found = bench(
        "produce", "--server", qlog.nodes.bootstrap, "--seconds", 0.3, "--batch-count", 10
    )
    assert (found["directory"], found["limits"], found["peer"]) == (None, None, None)
    assert found["durability"] == {"quorum_disk": found["acked_count"]}
    assert found["acked_count"] == 10 * found["batch_latency"]["count"]
    # The warm-up is in the cluster too, and in no figure.
    assert message_count(qlog) >= found["acked_count"] + found["serial_latency"]["count"]
    assert [row["what"] for row in found["targets"]] == ["acked msg/s", "serial p50, ms"]


def test_consume_reads_what_it_appended(qlog: Qlog) -> None:
    options = ("--seconds", 0.2, "--messages", 500, "--body-size", 64)
    found = bench("consume", "--server", qlog.nodes.bootstrap, *options)
    assert found["round_count"] >= 1
    assert found["consumed_count"] == found["round_count"] * message_count(qlog)
    assert found["load"]["message_count"] == 500


def test_a_run_starts_a_cluster_in_the_directory_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_CACHE", str(tmp_path))  # So that there is no etcd.
    found = bench("produce", "--dir", tmp_path, "--seconds", 0.2, "--peer", "etcd")
    assert found["directory"].startswith(str(tmp_path))
    assert found["directory_kind"] in ("disk", "tmpfs")
    assert (found["node_count"], found["flush"]) == (3, "sync")
    assert found["limits"]["copy_mb_per_s"] > 0
    assert found["limits"]["syncs_per_s"] > 0
    assert found["peer"]["missing"].endswith("run bench/peers/install etcd")
    assert found["ratio"] is None
    assert found["targets"][-1] == {
        "what": "times etcd",
        "value": None,
        "target": 3.0,
        "met": False,
    }
    assert os.listdir(tmp_path) == []


def test_senseless_options_are_refused() -> None:
    bench("produce", "--peer", "etcd", "--server", "127.0.0.1:1", code=2)
    bench("produce", "--seconds", 0, code=2)
    bench("failover", "--kills", 0, code=2)


def test_compare_kills_a_master_and_finds_its_loss_reported(tmp_path: Path) -> None:
    drawn = tmp_path / "compare.png"
    options = ("--mode", "async_master", "--kills", 1, "--seconds", 0.3)
    found = bench("compare", *options, "--dir", tmp_path, "--plot", drawn)
    (row,) = found["modes"]
    assert row["mode"] == "async_master"
    assert row["durability"].keys() == {"leader_disk"}
    assert row["acked_count"] > 0
    assert row["lost_count"] <= row["reported_lost_count"]
    assert row["rto"]["count"] == found["kills"] == 1
    assert os.listdir(tmp_path) == [drawn.name]
