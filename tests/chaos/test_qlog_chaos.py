"""`qlog chaos` against a local cluster: the verdict, and what it says when it cannot."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.local import LocalCluster
from qlog import main
from quorumlog.sync import connect


def qlog_chaos(*arguments: str, before: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(main, [*before, "chaos", *arguments], prog_name="qlog")


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    result = qlog_chaos("kill", "--dir", str(tmp_path))
    assert result.exit_code == 4
    assert "qlog local start" in result.stderr


@pytest.mark.long
def test_attacks_end_with_a_verdict_and_a_whole_cluster(tmp_path: Path) -> None:
    directory = str(tmp_path / "c")
    cluster = LocalCluster.create(directory)
    cluster.start()
    try:
        cluster.wait_ready()
        for name, transport in (("partition", "framed"), ("kill", "grpc")):
            options = ("--dir", directory, "--seconds", "0.5", "-o", "json")
            result = qlog_chaos(name, *options, before=("--transport", transport))
            assert result.exit_code == 0, result.output
            report = json.loads(result.stdout)
            assert (report["verdict"], report["transport"]) == ("passed", transport)
            assert report["lost_count"] == report["anomaly_count"] == 0
            assert report["checked_operation_count"] > 0
            assert report["proofs"]
            assert not result.stderr, "warnings of the attacked clients are in the report"
            assert isinstance(report["client_warnings"], list)
        refused = qlog_chaos("pause", "--dir", directory, "--node", "7")
        assert refused.exit_code == 4
        again = LocalCluster.open(directory)
        again.wait_ready(node_ids=again.node_ids)
        with connect(again.bootstrap) as client:
            left = client.admin.list_topics(), client.admin.list_groups()
        assert left == ([], []), "what an attack made is gone"
    finally:
        # Opened anew: the command has started another process for the node that it killed.
        LocalCluster.open(directory).stop()
