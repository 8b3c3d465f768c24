"""How an operator looks for damage in the files of a node that runs, as docs/operations.md says."""

import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from quorumlog import sync
from quorumlog.command_errors import ExitCode
from tests.qlog.running import Qlog
from tests.store.fsck_stores import flip, log_files

pytestmark = pytest.mark.long

COUNT = 6_000
SETTINGS = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "64KiB"}


def copied(root: Path, to: Path) -> Path:
    """Copy as the document says; the second command may miss files that are gone by then."""
    to.mkdir()
    subprocess.run(["cp", "-a", root / "marks", to], check=True)
    copy = ["cp", "-an", "--sparse=always", f"{root}/.", str(to)]
    subprocess.run(copy, check=False, stderr=subprocess.DEVNULL)
    return to


def damage(qlog: Qlog, directory: Path) -> list[str]:
    """The files in which something durable is damaged."""
    done = qlog("store", "verify", directory, "-o", "json", code=None)
    assert done.exit_code in (ExitCode.OK, ExitCode.FINDINGS), done.stderr
    problems = json.loads(done.stdout)["findings"]
    return [one["file"] for one in problems if one["severity"] == "damage"]


@contextmanager
def writing(client: sync.Client) -> Iterator[None]:
    """Have messages arrive meanwhile, one after the other."""
    is_over = threading.Event()

    def write() -> None:
        with client.producer() as producer:
            while not is_over.is_set():
                producer.send("orders", bytes(1_000))

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            yield
        finally:
            is_over.set()
            writer.result()


def test_a_copy_of_a_live_directory_shows_damage_that_a_read_has_repaired(tmp_path: Path) -> None:
    with (
        LocalCluster.create(tmp_path / "cluster", 3, settings=SETTINGS) as nodes,
        sync.connect(nodes.bootstrap, timeout_ms=60_000) as client,
    ):
        qlog = Qlog(nodes)
        client.admin.create_topic("orders", queue_count=1)
        with client.producer() as producer:
            for n in range(COUNT):
                last = producer.send_nowait("orders", b"%08d" % n * 128)
        node = next(n for n in nodes.node_ids if n != nodes.leader_id())
        with client.pull_consumer(
            "orders",
            until="end",
            consistency="local",
            at_least_index=last.result().index,
            node_id=node,
        ) as consumer:
            assert sum(1 for _ in consumer) == COUNT
        root = nodes.node_directory(node) / "data"
        refused = qlog("store", "verify", root, code=ExitCode.FAILED)
        assert "is locked by process" in refused.stderr

        with writing(client):
            assert damage(qlog, copied(root, tmp_path / "whole")) == []
            sealed = log_files(root)[1]
            flip(root / sealed, 8 * 300_000)
            assert damage(qlog, copied(root, tmp_path / "damaged")) == [sealed]

        nodes.restart(node)
        nodes.wait_ready()
        read = ("consume", "orders", "--node", node, "--until", "end")
        qlog(*read)  # The consumer asks again while the node fetches the entry from its peers.
        nodes.stop(node)
        assert damage(qlog, root) == []
