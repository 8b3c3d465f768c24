"""A cluster that was destroyed by a forged term, and its way back: real nodes, the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import quorumlog
from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from node.config.load import load
from node.config.settings import Settings
from node.replication.ha.core.types import HaBinding
from node.replication.ha.storage.epoch_file import BindingFile
from node.replication.lives_file import LivesFile
from node.replication.raft.storage.hard_state import NodeFile
from qlog import main
from store.files.file_system import FileSystem
from tests.patience import wait_for

pytestmark = pytest.mark.long
ABSURD = (1 << 63) - 1


def qlog(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="qlog")


def settings_file(cluster: LocalCluster, node: int) -> Path:
    return cluster.node_directory(node) / "node.toml"


def settings_of(cluster: LocalCluster, node: int) -> Settings:
    return load(settings_file(cluster, node), {}, {}).settings


def forge_term(settings: Settings) -> None:
    """What one vote request did to each node before it was refused."""
    node_file = NodeFile(FileSystem(), str(settings.directory))
    hard_state = node_file.load_any().hard_state
    node_file.save_hard_state(hard_state._replace(term=ABSURD, vote=3))
    forge_memory(settings, ABSURD)


def forge_epoch(settings: Settings) -> None:
    file = BindingFile(FileSystem(), str(settings.directory))
    state = file.load(must_exist=True)
    assert state is not None
    file.lower(state._replace(bound=HaBinding((1 << 31) - 1, 2, 7)))
    forge_memory(settings, (1 << 31) - 1)


def forge_memory(settings: Settings, term: int) -> None:
    """The others were seen in it, too."""
    file = LivesFile(FileSystem(), str(settings.directory))
    found = file.load(settings.cluster_id, settings.node_id)
    assert found.known
    known = {node: one._replace(term=term) for node, one in found.known.items()}
    file.save(replace(found, known=known))


def send(cluster: LocalCluster, bodies: list[bytes]) -> None:
    async def work() -> None:
        async with (
            quorumlog.connect(cluster.bootstrap, cluster_id=cluster.cluster_id) as client,
            client.producer() as producer,
        ):
            for body in bodies:
                await producer.send("orders", body, queue_id=0)

    asyncio.run(work())


def read(cluster: LocalCluster) -> list[bytes]:
    async def work() -> list[bytes]:
        async with quorumlog.connect(cluster.bootstrap, cluster_id=cluster.cluster_id) as client:
            batch = await client.pull("orders", 0, 0, consistency="linearizable")
            return batch.bodies()

    return asyncio.run(work())


def has_ended(cluster: LocalCluster, node: int) -> bool:
    return cluster.exit_code(node) == 65


def create_topic(cluster: LocalCluster) -> None:
    made = qlog("topic", "create", "orders", "--queues", "1", "--server", cluster.bootstrap)
    assert made.exit_code == 0, made.output


@pytest.mark.parametrize(
    ("replication", "forge", "what"),
    [("raft", forge_term, "term"), ("sync_master", forge_epoch, "epoch")],
)
def test_a_destroyed_group_comes_back_with_all_that_was_acked(
    tmp_path: Path, replication: str, forge: Callable[[Settings], None], what: str
) -> None:
    with LocalCluster.create(tmp_path / "c", 3, replication=replication) as cluster:
        cluster.wait_ready()
        create_topic(cluster)
        bodies = [b"%d" % number for number in range(20)]
        send(cluster, bodies)
        before = max(int(metric_of(cluster, n, "quorumlog_term")) for n in cluster.node_ids)
        running = qlog("term", "seal", "--config", str(settings_file(cluster, 1)))
        assert running.exit_code == 3
        assert "store.locked" in running.output
        cluster.stop()
        for node in cluster.node_ids:
            forge(settings_of(cluster, node))
        for node in cluster.node_ids:  # No restart helps, and each says what does.
            cluster.start(node)
            wait_for(f"the end of node {node}", partial(has_ended, cluster, node))
            log = cluster.log_path(node).read_text()
            assert "node.term_end" in log
            assert f"{what} " in log
            assert "qlog term" in log
        statements = []
        for node in cluster.node_ids:
            statements.append(str(tmp_path / f"node-{node}.json"))
            config = str(settings_file(cluster, node))
            done = qlog("term", "seal", "--config", config, "--statement", statements[-1])
            assert done.exit_code == 0, done.output
        cluster.start(1)
        wait_for("the end of node 1", partial(has_ended, cluster, 1))
        assert "node.sealed" in cluster.log_path(1).read_text()
        refused = qlog("term", "lower", "--config", str(settings_file(cluster, 1)), *statements[:2])
        assert refused.exit_code == 3
        assert "members [3]" in refused.output
        terms = []
        for node in cluster.node_ids:
            config = str(settings_file(cluster, node))
            done = qlog("term", "lower", "--config", config, *statements, "-o", "json")
            assert done.exit_code == 0, done.output
            terms.append(json.loads(done.stdout)["term"])
        assert len(set(terms)) == 1
        assert 1 < terms[0] < before + 20
        cluster.start(*cluster.node_ids)
        cluster.wait_ready()
        assert read(cluster) == bodies
        send(cluster, [b"more"])
        assert read(cluster) == [*bodies, b"more"]
