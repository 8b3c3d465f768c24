"""`qlog check`: one line and an exit code, as monitoring plugins have them."""

import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from qlog import main
from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE
from quorumlog.local_cluster import DIRECTORY_VARIABLE
from tests.cluster.test_damage import SCRUBBED, fill, flip
from tests.node.peers.certificates import tls_settings
from tests.patience import wait_for
from tests.qlog.running import Qlog

VALUE = r"'[^'=|]+'=[\d.]+(s|%|)(;[\d.]*){0,4}"
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
LINE = re.compile(rf"QUORUMLOG ({'|'.join(STATES)}) - [^|\n]+( \| {VALUE}( {VALUE})*)?\n")


def line(qlog: Qlog, *arguments: object, code: int) -> str:
    """The text of a check whose line has the form of plugins and says the code."""
    found = LINE.fullmatch(qlog("check", *arguments, code=code).stdout)
    assert found, "no line of a plugin"
    assert found[1] == STATES[code]
    return found[0]


def test_a_group_is_behind_in_messages_and_in_time(qlog: Qlog, topic: str, tmp_path: Path) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    group = f"{topic}-readers"
    qlog("group", "set", group, "--retries", 1)
    qlog("group", "reset", group, "--topic", topic, "--to", "first")
    good = line(qlog, "--only", "leader,lag,disk", code=0)
    assert "all is well | 'nodes'=3;;;0;3 'leaders'=1;;;0;1 'disk_1'=" in good
    assert f"'lag_{group}'=3;;;0" in good
    text = line(qlog, "--only", "lag", "--lag-warning", 3, "--lag-critical", "9d", code=1)
    assert f"group {group} is 3 messages behind" in text
    assert f"'lag_{group}'=3;3;;0 'age_{group}'=" in text
    text = line(qlog, "--only", "lag", "--lag-warning", 1, "--lag-critical", "1ms", code=2)
    assert re.search(rf"group {group} is \d+ s behind", text)
    line(qlog, "--only", "lag", "--lag-warning", 1_000, "--lag-critical", "9d", code=0)
    found = qlog.json("check", "--only", "lag", "--lag-warning", 3, code=1)
    assert (found["state"], found["exit_code"]) == ("WARNING", 1)
    assert found["findings"][0]["severity"] == "WARNING"


def test_what_could_not_be_looked_at_is_unknown(qlog: Qlog) -> None:
    assert "is none of leader" in line(qlog, "--only", "moon", code=3)
    assert "no limit" in line(qlog, "--lag-warning", "1w", code=3)
    assert "No such option" in line(qlog, "--unknown", code=3)
    over = ("--lag-warning", "2h", "--lag-warning", 5, "--lag-critical", "1h")
    assert "begins above critical" in line(qlog, *over, code=3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("--server", server, "--timeout", "300ms")
        assert "no answer within 300 ms" in line(qlog, *arguments, code=3)
        assert qlog.json("check", *arguments, code=3)["state"] == "UNKNOWN"
    for timeout in ("100ms", "1s"):
        arguments = ("--server", server, "--timeout", timeout)
        assert "refused" in line(qlog, *arguments, code=2), "a port that is closed"


@pytest.mark.long
def test_a_full_disk_and_a_certificate_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, given = tls_settings(tmp_path)
    soon = authority.files("soon", ends=datetime.now(UTC) + timedelta(days=3))
    given |= {"tls_certificate_file": str(soon.certificate), "tls_key_file": str(soon.key)}
    monkeypatch.setenv(CA_VARIABLE, str(authority.path))
    monkeypatch.setenv(CERTIFICATE_VARIABLE, str(soon.certificate))
    monkeypatch.setenv(KEY_VARIABLE, str(soon.key))
    given["disk_full_ratio"] = 0.000_001
    with LocalCluster.create(tmp_path / "c", 1, settings=given) as cluster:
        qlog = Qlog(cluster)
        wait_for("a look at the disk", lambda: qlog("check", code=None).exit_code == 2)
        assert "the disk of node 1 is " in line(qlog, "--only", "disk", code=2)
        text = line(qlog, "--only", "damage", code=1)
        assert "the certificate" in text
        assert " ends at " in text
        assert "the disk" in line(qlog, "--only", "disk,damage", code=2)


@pytest.mark.long
@pytest.mark.parametrize("replication", ["raft", "sync_master"])
def test_nodes_that_are_gone(tmp_path: Path, replication: str) -> None:
    count = 3 if replication == "raft" else 2
    with LocalCluster.create(tmp_path / "c", count, replication=replication) as cluster:
        qlog, leader = Qlog(cluster), cluster.leader_id()
        others = [node for node in cluster.node_ids if node != leader]
        line(qlog, code=0)
        cluster.kill(others[0])
        assert f"node {others[0]} does not answer" in line(qlog, "--only", "leader", code=1)
        cluster.restart(others[0])
        cluster.wait_ready()
        for node in (leader, *others[1:]):
            cluster.kill(node)
        text = line(qlog, "--only", "leader,lag", code=2)
        assert "no node leads: appends wait until one does" in text
        assert "lag is not known" in text
        cluster.kill(others[0])
        assert "no node of" in line(qlog, code=2)
        env = {SERVER_VARIABLE: None, DIRECTORY_VARIABLE: str(tmp_path / "c")}
        result = CliRunner().invoke(main, ["check"], env=env)
        assert result.stdout.startswith("QUORUMLOG CRITICAL - the local cluster in")
        assert result.exit_code == 2


@pytest.mark.long
def test_damage_is_told_by_the_log_of_the_node(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "c", 3, settings=SCRUBBED) as cluster:
        fill(cluster)
        qlog, damaged = Qlog(cluster), cluster.leader_id()
        line(qlog, "--only", "damage", code=0)
        flip(cluster, damaged)
        wait_for("it to be found", lambda: qlog("check", code=None).exit_code)
        assert f"node {damaged}: errors in its log: 1," in line(qlog, "--only", "damage", code=1)
