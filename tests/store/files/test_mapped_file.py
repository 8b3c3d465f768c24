"""One file and the rolling sequence: positions, views that outlive files, cuts, failed calls."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import (
    ClosedError,
    FileSystemError,
    LayoutError,
    PositionRangeError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.mapped_file import create_file
from store.files.mapped_file_queue import MappedFileQueue
from tests.store.listing import names

SIZE = 8192
FS = FileSystem()


def new_queue(path: Path) -> MappedFileQueue:
    queue = MappedFileQueue(FS, str(path), SIZE)
    queue.load()
    return queue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[MappedFileQueue]:
    opened = new_queue(tmp_path)
    yield opened
    opened.close()


def fill(queue: MappedFileQueue, count: int) -> None:
    """Append `count` full files of a repeated number."""
    for number in range(count):
        queue.roll().append(bytes([number + 1]) * SIZE)


def test_files_are_named_by_their_first_position_and_fully_allocated(
    queue: MappedFileQueue, tmp_path: Path
) -> None:
    fill(queue, 2)
    assert names(tmp_path) == ["00000000000000000000", "00000000000000008192"]
    for entry in tmp_path.iterdir():
        assert entry.stat().st_size == SIZE
        assert entry.stat().st_blocks * 512 >= SIZE, "a hole would be a SIGBUS on a full disk"


def test_a_cut_of_a_file_that_grows_needs_no_room(tmp_path: Path) -> None:
    queue = MappedFileQueue(FS, str(tmp_path), 8 << 20)
    path = Path(queue.roll().path)
    queue.make_room(3 << 20)
    queue.files[0].append(bytes([1]) * (3 << 20))
    block_count = path.stat().st_blocks
    queue.truncate(5 << 19)
    assert path.stat().st_blocks == block_count < (8 << 20) // 512
    queue.close()


def test_a_first_file_may_start_anywhere_on_a_file_boundary(queue: MappedFileQueue) -> None:
    assert queue.roll(3 * SIZE + 17).position == 3 * SIZE
    assert (queue.min_position, queue.max_position, queue.flushed_position) == (3 * SIZE,) * 3


def test_bytes_are_readable_once_written_and_durable_once_synced(queue: MappedFileQueue) -> None:
    file = queue.roll()
    assert file.append(b"abc") == 0
    assert file.append(b"defg") == 3
    assert (queue.max_position, queue.flushed_position) == (7, 0)
    assert queue.read(2, 3) == b"cde"
    assert queue.sync() == 7 == queue.flushed_position
    with pytest.raises(PositionRangeError, match=r"outside of \[0, 7\)"):
        queue.read(5, 3)
    with pytest.raises(PositionRangeError):
        queue.read(SIZE, 1)


def test_a_sync_covers_files_that_were_rolled_meanwhile(queue: MappedFileQueue) -> None:
    fill(queue, 3)
    queue.roll().append(b"tail")
    assert queue.sync() == 3 * SIZE + 4
    queue.seal_complete()
    assert queue.read(SIZE, 4) == b"\2\2\2\2", "a sealed file is read without its map"
    with queue.view(SIZE + 1, 2) as data:
        assert bytes(data) == b"\2\2"


def test_a_view_survives_close_and_delete_of_its_file(
    queue: MappedFileQueue, tmp_path: Path
) -> None:
    fill(queue, 2)
    first = queue.files[0]
    view, other = queue.view(10, 3), queue.view(20, 3)
    assert first.hold_count == 2
    assert queue.delete_first() == SIZE
    assert names(tmp_path) == ["00000000000000008192"]
    assert bytes(view.data) == b"\1\1\1"
    with pytest.raises(PositionRangeError):
        queue.view(10, 3)
    with pytest.raises(ClosedError):
        first.view(10, 3)
    view.release()
    view.release()
    assert (first.hold_count, bytes(other.data)) == (1, b"\1\1\1")
    leaked = other.data[1:]
    other.release()
    assert first.hold_count == 0
    assert bytes(leaked) == b"\1\1", "even a slice that was kept stays valid"


def test_a_view_that_cannot_be_mapped_holds_nothing(queue: MappedFileQueue) -> None:
    fill(queue, 2)
    queue.sync()
    queue.seal_complete()
    with failpoints.armed("fs.map=EIO"), pytest.raises(FileSystemError):
        queue.view(10, 3)
    assert queue.files[0].hold_count == 0
    with queue.view(10, 3) as data:
        assert bytes(data) == b"\1\1\1"


def test_the_last_file_is_never_deleted(queue: MappedFileQueue) -> None:
    fill(queue, 1)
    assert queue.delete_first() == 0
    assert len(queue.files) == 1


@pytest.mark.parametrize("position", [0, 1, SIZE - 1, SIZE, SIZE + 5, 2 * SIZE, 3 * SIZE])
def test_a_cut_removes_later_files_and_zeroes_the_rest(
    queue: MappedFileQueue, tmp_path: Path, position: int
) -> None:
    fill(queue, 3)
    queue.sync()
    queue.truncate(position)
    assert queue.max_position == queue.flushed_position == queue.wrote_position == position
    content = b"".join((tmp_path / name).read_bytes() for name in names(tmp_path))
    expected = b"".join(bytes([n + 1]) * SIZE for n in range(3))[:position]
    assert content.rstrip(b"\0") == expected
    assert len(content) % SIZE == 0


def test_a_file_that_was_sealed_is_written_again_after_a_cut(queue: MappedFileQueue) -> None:
    fill(queue, 2)
    queue.sync()
    queue.seal_complete()
    queue.truncate(100)
    assert queue.files[-1].append(b"again") == 100
    assert queue.read(98, 7) == b"\1\1again"


def test_load_refuses_gaps_and_odd_sizes_and_clears_leftovers(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 3)
    queue.close()
    (tmp_path / "00000000000000024576").write_bytes(b"")
    queue = new_queue(tmp_path)
    assert len(queue.files) == 3
    assert len(names(tmp_path)) == 3
    queue.close()
    (tmp_path / "00000000000000008192").rename(tmp_path / "kept")
    with pytest.raises(LayoutError, match="the next file to be 00000000000000008192"):
        new_queue(tmp_path)
    (tmp_path / "00000000000000008192").write_bytes(b"short")
    with pytest.raises(LayoutError, match="expected 8192 bytes, found 5 bytes"):
        new_queue(tmp_path)


def test_a_failed_sync_moves_no_mark(queue: MappedFileQueue) -> None:
    queue.roll().append(b"x")
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError) as caught:
        queue.sync()
    assert caught.value.outcome.value == "unknown"
    assert queue.flushed_position == 0


def test_bytes_found_by_an_opening_are_durable_before_a_read(tmp_path: Path) -> None:
    """The bytes of a process that was killed may be in the page cache only: recovery accepts them,
    and a power loss after that would take them away."""
    synced: list[str] = []

    class NotingFileSystem(FileSystem):
        def sync(self, fd: int, path: str) -> None:
            synced.append(path)
            super().sync(fd, path)

    queue = new_queue(tmp_path)
    fill(queue, 2)
    queue.close()
    again = MappedFileQueue(NotingFileSystem(), str(tmp_path), SIZE)
    again.load()
    assert sorted(synced) == [str(tmp_path / name) for name in names(tmp_path)]
    again.close()
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError):
        MappedFileQueue(FS, str(tmp_path), SIZE).load()


@pytest.mark.parametrize("size_bytes", [16 * 1024 - 1, 16 * 1024, 100_000])
@pytest.mark.parametrize("failpoint", [None, FileSystemError, StoreFullError])
def test_pieces_of_any_size_are_seen_by_readers_also_when_a_call_fails(
    tmp_path: Path, size_bytes: int, failpoint: type[StoreError] | None
) -> None:
    """Large ones are written by a call, and through the map if it fails."""
    file = create_file(FS, str(tmp_path), 0, 1 << 20, warm_up=False)
    pieces = [bytes([number]) * (size_bytes + number) for number in range(1, 6)]
    for number, piece in enumerate(pieces):
        with pytest.MonkeyPatch.context() as patch:
            if failpoint is not None and number % 2:
                patch.setattr(file, "_fs", FailingWrites(failpoint))
            at = file.append(piece)
        assert at == sum(map(len, pieces[:number]))
        with file.view(at, len(piece)) as view:
            assert bytes(view) == piece
        assert file.read(at, len(piece)) == piece
    file.close()
    written = b"".join(pieces)
    assert (tmp_path / "00000000000000000000").read_bytes() == written.ljust(1 << 20, b"\0")


class FailingWrites(FileSystem):
    """A file system of which every write fails, after half of its bytes."""

    def __init__(self, kind: type[StoreError]) -> None:
        self._kind = kind

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        super().write_at(fd, path, position, data[: len(data) // 2])
        if self._kind is StoreFullError:
            raise StoreFullError(path, len(data), 0)
        raise FileSystemError("write", path, errno.EIO)
