"""A checkpoint of the state that is damaged: built anew from the whole log, or refused."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.replication.raft.opening import load_checkpoint
from node.state.checkpoint_files import CheckpointFiles
from quorumlog.cluster.channels import stub
from quorumlog.pb import consumer_pb2
from store.errors import CorruptionError, FileSystemError, SyncFailedError
from store.files.failpoints import armed, census
from store.files.file_system import FileSystem
from tests.node.checkpoints import saved
from tests.node.processes import NodeClient, SingleNode, run_to_end
from tests.node.state.test_checkpoint_files import NEW, OLD, rewrite_manifest
from tests.patience import PATIENCE_S, wait_for
from tests.store.overwrites import flip

SMALL = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}


def damage(config: Path) -> list[Path]:
    """Change a byte in the middle of each file of the newest generation and its manifests."""
    files = sorted(config.glob("*.json")) + sorted(config.glob("stateCheckpoint.*"))
    assert len(files) > 5, files
    for path in files:
        flip(path, path.stat().st_size // 2)
    return files


def consumer_calls(client: NodeClient) -> Any:
    return stub(client.channel, consumer_pb2.DESCRIPTOR)


def offset_of(client: NodeClient, group: str) -> int:
    request = consumer_pb2.FetchOffsetsRequest(group=group)
    response = consumer_calls(client).FetchOffsets(request, timeout=PATIENCE_S)
    offset: int = response.offsets[0].offset
    return offset


@pytest.mark.long
def test_a_node_builds_its_state_from_the_log(tmp_path: Path) -> None:
    node = SingleNode(tmp_path / "data", **SMALL)
    with node:
        with node.client() as client:
            client.create_topic("orders")
            client.append("orders", b"a", b"b")
            request = consumer_pb2.CommitOffsetsRequest(group="readers")
            request.offsets.add(topic="orders", queue_id=0, offset=2)
            consumer_calls(client).CommitOffsets(request, timeout=PATIENCE_S)
        assert node.stop() == 0
        damaged = {path.name: path.read_bytes() for path in damage(tmp_path / "data" / "config")}
        node.start()
        with node.client() as client:
            assert client.append("orders", b"c").queues[0].first_offset == 2
            assert offset_of(client, "readers") == 2
        assert "the state is built from the log" in node.log_path.read_text()
        (aside,) = (tmp_path / "data" / "damaged").iterdir()
        assert {name: (aside / name).read_bytes() for name in damaged} == damaged
        assert node.stop() == 0  # Which saves a checkpoint.
        assert {path.name for path in (tmp_path / "data" / "config").iterdir()} >= damaged.keys()
        node.start()
        assert len(list((tmp_path / "data" / "damaged").iterdir())) == 1


@pytest.mark.long
def test_a_log_whose_beginning_is_gone_does_not_do(tmp_path: Path) -> None:
    flags = {**SMALL, "retention_size_bytes": "2MiB"}
    node, body = SingleNode(tmp_path / "data", **flags), Random(3).randbytes(100 * 1024)
    with node, node.client() as client:
        client.create_topic("orders")
        for _ in range(60):
            client.append("orders", body)
        wait_for("retention", lambda: client.status().first_index > 15)
        assert node.stop() == 0
    before = {path: path.read_bytes() for path in damage(tmp_path / "data" / "config")}
    done = run_to_end(tmp_path / "data", None, **flags)
    assert done.returncode == 65
    assert "config" in done.stderr
    assert "restore a backup" in done.stderr, "nobody else has it"
    assert all(path.read_bytes() == data for path, data in before.items())
    shutil.rmtree(tmp_path / "data" / "config")
    done = run_to_end(tmp_path / "data", None, **flags)
    assert done.returncode == 65
    assert "applied index is -1" in done.stderr


def test_a_good_checkpoint_is_loaded(tmp_path: Path) -> None:
    saved(tmp_path, OLD, NEW)
    for is_needed in (False, True):
        assert load_checkpoint(FileSystem(), str(tmp_path), is_needed=is_needed)[1] == NEW


def test_a_crash_while_it_is_set_aside_can_be_repeated(tmp_path: Path) -> None:
    """Whatever fails on the way: the next start finds damage, or nothing at all."""
    saved(tmp_path / "counted", OLD)
    damage(tmp_path / "counted" / "config")
    with census() as passes:
        load_checkpoint(FileSystem(), str(tmp_path / "counted"), is_needed=False)
    for name, count in passes.items():
        for nth in range(1, count + 1):
            root = tmp_path / f"{name}{nth}"
            saved(root, OLD)
            files = len(damage(root / "config"))
            with armed(f"{name}=EIO@{nth}"), suppress(FileSystemError, SyncFailedError):
                load_checkpoint(FileSystem(), str(root), is_needed=False)
            checkpoint, image = load_checkpoint(FileSystem(), str(root), is_needed=False)
            assert image is None
            kept = [path for path in (root / "damaged").rglob("*") if path.is_file()]
            assert len(kept) == files
            checkpoint.save(NEW, 2)
            assert CheckpointFiles(FileSystem(), str(root)).load() == NEW


@pytest.mark.parametrize(
    "garble",
    [
        lambda found: found["files"].update({"newer.json": [1, 2, 3]}),
        lambda found: found["versions"].update({"newer": 1}),
    ],
)
def test_a_checkpoint_of_a_newer_version_is_no_damage(
    tmp_path: Path, garble: Callable[[dict[str, Any]], object]
) -> None:
    """What this version would make of that log is not what the newer one made of it."""
    rewrite_manifest(tmp_path, garble)
    with pytest.raises(CorruptionError, match="checkpoint"):
        load_checkpoint(FileSystem(), str(tmp_path), is_needed=False)
    assert not (tmp_path / "damaged").exists()


def test_a_directory_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    saved(tmp_path, OLD)
    with armed("fs.open=EIO"), pytest.raises(FileSystemError):
        load_checkpoint(FileSystem(), str(tmp_path), is_needed=False)
    assert not (tmp_path / "damaged").exists()
