"""Making a file of the log: whole under its final name, or not there at all (S10)."""

import errno
from pathlib import Path

import pytest

from store.errors import FileSystemError, StoreError, StoreFullError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file import create_file, prepare_file
from store.files.mapped_file_queue import MappedFileQueue
from store.files.staging import STAGING_DIRECTORY
from tests.store.fakes import CountingFileSystem
from tests.store.listing import names

SIZE = 8192
FS = FileSystem()


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize(
    ("failpoint", "error"),
    [
        ("fs.allocate=ENOSPC", StoreFullError),
        ("fs.allocate=short", StoreFullError),
        ("fs.allocate=EDQUOT", StoreFullError),
        ("fs.open=EMFILE", FileSystemError),
        ("fs.sync=EIO", SyncFailedError),
        ("fs.rename=EIO", FileSystemError),
    ],
)
def test_enospc_leaves_no_partial_file(
    tmp_path: Path, failpoint: str, error: type[StoreError], warm_up: bool
) -> None:
    queue = MappedFileQueue(FS, str(tmp_path), SIZE)
    queue.load()
    queue.roll().append(b"x" * SIZE)
    with failpoints.armed(failpoint), pytest.raises(error) as caught:
        create_file(FS, str(tmp_path), SIZE, SIZE, warm_up=warm_up)
    if isinstance(caught.value, StoreFullError):
        assert (caught.value.retryable, caught.value.needed_bytes) == (True, SIZE)
        assert ("ulimit -f" in str(caught.value)) == failpoint.endswith("EDQUOT")
    assert names(tmp_path) == ["00000000000000000000"]
    with failpoints.armed(failpoint), pytest.raises(error):
        queue.roll()
    assert names(tmp_path) == ["00000000000000000000"]
    assert queue.roll().position == SIZE, "the store recovers by itself"


@pytest.mark.parametrize("failpoint", ["fs.write=ENOSPC", "fs.write=short"])
def test_a_disk_that_fills_up_during_warm_up_leaves_nothing(tmp_path: Path, failpoint: str) -> None:
    with failpoints.armed(failpoint), pytest.raises(StoreFullError, match="free space"):
        create_file(FS, str(tmp_path), 0, SIZE, warm_up=True)
    assert names(tmp_path) == []


def test_a_crash_while_a_file_is_made_leaves_nothing_that_looks_like_one(tmp_path: Path) -> None:
    prepared = prepare_file(FS, str(tmp_path), 0, SIZE, warm_up=True)
    assert prepared is not None
    assert names(tmp_path) == [f"{STAGING_DIRECTORY}/00000000000000000000"]
    queue = MappedFileQueue(FS, str(tmp_path), SIZE)
    queue.load()
    assert names(tmp_path) == []
    assert queue.files == ()
    prepared.discard()


def test_a_prepared_file_is_zero_and_gets_its_name_when_published(tmp_path: Path) -> None:
    prepared = prepare_file(FS, str(tmp_path), SIZE, SIZE, warm_up=True)
    assert prepared is not None
    with failpoints.census() as calls:
        file = prepared.publish()
    assert (calls["fs.rename"], calls["fs.sync_directory"]) == (1, 1)
    assert names(tmp_path) == [f"{SIZE:020d}"]
    assert (tmp_path / f"{SIZE:020d}").read_bytes() == bytes(SIZE)
    assert (file.position, file.wrote_position, file.flushed_position) == (SIZE, SIZE, SIZE)
    file.close()


def test_a_file_whose_name_may_be_lost_is_not_handed_out(tmp_path: Path) -> None:
    with failpoints.armed("fs.sync_directory=EIO"), pytest.raises(SyncFailedError):
        create_file(FS, str(tmp_path), 0, SIZE, warm_up=False)


def test_a_cancelled_file_is_removed(tmp_path: Path) -> None:
    names_per_call = []

    def is_cancelled() -> bool:
        names_per_call.append(names(tmp_path))
        return True

    assert prepare_file(FS, str(tmp_path), 0, SIZE, warm_up=True, is_cancelled=is_cancelled) is None
    assert names_per_call == [[f"{STAGING_DIRECTORY}/00000000000000000000"]]
    assert names(tmp_path) == []


def filled(path: Path, fs: FileSystem = FS) -> MappedFileQueue:
    """Open a queue of three full files."""
    queue = MappedFileQueue(fs, str(path), SIZE)
    queue.load()
    for _ in range(3):
        queue.roll().append(b"x" * SIZE)
    queue.sync()
    return queue


def test_a_file_that_cannot_be_deleted_stays_in_the_queue(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    with failpoints.armed("fs.unlink=EACCES"), pytest.raises(FileSystemError) as caught:
        queue.delete_first()
    assert caught.value.errno_value == errno.EACCES
    assert (queue.min_position, queue.read(0, 1)) == (0, b"x")
    assert queue.delete_first() == SIZE
    queue.close()
    queue = MappedFileQueue(FS, str(tmp_path), SIZE)
    queue.load()
    assert queue.min_position == SIZE, "no gap"


def test_a_file_that_somebody_removed_by_hand_is_let_go(tmp_path: Path) -> None:
    """Its bytes stay on the disk as long as it is open, and that somebody wanted room."""
    fs = CountingFileSystem()
    queue = filled(tmp_path, fs)
    open_count = len(fs.open_fds)
    (tmp_path / names(tmp_path)[0]).unlink()
    queue.detach_first(1)
    queue.delete_detached()
    assert len(fs.open_fds) == open_count - 1
    queue.close()


def test_all_files_but_the_last_are_set_aside_and_deleted_later(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    queue = filled(tmp_path / "log")
    queue.set_first_aside()
    assert [file.position for file in queue.files] == [2 * SIZE]
    assert len(names(tmp_path / "aside")) == 2, "their bytes are kept"
    assert names(tmp_path / "log") == [f"{2 * SIZE:020d}"]
    queue.delete_aside()
    assert names(tmp_path / "aside") == []
    queue.close()
