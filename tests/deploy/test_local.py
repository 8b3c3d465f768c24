"""A local cluster of real nodes, through the class and through `qlog local`."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from deploy.local import LocalCluster, LocalError
from qlog import main
from qlog.connection import SERVER_VARIABLE
from quorumlog import sync
from quorumlog.local_cluster import DIRECTORY_VARIABLE
from quorumlog.pb.log_pb2 import RouteRequest
from store.errors import StoreFullError
from tests.loopback import host_and_port
from tests.node.framed.clients import RESPONSE, ROUTE, FramedClient
from tests.node.processes import connected, typed_error
from tests.patience import PATIENCE_S, wait_for
from tests.store.listing import SMALL_BYTES, disk_size_bytes

pytestmark = pytest.mark.usefixtures("nodes_started_by_name")
SMALL = {"file_size_bytes": "8MiB"}


def local(directory: Path, command: str, *arguments: str, code: int = 0) -> Result:
    """Run `qlog local COMMAND --dir DIR ...`."""
    given = ["local", command, "--dir", str(directory), *arguments]
    result = CliRunner().invoke(main, given, prog_name="qlog")
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def states(root: Path, code: int = 0) -> dict[int, dict[str, Any]]:
    """What `qlog local status` says of each node."""
    rows = json.loads(local(root, "status", "-o", "json", code=code).stdout)
    return {row["node_id"]: row for row in rows}


def test_the_life_of_a_cluster_by_commands(tmp_path: Path) -> None:
    root = tmp_path / "c"
    assert "no local cluster" in local(root, "status", code=4).stderr
    try:
        begun = json.loads(local(root, "start", "-o", "json").stdout)
        assert [(s["node_id"], s["state"], s["is_ready"]) for s in begun] == [
            (node_id, "running", True) for node_id in (1, 2, 3)
        ]
        assert sorted(s["role"] for s in begun) == ["follower", "follower", "leader"]
        leader = next(s["node_id"] for s in begun if s["role"] == "leader")
        pids = {s["node_id"]: s["pid"] for s in begun}

        assert "all nodes were running already" in local(root, "start").stdout
        refused = local(root, "start", "--nodes", "5", code=3).stderr
        assert "made with another --nodes" in refused

        assert local(root, "kill", "--leader").stdout == f"killed node {leader}\n"
        for verb in ("kill", "pause", "resume"):
            refused = local(root, verb, "--node", str(leader), code=3).stderr
            assert f"error: node {leader} of {root} does not run" in refused
            assert f"start it: qlog local start --dir {root}" in refused
        seen = states(root, code=1)
        assert all(s["leader_id"] != leader and s["detail"] != f"node {leader} leads"
                   for s in seen.values()), "a dead leader leads"  # fmt: skip
        dead = seen[leader]
        assert dead["state"] == "dead"
        assert (dead["detail"], dead["console_address"]) == ("killed (signal 9)", None)
        alive = seen[leader % 3 + 1]
        node_file = Path(alive["directory"], "data", "node.json").read_text("utf-8")
        assert alive["console_address"] == json.loads(node_file)["console_address"]
        host, port = host_and_port(alive["address"])
        assert alive["console_address"] == f"{host}:{port + 4}", "it stays over a restart"
        shown = local(root, "status", code=1).stdout
        assert f"http://{seen[min(seen.keys() - {leader})]['console_address']}/\n" in shown
        assert "started 1 node;" in local(root, "start").stdout
        again = states(root)
        assert {n for n in pids if pids[n] != again[n]["pid"]} == {leader}

        other = leader % 3 + 1
        local(root, "restart", "--node", str(other))
        cluster, said = LocalCluster.open(root), list[str]()
        drain = ["cluster", "drain", str(other), "-s", cluster.bootstrap]
        assert CliRunner().invoke(main, drain).exit_code == 0
        with pytest.raises(LocalError, match="drains this node"):
            cluster.wait_ready(500, progress=said.append)
        assert said[-1] == (
            f"2 of 3 nodes are ready; node {other}: draining: an operator drains this node"
        )
        assert local(root, "stop", "--node", str(other)).stdout == "stopped 1 node\n"
        assert local(root, "stop").stdout == "stopped 2 nodes\n"
        for node_id in pids:  # The last one has nobody left to lead in its place.
            log = LocalCluster.open(root).log_path(node_id).read_text()
            assert "stopped" in log
            assert "stops without having drained" not in log
        assert local(root, "stop").stdout == "nothing was running\n"
        stopped = [(s["state"], s["detail"]) for s in states(root, code=1).values()]
        assert stopped == [("stopped", "stopped")] * 3
    finally:
        if root.exists():
            LocalCluster.open(root).stop(timeout_ms=0)


def test_hints_work_as_they_stand_from_the_start_to_the_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my cluster"
    monkeypatch.setenv(SERVER_VARIABLE, "127.0.0.1:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "another"))

    def run(words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, shlex.split(words)[1:], prog_name="qlog")
        assert result.exit_code == code, (words, result.stdout, result.stderr)
        return result

    def hint(result: Result) -> str:
        return result.stderr.splitlines()[-1].rpartition(": ")[2]

    run(f"qlog context create {'p' * 64} -s 127.0.0.1:2")
    run(f"qlog context use {'p' * 64}")
    hints = local(root, "start", "--nodes", "1").stdout.partition("next:\n")[2].splitlines()
    try:
        of_variable, unset, of_context, leave, _, export, create, status, stop = hints
        assert of_variable == "  # QUORUMLOG_SERVER sends commands elsewhere; this ends that:"
        assert of_context.startswith("  # context 'ppp")
        assert len(of_context) <= 80
        monkeypatch.delenv(unset.split()[-1])
        run(leave)
        refused = local(root, "purge", "--yes", code=3)
        assert "node 1 of" in refused.stderr
        variable, value = shlex.split(export, comments=True)[1].split("=")
        assert variable == DIRECTORY_VARIABLE
        run(status)
        assert stop.strip() == hint(refused)
        monkeypatch.setenv(variable, value)
        run(create)
        running = run("qlog local start --port 1", code=3)
        assert hint(running) == "qlog local stop && qlog local purge"
        run(stop)
    finally:
        LocalCluster.open(root).stop(timeout_ms=0)
    stopped = run("qlog topic list", code=3)
    assert f"the local cluster in {root} is stopped" in stopped.stderr
    assert hint(stopped) == "qlog local start"
    other = run("qlog local start --port 1", code=3)
    assert "made with another --port" in other.stderr
    (root / "mine").touch()
    run("qlog local purge", code=2)
    run(f"{hint(other)} --yes")
    assert [path.name for path in root.iterdir()] == ["mine"]
    assert "there is no local cluster" in run("qlog local purge", code=4).stderr


def test_a_purge_leaves_no_empty_directory_in_the_home(tmp_path: Path) -> None:
    home = tmp_path / ".quorumlog"
    LocalCluster.create(home / "local", 1).purge()
    assert not home.exists()


@pytest.mark.long
def test_a_small_cluster_is_small_on_disk(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3) as cluster:
        with sync.connect(cluster.bootstrap) as client:
            client.admin.create_topic("pies", queue_count=4)
            client.producer().send("pies", b"one pie", key="order-17")
        assert disk_size_bytes(tmp_path) <= SMALL_BYTES
    assert disk_size_bytes(tmp_path) <= SMALL_BYTES


@pytest.mark.long
def test_a_start_leaves_a_removed_member_out(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings=SMALL) as cluster:
        removed = cluster.leader_id() % 3 + 1
        with sync.connect(cluster.bootstrap) as client:
            client.admin.remove_member(removed)
    assert states(tmp_path, code=1)[removed]["role"] == "removed"
    assert "started 2 nodes" in local(tmp_path, "start").stdout
    try:
        local(tmp_path, "restart")
        removed_state = states(tmp_path)[removed]
        assert (removed_state["state"], removed_state["role"]) == ("stopped", "removed")
    finally:
        cluster.stop()
        LocalCluster.open(tmp_path).stop()


def test_a_cluster_at_the_ports_of_rocketmq_is_not_made_where_one_is_taken(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # Else another process has it.
            held.enter_context(socket.create_server(("127.0.0.1", 9876)))
        refused = local(tmp_path / "c", "start", "--rocketmq", code=3).stderr
    assert "port 9876, one of RocketMQ's own, is used by another process" in refused
    assert not (tmp_path / "c").exists()


@pytest.mark.long
def test_a_leader_is_paused_and_another_process_takes_the_cluster_over(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings=SMALL) as cluster:
        leader = cluster.leader_id()
        assert leader in cluster.node_ids
        cluster.pause(leader)
        (paused,) = [s for s in cluster.status() if s.node_id == leader]
        assert paused.state == "paused"
        others = tuple(n for n in cluster.node_ids if n != leader)
        assert cluster.wait_ready(node_ids=others) in others
        cluster.resume(leader)
        assert cluster.wait_ready() in cluster.node_ids
        other = LocalCluster.open(tmp_path)
        assert other.start() == []
        assert other.kill(leader) is True
        with pytest.raises(LocalError, match=rf"node {leader}: killed \(signal 9\)") as caught:
            cluster.wait_ready(node_ids=(leader,))
        assert caught.value.code == "local.died"
    assert [cluster.exit_code(n) for n in others] == [0, 0]
    states = {s.node_id: s.state for s in cluster.status()}
    assert states == {leader: "dead", **dict.fromkeys(others, "stopped")}  # It did not kill it.


def test_a_node_that_another_command_started_is_found_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalCluster.create(tmp_path, 1, settings=SMALL)
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    command = [sys.executable, "-P", "-m", "node", "--config", str(tmp_path / "node-1/node.toml")]
    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as node,
        contextlib.ExitStack() as ended,
    ):
        ended.callback(node.terminate)
        wait_for("the node", (tmp_path / "node-1/data/node.json").exists)
        assert "all nodes were running already" in local(tmp_path, "start").stdout
        state = states(tmp_path)[1]
        assert (state["state"], state["pid"]) == ("running", node.pid)
        assert state["detail"] == "runs, not started by qlog local; this node leads"
        assert CliRunner().invoke(main, ["topic", "list"]).exit_code == 0
        assert local(tmp_path, "stop").stdout == "stopped 1 node\n"
    assert node.returncode == 0
    assert states(tmp_path, code=1)[1]["state"] == "stopped"
    local(tmp_path, "start")
    local(tmp_path, "pause", "--node", "1")
    resume = "qlog local resume --node 1"
    assert states(tmp_path, code=1)[1]["detail"] == f"it goes on after {resume}"
    local(tmp_path, "resume", "--node", "1")
    process = LocalCluster.open(tmp_path).process(1)
    assert process is not None
    process.send(signal.SIGTERM)
    assert process.wait_end(1_000 * PATIENCE_S)
    monkeypatch.setattr("deploy.local_process._children", {})  # As for a later command.
    seen = states(tmp_path, code=1)[1]
    assert (seen["state"], seen["detail"]) == ("stopped", "stopped")


def test_a_first_start_with_wrong_settings_makes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "c"
    for setting in ("wrong=1", "heartbeat_ms=1", "flush=null", "a b=1"):
        assert setting.partition("=")[0] in (
            local(root, "start", "--setting", setting, code=2).stderr
        )
        assert not root.exists(), setting
    taken = local(root, "start", "--nodes", "1", "--setting", "listen=192.0.2.1:1", code=3).stderr
    assert "cannot listen on 192.0.2.1:1" in taken
    assert "no node runs" in taken
    assert "no local cluster" in local(root, "status", code=4).stderr
    assert "started 1 node;" in local(root, "start", "--nodes", "1").stdout
    local(root, "stop")


@pytest.mark.long
def test_a_node_that_cannot_start_is_said_at_once_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster.create(tmp_path, 1)
    with (cluster.node_directory(1) / "node.toml").open("a") as file:
        file.write("wrong = 1")
    cluster.start()
    with pytest.raises(LocalError) as caught:
        cluster.wait_ready()
    assert caught.value.code == "local.died"
    said = "1 setting is wrong; peers.1.wrong = 1"
    assert f"node 1: exited with code 78: {said}" in caught.value.what
    monkeypatch.setattr("deploy.local_process._children", {})  # As for a later command.
    of_another = LocalCluster.open(tmp_path).status()[0]
    assert of_another.state == "dead"
    assert of_another.detail.startswith(f"ended: {said}")
    other = LocalCluster.create(tmp_path / "other", 1)
    assert other.status()[0].detail == "was never started"


def test_a_group_without_room_is_said_at_once_and_what_nodes_say_after_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster.create(tmp_path, 2)
    full = f"cannot lead: {StoreFullError('/data', needed_bytes=2, free_bytes=1)}"
    states = [replace(one, state="running", detail=full) for one in cluster.status()]
    monkeypatch.setattr(cluster, "status", lambda: states)
    with pytest.raises(LocalError, match="/data needs 2 bytes, 1 are free") as caught:
        cluster.wait_ready(node_ids=(1, 2))
    assert caught.value.code == "local.no_room"
    states[0] = replace(states[0], detail="may lead")
    with pytest.raises(LocalError, match=r"node 1: may lead; node 2: .* needs 2 bytes") as caught:
        cluster.wait_ready(0, node_ids=(1, 2))
    assert caught.value.code == "local.not_ready"


@pytest.mark.parametrize("replication", ["raft", "sync_master", "async_master"])
def test_a_start_without_room_says_so_in_each_mode_of_replication(
    tmp_path: Path, replication: str
) -> None:
    settings = {**SMALL, "disk_reserve_bytes": 1 << 60}
    cluster = LocalCluster.create(tmp_path, 2, replication=replication, settings=settings)
    try:
        cluster.start()
        with pytest.raises(LocalError, match=r"node 1: .* are free on its disk") as caught:
            cluster.wait_ready()
        assert caught.value.code == "local.no_room"
    finally:
        cluster.stop()


@pytest.mark.long
def test_a_node_that_does_not_get_ready_is_said_after_the_time(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, 3, settings=SMALL)
    try:
        cluster.start(1)
        with pytest.raises(LocalError, match="0 of 1 nodes are ready"):
            cluster.wait_ready(timeout_ms=1_500)
        expected = "waiting: a new cluster needs to hear of node 2, 3 first"
        wait_for("the reason", lambda: cluster.status()[0].detail == expected)
        with connected(cluster.address(1)) as client, pytest.raises(grpc.RpcError) as caught:
            client.status()
        assert typed_error(caught.value).code == "node.not_ready"
    finally:
        assert cluster.stop() == []


def test_a_taken_framed_port_does_not_stop_a_node(tmp_path: Path) -> None:
    """A directory of before there was one did not choose it."""
    cluster = LocalCluster.create(tmp_path / "c", 1, settings=SMALL)
    host, port = at = host_and_port(cluster.framed_address(1))
    with socket.create_server(at), cluster:
        with connected(cluster.address(1)) as client:
            route = client.log.Route(RouteRequest(), timeout=10)
        assert route.framed_address not in ("", f":{port}")
        framed_port = int(route.framed_address.removeprefix(":"))
        with FramedClient((host, framed_port)) as framed:
            assert framed.call(ROUTE, 1, b"").flags == RESPONSE
    with cluster, FramedClient(at) as framed:
        assert framed.call(ROUTE, 1, b"").flags == RESPONSE


def test_a_cluster_without_a_running_node_is_not_waited_for(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 3)
    with pytest.raises(LocalError, match="no node runs"):
        cluster.wait_ready()


def test_one_start_waits_for_another_that_makes_a_cluster_there(tmp_path: Path) -> None:
    """Two would make two clusters in one place, and forget the nodes of one of them."""
    command = [sys.executable, "-P", "-m", "qlog", "local", "start", "--nodes", "1", "--dir"]
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiter = re.compile(rf"-> FLOCK .*:{os.fstat(held).st_ino} ")
        start = subprocess.Popen([*command, str(tmp_path / "c")], stdout=subprocess.DEVNULL)
        wait_for(
            "the start to wait",
            lambda: waiter.search(Path("/proc/locks").read_text()) or start.poll() is not None,
        )
        assert not (tmp_path / "c").exists()
    finally:
        os.close(held)
    assert start.wait(PATIENCE_S) == 0
    LocalCluster.open(tmp_path / "c").stop()
