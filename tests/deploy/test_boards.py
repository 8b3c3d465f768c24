"""The Grafana boards: current, of metrics that nodes show, and each query gives data."""

import asyncio
import json
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quorumlog
from deploy.boards import BOARDS, DIRECTORY, files, queries
from deploy.local import LocalCluster
from deploy.local_nodes import DIRECT
from deploy.local_process import free_ports
from quorumlog.errors import QuorumlogError
from tests import missing
from tests.deploy.test_alerts import faults
from tests.patience import wait_for
from tests.tidy import repository

PROMETHEUS = shutil.which("prometheus")


def test_the_files_are_current() -> None:
    for name, text in files().items():
        assert repository.text(f"{DIRECTORY}/{name}") == text, "run: python -m deploy.boards"


def test_queries_name_what_nodes_show() -> None:
    for board in BOARDS:
        assert {title: bad for title, query in queries(board) if (bad := faults(query))} == {}


@pytest.mark.long
def test_each_query_of_each_panel_gives_data(tmp_path: Path) -> None:
    """A cluster of each mode under load, scraped by a real Prometheus."""
    if PROMETHEUS is None:
        missing.program("prometheus is not in PATH")
    raft = LocalCluster.create(tmp_path / "raft")
    slaves = LocalCluster.create(tmp_path / "ha", replication="sync_master")
    try:
        for cluster in (raft, slaves):
            cluster.start()
        for cluster in (raft, slaves):
            cluster.wait_ready()
        nodes = [node.http_address for cluster in (raft, slaves) for node in cluster.status()]
        with prometheus(tmp_path, nodes) as server:
            asyncio.run(load(raft, server))
    finally:
        for cluster in (raft, slaves):
            cluster.stop()


async def load(cluster: LocalCluster, server: str) -> None:
    """Use everything that a panel shows, until each has data."""
    async with quorumlog.connect(cluster.bootstrap) as client:
        await client.admin.create_topic("orders", queue_count=2)
        with pytest.raises(QuorumlogError):
            await client.admin.describe_topic("none")
        producer = client.transactional_producer("payers", check=lambda _: "unknown")
        await producer.begin("orders", b"half")
        left = {query for board in BOARDS for _, query in queries(board)}
        async with client.producer() as plain:
            for _ in range(60):
                await plain.send("orders", b"in", key="k")
                await plain.send("orders", b"later", delay=0.2)
                async for message in client.consume("orders", group="billing"):
                    assert message.body
                    break
                left = {one for one in left if not await asyncio.to_thread(has_data, server, one)}
                if not left:
                    return
                await asyncio.sleep(0.5)
        raise AssertionError("no data: " + "\n".join(sorted(left)))


def has_data(server: str, query: str) -> bool:
    words = urllib.parse.urlencode({"query": query})
    with DIRECT.open(f"{server}/api/v1/query?{words}", timeout=30) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return bool(said["data"]["result"])


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """Run Prometheus over the nodes, and yield its address."""
    assert PROMETHEUS is not None
    config = directory / "prometheus.yml"
    config.write_text(
        "scrape_configs: [{job_name: quorumlog, scrape_interval: 1s, static_configs: "
        f"[{{targets: {json.dumps(targets)}}}]}}]\n"
    )
    (port,) = free_ports(1)
    command = [
        *(PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for("Prometheus", lambda: is_up(address))
            yield address
        finally:
            process.terminate()
            process.wait()


def is_up(address: str) -> bool:
    try:
        with DIRECT.open(f"{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
