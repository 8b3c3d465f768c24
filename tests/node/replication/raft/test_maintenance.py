"""Checkpoints and retention: on the disk no state is ahead of its log, and no log begins behind
its state or what a follower needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.errors.common import ShuttingDownError
from node.replication.maintenance import Maintenance
from node.replication.raft.maintenance import RaftSteps
from node.replication.raft.storage.snapshot import Snapshot, encode_snapshot
from node.state.checkpoint_files import CheckpointFiles
from node.state.image import encode_image
from node.state.state import StateImage
from raft.messages import SnapshotMeta
from raft.state.progress import Progress
from store.errors import (
    CorruptionError,
    DerivedFileError,
    FileSystemError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files.file_system import FileSystem
from tests.node.broker.delay.test_retention import delete_expired, fill, maintenance_of
from tests.node.broker_fakes import Fixture, node_at
from tests.node.replication.raft.storage.test_snapshot import MEMBERS

CONFIG: Any = {"flush": "async", "flush_interval_ms": 60_000, "flush_thorough_interval_ms": 600_000}


async def test_a_checkpoint_waits_until_its_log_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path, **CONFIG) as node:
        maintenance, store = maintenance_of(node, tmp_path, fatal), node.log.store
        saves: list[tuple[int, int]] = []
        save = CheckpointFiles.save

        def noting(files: CheckpointFiles, image: StateImage, unix_ms: int) -> None:
            saves.append((image.applied_index, store.durable_index))
            save(files, image, unix_ms)

        def fails(on_synced: Callable[[StoreError | None], None]) -> None:
            on_synced(SyncFailedError("log", 5))

        monkeypatch.setattr(CheckpointFiles, "save", noting)
        await node.append(0, 5)
        applied_index = node.machine.applied_index
        assert store.durable_index < applied_index, "the log is not durable by itself"
        with monkeypatch.context() as patched:
            patched.setattr(store, "request_sync", fails)
            with pytest.raises(SyncFailedError):
                await maintenance.steps.checkpoint()
        assert saves == []
        await maintenance.stop()  # With a log that can be synced.
        [(saved_index, durable_index)] = saves
        assert durable_index >= saved_index == applied_index
    assert not fatal


async def test_a_step_without_room_is_postponed_and_one_with_a_bug_ends_the_node(
    tmp_path: Path,
) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        damaged = list[CorruptionError | DerivedFileError]()
        maintenance._on_damage = damaged.append
        corruption = CorruptionError("file", 7, "body CRC", "1", "2")
        troubles = (StoreFullError("x", 2, 1), FileSystemError("read", "x", 5), corruption)
        for trouble in troubles:

            async def fails(trouble: StoreError = trouble) -> None:
                raise trouble

            await maintenance.step("checkpoint", fails)
        assert damaged == [corruption], "only damage is repaired"
        assert not fatal

        async def is_wrong() -> None:
            raise KeyError("a bug")

        await maintenance.step("checkpoint", is_wrong)
        assert [type(error) for error in fatal] == [KeyError]
        await maintenance.stop()
        with pytest.raises(ShuttingDownError):
            await maintenance.on_thread(lambda: None)


async def test_a_snapshot_that_is_installed_beside_a_checkpoint_is_not_taken_for_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is the only copy of its state until a checkpoint of it is on the disk."""
    fatal: list[BaseException] = []
    async with node_at(tmp_path) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        steps = maintenance.steps
        install(node, 500)
        on_thread = steps.thread.on_thread

        async def install_behind(work: Callable[[], Any]) -> Any:
            result = await on_thread(work)
            install(node, 600)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(steps.thread, "on_thread", install_behind)
            await steps.checkpoint()
        assert kept(node, maintenance) == (500, 600)
        await steps.checkpoint()
        assert kept(node, maintenance) == (600, None)
        await maintenance.stop()
    assert not fatal


def kept(node: Fixture, maintenance: Maintenance[RaftSteps]) -> tuple[int, int | None]:
    """Return how far the checkpoint is, and the last entry of the snapshot whose file is kept."""
    installed = node.log.received.installed
    assert maintenance.steps.is_checkpoint_urgent == (installed is not None)
    return maintenance.steps._files.applied_index, installed and installed.meta.index


def install(node: Fixture, index: int) -> None:
    """Replace the log and the state by a snapshot that ends with an entry."""
    meta = SnapshotMeta(index, 9, MEMBERS)
    state = encode_image(node.machine.image()._replace(applied_index=index))
    node.log.install_snapshot(
        meta, encode_snapshot(Snapshot(meta, index << 12, 7, {(b"orders", 0): 400}, index, state))
    )
    node.machine.restore(node.log.installed_state(), index)


async def test_files_stay_as_long_as_a_follower_needs_them(tmp_path: Path) -> None:
    async with node_at(
        tmp_path, flush="sync", retention_size_bytes=8 * 4096, retention_interval_ms=0
    ) as node:
        maintenance = maintenance_of(node, tmp_path, [])
        replica: Any = maintenance.steps._replica
        replica.progress[2] = follower = Progress(2, 0, 0)
        assert await delete_expired(node, maintenance) == 0
        assert replica.snapshot is None, "no file is due"
        await fill(node, 5)
        assert await delete_expired(node, maintenance) == 0, "an empty follower needs all of them"
        follower.match = node.log.last_index
        assert await delete_expired(node, maintenance) > 0
        ledger = node.log.store.ledger
        names = FileSystem().list_directory(ledger.files.directory)
        assert min(names) == f"{ledger.files.min_position:020d}", "on the disk, too"
        assert not ledger.has_detached
        await maintenance.stop()
