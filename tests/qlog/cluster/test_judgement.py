"""What is wrong with a cluster: one judgement, wherever it is shown."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalCluster
from node.config.users import RESET_FILE
from qlog.cluster.judgement import judged
from quorumlog.admin.types import NodeDown
from tests.node.users_files import user_settings
from tests.qlog.cluster.test_bundle import parts_of
from tests.qlog.cluster.test_node_rows import cluster, node
from tests.qlog.console.test_pages import console
from tests.qlog.running import Qlog


@pytest.mark.parametrize(
    ("changed", "severity", "says"),
    [
        ({"standing": "recovering"}, "WARNING", "node 2 is recovering: it does not count toward"),
        ({"standing": "diverged", "detail": "of node 3"}, "CRITICAL", "node 2 has a history that"),
        ({"disk_state": "full"}, "CRITICAL", "the disk of node 2 is 0% used (full)"),
        ({"is_draining": True, "detail": "draining: by hand"}, "WARNING", "node 2 is draining: it"),
        ({"loss_from_index": 0}, "CRITICAL", "node 2: acked records may be missing from index 0"),
        ({"role": "repairing", "detail": "index 5"}, "WARNING", "node 2 is repairing: index 5"),
        ({"leader_id": 0}, "WARNING", "node 2 knows no leader, while node 1 leads"),
        ({"detail": "a sync hangs"}, "WARNING", "node 2: a sync hangs"),
        ({"detail": "the certificate a.pem ended at 1"}, "CRITICAL", "node 2: the certificate a"),
    ],
)
def test_each_finding_is_named_once(changed: dict[str, Any], severity: str, says: str) -> None:
    (found,) = judged(cluster(node(1, role="leader"), node(2, **changed), node(3)), {})
    assert (found.severity.name, found.text[: len(says)]) == (severity, says)


def test_health_and_a_removed_node_are_none_and_the_worst_is_first() -> None:
    assert judged(cluster(node(1, role="leader"), node(2), node(3)), {}) == []
    left = [member for member in node(1).members if member.node_id != 3]
    leader = node(1, role="leader", members=left)
    assert judged(cluster(leader, node(2), node(3, standing="recovering")), {}) == []
    found = judged(cluster(node(1), NodeDown(2, "b:1", "no answer")), {})
    assert [one.text for one in found] == [
        "no node leads: appends wait until one does",
        "node 2 does not answer: no answer",
    ]


@pytest.mark.long
def test_an_error_in_a_log_is_a_problem_wherever_one_looks(tmp_path: Path) -> None:
    """A reset of the admin that makes no sense: the node says so in its log, and is well."""
    nodes = LocalCluster.create(tmp_path / "c", 1, settings=user_settings(tmp_path, "prepare"))
    data = nodes.node_directory(1) / "data"
    data.mkdir(0o700, exist_ok=True)
    (data / RESET_FILE).write_text("{}")
    with nodes:
        qlog = Qlog(nodes)
        status = qlog.json("cluster", "status", code=1)
        # Another one is that `on` would refuse the test.
        (text,) = (one for one in status["problems"] if "errors in its log: 1, " in one)
        assert "the last one: the reset of the admin is ignored" in text
        assert text in qlog.json("top", "--once", "--interval", "0.1", code=1)["problems"]
        found = qlog.json("check", code=1)["findings"]
        assert {"severity": "WARNING", "text": text} in found
        qlog("debug", "bundle", tmp_path / "b.tar.gz")
        written = json.loads(parts_of(tmp_path / "b.tar.gz")["findings.json"])
        assert ("WARNING", text) in [(one["severity"], one["text"]) for one in written]
        with console(qlog) as browser:
            assert html.escape(text) in browser.get("/")
