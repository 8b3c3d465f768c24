"""`qlog bench produce`, `consume` and `compare`: short runs, and what their results must name.

No test measures time: figures are only compared with what is in the cluster afterwards.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from qlog import main
from tests.qlog.running import Qlog, check_keys

pytestmark = pytest.mark.long


def bench(*arguments: object, code: int = 0) -> Any:
    command = ["bench", *map(str, arguments), "-o", "json"]
    result = CliRunner().invoke(main, command, prog_name="qlog")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    if code not in (0, 1):
        return None
    report = json.loads(result.stdout)
    check_keys(report, "bench", *arguments)
    return report


def message_count(nodes: LocalCluster) -> int:
    return int(Qlog(nodes).json("topic", "describe", "bench")["message_count"])


def test_produce_counts_what_the_cluster_has(shared_cluster: LocalCluster) -> None:
    report = bench(
        "produce", "--server", shared_cluster.bootstrap, "--seconds", 0.3, "--batch-count", 10
    )
    assert (report["directory"], report["limits"], report["peer"]) == (None, None, None)
    assert report["durability"] == {"quorum_disk": report["acked_count"]}
    assert report["acked_count"] == 10 * report["batch_latency"]["count"]
    # The warm-up is in the cluster too, and in no figure.
    assert (
        message_count(shared_cluster) >= report["acked_count"] + report["serial_latency"]["count"]
    )
    assert [row["what"] for row in report["targets"]] == ["acked msg/s", "serial p50, ms"]


def test_consume_reads_what_it_appended(shared_cluster: LocalCluster) -> None:
    options = ("--seconds", 0.2, "--messages", 500, "--body-size", 64)
    report = bench("consume", "--server", shared_cluster.bootstrap, *options)
    assert report["round_count"] >= 1
    assert report["consumed_count"] == report["round_count"] * message_count(shared_cluster)
    assert report["load"]["message_count"] == 500


def test_a_run_starts_a_cluster_in_the_directory_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_CACHE", str(tmp_path))  # So that there is no etcd.
    report = bench("produce", "--dir", tmp_path, "--seconds", 0.2, "--peer", "etcd")
    assert report["directory"].startswith(str(tmp_path))
    assert report["directory_kind"] in ("disk", "tmpfs")
    assert (report["node_count"], report["flush"]) == (3, "sync")
    assert report["limits"]["copy_mb_per_s"] > 0
    assert report["limits"]["syncs_per_s"] > 0
    assert report["peer"]["missing"].endswith("run bench/peers/install etcd")
    assert report["ratio"] is None
    assert report["targets"][-1] == {
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
    report = bench("compare", *options, "--dir", tmp_path, "--plot", drawn)
    (row,) = report["modes"]
    assert row["mode"] == "async_master"
    assert row["durability"].keys() == {"leader_disk"}
    assert row["acked_count"] > 0
    assert row["lost_count"] <= row["reported_lost_count"]
    assert row["rto"]["count"] == report["kills"] == 1
    assert os.listdir(tmp_path) == [drawn.name]
