"""Processes of a local cluster are known for sure, and nobody else ever gets their signal."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local import LocalCluster, LocalError
from deploy.local_process import NodeProcess, free_ports, is_free, spawn
from node.config.load import load
from node.config.settings import Settings
from quorumlog.local_cluster import known_servers, started_at


def test_a_process_is_detached_paused_and_ended_and_known_to_others(tmp_path: Path) -> None:
    words = ["--bind", "127.0.0.1", "0"]
    process = spawn("http.server", words, log=tmp_path / "log", environment=os.environ)
    other = NodeProcess(process.pid, process.started)  # As another command knows it.
    try:
        assert process.is_alive
        assert os.getsid(process.pid) == process.pid
        process.send(signal.SIGSTOP)
        assert process.wait_paused(5_000)
        assert process.is_alive
        process.send(signal.SIGCONT)
        while process.is_paused:
            os.sched_yield()
        assert other.is_alive
        assert other.exit_code is None
    finally:
        process.send(signal.SIGKILL)
    assert other.wait_end(5_000), "a zombie counts as ended"
    assert process.wait_end(5_000)
    exit_code = process.exit_code
    assert exit_code == -signal.SIGKILL
    assert process.send(signal.SIGTERM) is False


def test_a_pid_that_belongs_to_somebody_else_by_now_gets_no_signal() -> None:
    boot_id, _, ticks = started_at(os.getpid()).rpartition(":")
    other = NodeProcess(os.getpid(), f"{boot_id}:{float(ticks) - 1:g}")
    assert not other.is_alive
    assert other.send(signal.SIGKILL) is False


def test_free_ports_are_free_different_and_not_those_of_outgoing_connections() -> None:
    ports = free_ports(30)
    assert len(set(ports)) == 30
    assert all(20_000 <= port < 32_000 and is_free(port) for port in ports)
    assert set(free_ports(5, used=ports)).isdisjoint(ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free(ports[0])


_AS_A_USER = """
import os
from deploy.local_nodes import LocalError, check_free

os.getuid() or os.setuid(65534)
try:
    check_free([80], "use another")
except LocalError as error:
    print(error.code, error)
