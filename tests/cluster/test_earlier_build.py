"""A build of before and this one in one cluster, and on each other's directories."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalCluster
from store.fsck.check import Severity, verify
from tests import missing
from tests.cluster.conftest import running
from tests.cluster.workload import Workload, prove

pytestmark = pytest.mark.long
EARLIER = {"before_origins": "0bc4a6e43731e38d63a0b17b7de5d5a6a3a82bd6"}
"""The last commit before topics had origins. Older ones want packages that this one has not."""
ROOT = Path(__file__).parents[2]
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module", params=EARLIER)
def earlier(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Take an earlier build out of the history; return the environment in which it runs."""
    git, commit = ["git", "-C", str(ROOT)], EARLIER[request.param]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], check=False).returncode:
        missing.history("this checkout has no history, so the earlier builds are not in it")
    root = tmp_path_factory.mktemp("earlier")
    packages = ("node", "raft", "store", "quorumlog")
    made = subprocess.run([*git, "archive", commit, *packages], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(root)], input=made.stdout, check=True)
    environment = {"PYTHONPATH": str(root)}
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import node, raft, store; print(node.__path__[0])"],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    assert where.stdout.strip() == str(root / "node")
    return environment


def restart(cluster: LocalCluster, node_id: int, environment: dict[str, str] | None) -> None:
    """Stop a node as an operator does, and start it with a build."""
    assert cluster.stop(node_id) == [], "it ended by itself"
    cluster.start(node_id, environment=environment)
    cluster.wait_ready()


async def test_nodes_of_two_builds_replace_each_other_one_by_one_under_load(
    tmp_path: Path, earlier: dict[str, str]
) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        async with Workload(client) as load:
            await load.acked(200)
            for environment in (earlier, None):
                for node_id in cluster.node_ids:
                    await asyncio.to_thread(restart, cluster, node_id, environment)
                    await load.acked(200)
            history = await load.stop()
        assert (history.refused, history.unknown) == (set(), set())
        await prove(cluster, client, history)
        await asyncio.to_thread(cluster.stop)
        for node_id in cluster.node_ids:
            found = verify(str(cluster.node_directory(node_id) / "data"))
            assert [one for one in found if one.severity is Severity.DAMAGE] == []
