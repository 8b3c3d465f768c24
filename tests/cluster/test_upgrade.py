"""Rolling upgrades between two builds, with load: there, back, and to the end."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from node.runtime.fail_stop import EXIT_BAD_CONFIG
from node.state.tables.level import LEVEL
from quorumlog.command_errors import ExitCode
from quorumlog.errors import ServerError
from tests import missing
from tests.cluster.conftest import running
from tests.cluster.workload import Workload, prove, read_all
from tests.patience import eventually
from tests.tidy.repository import ROOT

BEFORE = "f0eddaca"
"""The last commit whose build has no levels. A release moves it to the release before."""
UNKNOWN = {"console_listen": None}
"""Settings of local clusters that its build does not have."""
PACKAGES = ("node", "raft", "store", "quorumlog", "qlog")


PROGRAM = """
import asyncio, sys
import quorumlog

async def main():
    async with quorumlog.connect(sys.argv[1]) as client:
        await client.admin.create_topic("pies", queue_count=2)
        async with client.producer() as producer:
            for n in range(100):
                await producer.send("pies", b"%03d" % n, key=f"k{n}")
        for options in {"position": "first", "until": "end"}, {"group": "billing"}:
            bodies = set()
            async for message in client.consume("pies", **options):
                bodies.add(message.body)
                if len(bodies) == 100:
                    break
            assert bodies == {b"%03d" % n for n in range(100)}
        print(quorumlog.__file__)

asyncio.run(main())
"""
"""It uses names that both builds have."""


def build_before(to: Path) -> Path:
    """Unpack the packages of an older commit."""
    command = ["git", "archive", BEFORE, *PACKAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        missing.program("git, or the history of this repository, is not here")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(to, filter="data")
    return to


def build_after(to: Path) -> Path:
    """Copy the packages, with one level more."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    module = to / "node/state/tables/level.py"
    text, count = re.subn(
        r"(?m)^LEVEL: Final = .*", f"LEVEL: Final = {LEVEL + 1}", module.read_text()
    )
    assert count == 1
    module.write_text(text)
    return to


async def roll(cluster: LocalCluster, work: Workload, tree: Path | None, *node_ids: int) -> None:
    """Restart nodes with another build, one at a time; each is killed, the leader too."""
    for node_id in node_ids:
        await work.acked(50)
        await asyncio.to_thread(cluster.kill, node_id)
        await asyncio.to_thread(cluster.start, node_id, environment=of(tree))
        await asyncio.to_thread(cluster.wait_ready)


def of(tree: Path | None) -> dict[str, str]:
    return {} if tree is None else {"PYTHONPATH": str(tree)}


def qlog(cluster: LocalCluster, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-P", "-m", "qlog", "cluster", "upgrade", *words]
    done = subprocess.run(
        [*command, "--server", cluster.bootstrap], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("older", ["without levels", "of this level"])
async def test_nodes_of_two_builds_are_one_group_until_the_upgrade_is_finalized(
    tmp_path: Path, older: str
) -> None:
    """An older build comes in and goes out under load; after the end it is refused by name."""
    trees = tmp_path / "trees"
    old = build_before(trees / "old") if older == "without levels" else None
    new = build_after(trees / "new")
    async with (
        running(tmp_path / "c", environment=of(old), settings=UNKNOWN) as (cluster, client),
        Workload(client) as work,
    ):
        await roll(cluster, work, new, 1, 2)
        code, text = await asyncio.to_thread(qlog, cluster, "finalize", "--yes")
        assert (code, "waits for node 3 to get a build" in text) == (ExitCode.REFUSED, True), text
        if old is None:
            await client.admin.transfer_leadership(1)  # The older build has nothing to finalize.
            with pytest.raises(ServerError, match="node 3 has level"):
                await client.admin.finalize_upgrade()
        await roll(cluster, work, old, 2)  # Back again.
        await roll(cluster, work, new, 2, 3)
        code, text = await asyncio.to_thread(qlog, cluster, "status")
        assert code == 0, text
        assert f"'qlog cluster upgrade finalize' raises it to {LEVEL + 1}" in text
        code, text = await asyncio.to_thread(qlog, cluster, "finalize", "--yes", "-o", "json")
        assert json.loads(text) == [{"broker_group": "g0", "level": LEVEL + 1}], text
        await work.acked(50)
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.start, 1, environment=of(old))
        await eventually(lambda: not cluster.is_alive(1), "the older build ends")
        said = cluster.log_path(1).read_text()
        if old is None:
            assert cluster.exit_code(1) == EXIT_BAD_CONFIG
            assert f"the group works at level {LEVEL + 1}, this build has level {LEVEL}" in said
        else:
            assert re.search(r"level|newer version", said)
        await asyncio.to_thread(cluster.start, 1, environment=of(new))
        await asyncio.to_thread(cluster.wait_ready)
        history = await work.stop()
        await prove(cluster, client, history)
        for node_id in cluster.node_ids:
            status = await client.admin.node_status(node_id)
            assert (status.level, status.level_max) == (LEVEL + 1, LEVEL + 1)


@pytest.mark.long
async def test_clients_of_the_build_before_work_with_nodes_of_this_one(tmp_path: Path) -> None:
    """The other direction is in the test above: its client is of this build, the nodes are not."""
    old = build_before(tmp_path / "old")
    async with running(tmp_path / "c") as (cluster, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", PROGRAM, cluster.bootstrap),
            env=os.environ | of(old),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert (process.returncode, output.decode().split()) == (
        0,
        [str(old / "quorumlog/__init__.py")],
    )


@pytest.mark.long
async def test_an_upgrade_of_master_and_slaves_is_finalized(tmp_path: Path) -> None:
    new = build_after(tmp_path / "new")
    async with (
        running(tmp_path / "c", replication="sync_master") as (cluster, client),
        Workload(client) as work,
    ):
        await roll(cluster, work, new, 1, 2)
        code, text = await asyncio.to_thread(qlog, cluster, "finalize", "--yes")
        assert (code, "waits for node 3 to get a build" in text) == (ExitCode.REFUSED, True), text
        await roll(cluster, work, new, 3)
        assert await client.admin.finalize_upgrade() == LEVEL + 1
        await work.acked(50)
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.start, 1)
        await eventually(lambda: not cluster.is_alive(1), "the older build ends")
        assert cluster.exit_code(1) == EXIT_BAD_CONFIG
        await asyncio.to_thread(cluster.start, 1, environment=of(new))
        await asyncio.to_thread(cluster.wait_ready)
        history = await work.stop()
        numbers = await read_all(client, history, None)
        assert history.acked <= set(numbers)
        assert len(set(numbers)) == len(numbers)
        for node_id in cluster.node_ids:
            assert await read_all(client, history, node_id) == numbers


async def test_a_group_of_one_build_has_nothing_to_finalize(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        assert await client.admin.finalize_upgrade() == LEVEL
        code, text = await asyncio.to_thread(qlog, cluster, "status")
        assert (code, text.splitlines()[-1]) == (
            0,
            f"broker group g0 works at level {LEVEL}: there is nothing to finalize",
        )
        code, text = await asyncio.to_thread(qlog, cluster, "finalize", "-o", "json")
        assert (code, json.loads(text)) == (0, [{"broker_group": "g0", "level": LEVEL}])
        await asyncio.to_thread(cluster.kill, 3)
        code, text = await asyncio.to_thread(qlog, cluster, "status")
        assert "there is nothing to finalize" in text
        with pytest.raises(ServerError, match="node 3 is not connected"):
            await client.admin.finalize_upgrade()
