"""The fence of a node: on disk, also when the disk is full for a moment, and what it says."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from node.replication.raft.digests.fence import StateFence
from node.replication.raft.opening import BUILT_ANEW, open_state
from node.replication.raft.storage.hard_state import NodeFile
from store.errors import StoreFullError, SyncFailedError
from store.files.file_system import FileSystem
from store.files.meta_file import Json
from tests.node.checkpoints import saved
from tests.node.commands import SMALL_LIMITS
from tests.node.ledger_cluster import crash, open_log
from tests.node.state.test_checkpoint_files import OLD


class Seen(list[bool]):
    """The changes that a fence reports."""


def opened(root: Path) -> tuple[NodeFile, StateFence, Seen]:
    seen = Seen()
    file = NodeFile(FileSystem(), str(root))
    file.load("c", 1, must_exist=False)
    return file, StateFence(file, seen.append), seen


def test_fence_is_there_again_after_a_restart_until_it_is_lifted(tmp_path: Path) -> None:
    _, fence, seen = opened(tmp_path)
    assert (fence.problem, fence.error(), seen) == ("", None, [False])
    fence.close("topics", 7)
    fence.close("pop", 9)
    assert seen == [False, True], "the first reason stays"
    _, fence, seen = opened(tmp_path)
    assert (fence.reason, seen) == ("topics behind log position 7", [True])
    assert "differs from that of a majority: topics behind log position 7" in fence.problem
    error = fence.error()
    assert error is not None
    assert (error.code, error.retryable) == ("node.state_diverged", True)
    assert "topics behind log position 7" in str(error)
    for position in (3, 7):
        fence.lift(position)
        assert fence.reason, "points that it passes again, since its state is built anew"
    fence.lift(8)
    fence.lift(8)
    assert seen == [True, False]
    assert opened(tmp_path)[1].reason == ""


def test_fence_stands_without_room_for_it_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fence, seen = opened(tmp_path)
    file.save(file.record)

    def full(payload: Mapping[str, Json]) -> None:
        raise StoreFullError("/disk", 1, 0)

    monkeypatch.setattr(file._meta, "save", full)
    fence.close("topics", 7)
    assert (fence.reason, seen) == ("topics behind log position 7", [False, True])
    assert opened(tmp_path)[1].reason == ""


def test_sync_that_fails_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fence, seen = opened(tmp_path)

    def fail(payload: Mapping[str, Json]) -> None:
        raise SyncFailedError("/disk", 5)

    monkeypatch.setattr(file._meta, "save", fail)
    with pytest.raises(SyncFailedError):
        fence.close("topics", 7)
    assert seen == [False, True]


def test_state_is_built_anew_once_for_a_fence(tmp_path: Path) -> None:
    """A node that is restarted again and again fills no disk with evidence."""
    log = open_log(tmp_path)
    log.found((1,))
    StateFence(log.node_file, lambda _: None).close("topics", 7)
    saved(tmp_path, OLD)
    for _ in range(3):
        _, machine = open_state(FileSystem(), str(tmp_path), log, SMALL_LIMITS)
        assert machine.applied_index == -1
        assert log.node_file.record.state_fence == f"topics behind log position 7{BUILT_ANEW}"
        assert len(list((tmp_path / "damaged").iterdir())) == 1
    crash(log)
