"""`qlog cluster` and `qlog top` against a cluster of real processes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from qlog import connection
from qlog.connection import SERVER_VARIABLE
from quorumlog.command_errors import ExitCode
from tests.patience import PATIENCE_S
from tests.qlog.running import PROGRAM, Qlog


def test_status_of_a_healthy_cluster(qlog: Qlog) -> None:
    qlog.nodes.wait_ready()
    status = qlog.json("cluster", "status")
    assert status["cluster_id"] == qlog.nodes.cluster_id
    assert (status["healthy"], status["problems"]) == (True, [])
    assert status["leader_id"] == qlog.nodes.leader_id()
    assert [node["node_id"] for node in status["nodes"]] == [1, 2, 3]
    assert sorted(node["role"] for node in status["nodes"]) == ["follower", "follower", "leader"]
    for node in status["nodes"]:
        assert node["address"] == qlog.nodes.address(node["node_id"])
        assert (node["standing"], node["flush"]) == ("full", "sync")
        assert node["loss_from_index"] is None
        assert node["commit_index"] <= node["last_index"]
    table = qlog("cluster", "status").stdout
    assert "healthy     yes\n" in table
    assert "problem" not in table


@pytest.mark.long
def test_status_names_a_node_that_is_down(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "c", 3) as nodes:
        qlog, down = Qlog(nodes), next(n for n in nodes.node_ids if n != nodes.leader_id())
        nodes.kill(down)
        status = qlog.json("cluster", "status", code=1)
        assert status["healthy"] is False
        assert [n["node_id"] for n in status["nodes"] if n["role"] == "down"] == [down]
        assert f"node {down} does not answer" in status["problems"][0]
        assert f"problem: node {down} does not" in qlog("cluster", "status", code=1).stdout
        nodes.kill(nodes.leader_id())
        assert qlog.json("cluster", "status", code=1)["leader_id"] is None  # Followers name it yet.


def test_the_leadership_moves(qlog: Qlog) -> None:
    before = qlog.json("cluster", "status")
    target = next(n for n in qlog.nodes.node_ids if n != before["leader_id"])
    moved = qlog.json("cluster", "transfer-leader", target)
    assert moved["leader_id"] == target
    assert moved["term"] > before["term"]
    assert qlog.json("cluster", "status")["leader_id"] == target
    assert qlog.json("cluster", "transfer-leader")["leader_id"] != target


def test_a_node_is_drained_and_back(qlog: Qlog) -> None:
    leader = qlog.json("cluster", "status")["leader_id"]
    assert qlog.json("cluster", "drain", leader) == {"node_id": leader, "is_draining": True}
    status = qlog.json("cluster", "status", code=1)
    assert status["leader_id"] not in (None, leader)
    undo = f"'qlog cluster drain {leader} --undo'"
    assert status["problems"] == [
        f"node {leader} is draining: it does not lead before a restart or {undo}"
    ]
    found = qlog.json("check", "--only", "leader,disk,damage", code=1)["findings"]
    assert [one["text"] for one in found] == status["problems"]
    assert qlog.json("top", "--once", "--interval", 0.1, code=1)["problems"] == status["problems"]
    assert qlog.json("cluster", "drain", leader, "--undo")["is_draining"] is False
    assert qlog.json("cluster", "status")["healthy"] is True


def test_commands_without_effect_say_so(qlog: Qlog) -> None:
    table = qlog("cluster", "upgrade", "finalize").stdout
    level = qlog.json("cluster", "upgrade", "finalize")[0]["level"]
    assert table == f"broker group g0  works at level {level}: there is nothing to finalize\n"
    refused = qlog("ha", "status", code=5).stderr.splitlines()
    assert refused[0].endswith("is not for a cluster with replication = raft")
    assert refused[2] == "  do:  run 'qlog cluster status'"


@pytest.mark.long
def test_a_learner_is_added_and_removed(qlog: Qlog) -> None:
    """Nobody listens there: a learner that is away holds up nothing."""
    where = ("--address", "127.0.0.1:1", "--peer-address", "127.0.0.1:2")
    rows = qlog.json("cluster", "members", "add", 4, *where)
    [added] = [row for row in rows if row["node_id"] == 4]
    assert (added["is_voter"], added["address"]) == (False, "127.0.0.1:1")
    refused = qlog("cluster", "members", "promote", 4, "--timeout", "1s", code=None)
    # The time ends in a pause between two attempts, or in one, whose outcome is unknown then.
    assert refused.exit_code in (ExitCode.TIMEOUT, ExitCode.UNKNOWN)
    assert len(refused.stderr.splitlines()) == 3
    assert "run it again with --yes" in qlog("cluster", "members", "remove", 4, code=2).stderr
    rows = qlog.json("cluster", "members", "remove", 4, "--yes")
    assert [row["node_id"] for row in rows] == [1, 2, 3]


def test_there_is_nothing_to_recover(qlog: Qlog) -> None:
    for options in ((), ("--accept-loss",)):
        report = qlog.json("cluster", "recover", *options)
        assert (report["recovering"], report["down"], report["accepted"]) == ([], [], False)


def test_a_snapshot_of_top_has_rates(qlog: Qlog, topic: str) -> None:
    snapshot = qlog.json("top", "--once", "--interval", "0.2")
    assert snapshot["problems"] == []
    for node in snapshot["nodes"]:
        assert node["msgs_per_s"] is not None
        assert node["uptime_ms"] > 0
    table = qlog("top", "--interval", "0.1").stdout.splitlines()
    assert table[0].split()[:3] == ["node_id", "address", "role"]
    assert len(table) == 4


def test_top_is_live_on_a_terminal(qlog: Qlog) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "top", "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            SERVER_VARIABLE: qlog.nodes.bootstrap,
            "TERM": "xterm",
            "COLUMNS": "200",
            "LINES": "40",
        },
    )
    os.close(theirs)
    try:
        shown = b""
        while shown.count(b"Ctrl-C ends") < 3:
            shown += os.read(ours, 65536)
        assert b"follower" in shown
        assert qlog.nodes.address(1).encode() in shown
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            try:
                os.read(ours, 65536)
            except OSError:  # The terminal is gone with its last process.
                break
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_cluster_that_is_not_there_is_three_lines(
    qlog: Qlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_MS", 300)
    for command in (("topic", "list"), ("cluster", "status"), ("consume", "x")):
        result = qlog(*command, "--server", "127.0.0.1:1", code=3)
        assert len(result.stderr.splitlines()) == 3
        assert "127.0.0.1:1" in result.stderr
        assert json.dumps(result.stdout) == '""'