"""


def test_a_port_that_a_user_may_not_have_is_not_called_taken() -> None:
    done = subprocess.run([sys.executable, "-c", _AS_A_USER], capture_output=True, check=True)
    text = b"local.bad_port this user may not listen on port 80; use a --port from 1024 to 65000\n"
    assert done.stdout == text


def test_concurrent_askers_get_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        free = [port for ports in pool.map(free_ports, [60] * 20) for port in ports]
    assert len(set(free)) == 20 * 60
    [kept] = tmp_path.iterdir()
    assert sorted(map(int, kept.read_text().split())) == sorted(free)


def test_ports_are_found_where_nothing_can_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    assert len(free_ports(3)) == 3


def test_ports_come_round_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("deploy.local_process._GIVEN_COUNT_MAX", 20)
    for _ in range(10):
        free_ports(10)
    [kept] = tmp_path.iterdir()
    assert len(kept.read_text().split()) == 20


# --- The directory ---


def test_a_cluster_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", 3, flush="async", settings={"retention_ms": "1h"})
    for node_id in made.node_ids:
        settings = load(made.node_directory(node_id) / "node.toml", {}, {}).settings
        assert (settings.node_id, settings.voters) == (node_id, (1, 2, 3))
        assert settings.cluster_id == made.cluster_id
        assert (settings.listen.host, settings.secret_file) == ("127.0.0.1", None)
        assert str(settings.peers[node_id].address) == made.address(node_id)
        assert (settings.retention_ms, settings.file_size_bytes) == (3_600_000, 64 << 20)
    opened = LocalCluster.open(tmp_path / "c")
    assert (opened.bootstrap, opened.node_ids, opened.flush) == (made.bootstrap, (1, 2, 3), "async")
    assert [state.state for state in opened.status()] == ["stopped"] * 3
    assert opened.leader_id() == 0
    with pytest.raises(LocalError) as caught:
        LocalCluster.create(tmp_path / "c")
    assert caught.value.code == "local.exists"


@pytest.mark.parametrize(
    ("nodes", "base_port", "code"),
    [(0, None, "local.bad_count"), (10, None, "local.bad_count"), (3, 65_530, "local.bad_port")],
)
def test_impossible_clusters_are_refused(
    tmp_path: Path, nodes: int, base_port: int, code: str
) -> None:
    with pytest.raises(LocalError) as caught:
        LocalCluster.create(tmp_path, nodes, base_port=base_port)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_no_file_of_settings_can_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no UTF-8"):
        LocalCluster.create(tmp_path / os.fsdecode(b"a\xff"), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1, beside=[1, 2, 3])
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(LocalError, match=f"port {port} ") as caught:
            LocalCluster.create(tmp_path, 1, base_port=port)
        assert caught.value.code == "local.port_taken"
    cluster = LocalCluster.create(tmp_path, 1, base_port=port)
    taken = socket.create_server(("127.0.0.1", port))
    with taken, pytest.raises(LocalError, match=f"port {port} of node 1"):
        cluster.start()


@pytest.mark.parametrize(
    ("content", "code"), [(None, "local.none"), ("{", "local.damaged"), ("{}", "local.damaged")]
)
def test_a_directory_without_a_cluster(tmp_path: Path, content: str | None, code: str) -> None:
    if content is not None:
        (tmp_path / "local.json").write_text(content)
    with pytest.raises(LocalError) as caught:
        LocalCluster.open(tmp_path)
    assert caught.value.code == code


def test_a_path_that_no_text_can_show_has_no_cluster(tmp_path: Path) -> None:
    for name in ("a\x1b[31mb", "a\nb", "a\x9bb"):
        with pytest.raises(LocalError, match="control characters") as caught:
            LocalCluster.create(tmp_path / name)
        assert caught.value.code == "local.bad_directory"
    assert not any(tmp_path.iterdir())


def test_a_purge_takes_a_link_and_leaves_what_it_leads_to(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 2)
    cluster.node_directory(1).rename(tmp_path / "elsewhere")
    cluster.node_directory(1).symlink_to(tmp_path / "elsewhere")
    cluster.node_directory(2).rename(tmp_path / "gone")
    cluster.node_directory(2).symlink_to(tmp_path / "none")
    cluster.purge()
    assert not (tmp_path / "c").exists()
    assert (tmp_path / "elsewhere/node.toml").exists()


@pytest.mark.parametrize("content", [None, b"flush = \n", b"\xff"])
def test_settings_of_a_node_that_others_broke_are_named(
    tmp_path: Path, content: bytes | None
) -> None:
    cluster = LocalCluster.create(tmp_path, 1)
    file = cluster.node_directory(1) / "node.toml"
    file.unlink()
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    with pytest.raises(LocalError, match=f"{file} cannot be used") as caught:
        _ = cluster.flush
    assert caught.value.code == "local.damaged"


def test_each_node_has_a_replica_of_the_name_server_unless_it_is_off(tmp_path: Path) -> None:
    def settings_of(cluster: LocalCluster) -> list[Settings]:
        files = [cluster.node_directory(n) / "node.toml" for n in cluster.node_ids]
        return [load(file, {}, {}).settings for file in files]

    name_servers = [s.nameserver() for s in settings_of(LocalCluster.create(tmp_path / "a", 3))]
    assert [s.members.index(s.address) for s in name_servers if s is not None] == [0, 1, 2]
    many = settings_of(LocalCluster.create(tmp_path / "c", 3, groups=2))
    hosts = [s for s in many if s.nameserver() is not None]
    assert [s.node_id for s in hosts] == [1, 2, 4], "no group has all of them"
    servers = [tuple(s.nameserver_servers) for s in many if s.nameserver() is None]
    assert servers == [tuple(s.listen for s in hosts)] * 3
    off = LocalCluster.create(tmp_path / "b", 2, settings={"nameserver_listen": "off"})
    assert [s.nameserver() for s in settings_of(off)] == [None, None]


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, 1)
    with pytest.raises(LocalError, match="no node 2"):
        cluster.kill(2)
    assert cluster.kill(1) is False
    assert cluster.stop() == []


def test_a_stopped_cluster_is_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_LOCAL_DIR", str(tmp_path / "c"))
    assert known_servers() == ("", False), "it is named"
    cluster = LocalCluster.create(tmp_path / "c", 1)
    assert known_servers() == (cluster.bootstrap, False)
