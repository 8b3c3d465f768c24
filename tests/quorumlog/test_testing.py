"""Clusters for the tests of users: beside modules of their own, without asyncio, and the errors."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog import errors, testing
from tests.patience import eventually

_TESTS = """
from quorumlog import sync, testing

def test_the_cluster_of_the_session(quorumlog_cluster):
    with quorumlog_cluster.client() as client:
        client.admin.create_topic("orders", queue_count=1)
        client.producer().send("orders", b"hello", queue_id=0)

def test_a_cluster_of_its_own():
    with testing.sync_cluster(1, settings={"file_size_bytes": "32MiB"}) as cluster:
        assert '= "32MiB"' in (cluster.directory / "node-1" / "node.toml").read_text()
        cluster.kill(1)
        assert cluster.leader_id() == 0

def test_the_cluster_of_the_session_is_the_same(quorumlog_cluster):
    with sync.connect(quorumlog_cluster.bootstrap) as client:
        assert client.pull("orders", 0, 0).bodies() == [b"hello"]
"""


def test_modules_of_a_user_are_not_in_the_way_of_a_cluster(tmp_path: Path) -> None:
    for name in ("bench", "deploy", "node", "pipeline", "qlog", "raft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the user')")
    (tmp_path / "store.py").write_text("raise RuntimeError('store of the user')")
    (tmp_path / "test_orders.py").write_text(_TESTS)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "quorumlog.pytest_plugin", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr


_KILLED = """
import os, signal
from quorumlog import testing

with testing.sync_cluster(1) as cluster:
    cluster.restart(1)
    print(cluster.directory, cluster.bootstrap.rpartition(":")[2], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""


def test_a_program_that_is_killed_leaves_no_node_and_no_directory(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    directory, port = ended.stdout.split()
    asyncio.run(eventually(lambda: not Path(directory).exists(), "the directory to go"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


@pytest.mark.long
async def test_a_node_that_is_paused_leads_again_or_another_does(tmp_path: Path) -> None:
    async with testing.cluster(directory=tmp_path, flush="async") as cluster:
        leader = await cluster.leader_id()
        await cluster.pause(leader)
        async with cluster.client() as client:
            await client.admin.create_topic("orders")
        await cluster.resume(leader)
        assert await cluster.wait_ready() in cluster.node_ids
        for node_id in cluster.node_ids:
            await cluster.kill(node_id)
        with (
            socket.create_server(("127.0.0.1", int(cluster.address(1).rpartition(":")[2]))),
            pytest.raises(errors.QuorumlogError, match=r"port \d+ of node 1 .* end that process"),
        ):
            await cluster.restart(1)
        await cluster.restart(1, wait=False)
        with pytest.raises(errors.QuorumlogError, match="1 nodes are ready") as caught:
            await cluster.wait_ready(1)
        assert caught.value.code == "local.not_ready"
        with pytest.raises(errors.QuorumlogError, match="holds a local cluster already"):
            async with testing.cluster(directory=tmp_path):
                pass


async def test_a_cluster_that_cannot_be_says_so_in_the_words_of_the_client() -> None:
    with pytest.raises(errors.QuorumlogError, match="use at most 16 nodes") as caught:
        async with testing.cluster(9, broker_groups=2):
            pass
    assert caught.value.code == "local.bad_count"
    with pytest.raises(errors.InvalidRequestError, match="nodes is 0; use 1 to 9"):
        testing.cluster(0)
