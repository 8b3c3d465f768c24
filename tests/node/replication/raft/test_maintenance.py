"""Checkpoints under `flush=async`: a state on the disk is never ahead of its log there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.errors.common import ShuttingDownError
from node.state.checkpoint_files import CheckpointFiles
from node.state.state import StateImage
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
from tests.node.delayed import on_loop

CONFIG: Any = {"flush": "async", "flush_interval_ms": 60_000, "flush_thorough_interval_ms": 600_000}


def note_saves(node: Fixture, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets, at each save, what the state has applied and what is durable."""
    saves: list[tuple[int, int]] = []
    save = CheckpointFiles.save

    def noting(files: CheckpointFiles, image: StateImage, unix_ms: int) -> None:
        saves.append((image.applied_index, node.log.durable_index))
        save(files, image, unix_ms)

    monkeypatch.setattr(CheckpointFiles, "save", noting)
    return saves


@on_loop
async def test_a_checkpoint_waits_until_its_log_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path, **CONFIG) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        saves = note_saves(node, monkeypatch)
        await node.append(0, 5)
        applied_index = node.machine.applied_index
        assert node.log.durable_index < applied_index, "the log is not durable by itself"

        await maintenance.steps.checkpoint()

        [(saved_index, durable_index)] = saves
        assert saved_index == applied_index
        assert durable_index >= saved_index
        await maintenance.stop()
    assert not fatal


@on_loop
async def test_no_checkpoint_of_a_log_that_could_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_at(tmp_path, **CONFIG) as node:
        maintenance = maintenance_of(node, tmp_path, [])
        saves = note_saves(node, monkeypatch)
        await node.append(0, 5)

        def fails(on_synced: Callable[[StoreError | None], None]) -> None:
            on_synced(SyncFailedError("log", 5))

        with monkeypatch.context() as patched:
            patched.setattr(node.log.store, "request_sync", fails)
            with pytest.raises(SyncFailedError):
                await maintenance.steps.checkpoint()
        assert saves == []
        await maintenance.stop()
        assert len(saves) == 1, "tried again when it stopped, with a log that can be synced"


class Damaged:
    """Notes what a step found to be damaged."""

    def __init__(self) -> None:
        self.found: list[CorruptionError | DerivedFileError] = []

    def __call__(self, error: CorruptionError | DerivedFileError) -> None:
        self.found.append(error)


@on_loop
async def test_a_step_without_room_is_postponed_and_one_with_a_bug_ends_the_node(
    tmp_path: Path,
) -> None:
    fatal: list[BaseException] = []
    async with node_at(tmp_path) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        damaged = Damaged()
        maintenance._on_damage = damaged
        corruption = CorruptionError("file", 7, "body CRC", "1", "2")
        troubles = (StoreFullError("x", 2, 1), FileSystemError("read", "x", 5), corruption)
        for count, trouble in enumerate(troubles, 1):

            async def fails(trouble: StoreError = trouble) -> None:
                raise trouble

            await maintenance._step("checkpoint", fails)
            assert maintenance.postponed_count == count
        assert damaged.found == [corruption], "only damage is repaired"
        assert not fatal

        async def is_wrong() -> None:
            raise KeyError("a bug")

        await maintenance._step("checkpoint", is_wrong)
        assert [type(error) for error in fatal] == [KeyError]
        await maintenance.stop()
        with pytest.raises(ShuttingDownError):
            await maintenance.on_thread(lambda: None)


@on_loop
async def test_files_that_went_are_gone_from_the_disk(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    async with node_at(
        tmp_path, flush="sync", retention_size_bytes=8 * 4096, retention_interval_ms=0
    ) as node:
        maintenance = maintenance_of(node, tmp_path, fatal)
        await fill(node, 5)
        assert await delete_expired(node, maintenance) > 0
        ledger = node.log.store.ledger
        names = FileSystem().list_directory(ledger.files.directory)
        assert min(names) == f"{ledger.files.min_position:020d}"
        assert not ledger.has_detached
        await maintenance.stop()
    assert not fatal
