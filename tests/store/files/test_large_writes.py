"""Large writes are synced piece by piece: no single sync has much to do."""

from pathlib import Path

import pytest

from store.files import zeros
from store.files.file_system import FileSystem
from store.files.zeros import CHUNK_SIZE_BYTES, zero_range
from store.log import cut_file
from store.log.cut_file import read_cut_file, write_cut_file

SYNC = 2 * CHUNK_SIZE_BYTES


class Counting(FileSystem):
    """Knows how much each sync had to do."""

    def __init__(self) -> None:
        self.unsynced = 0
        self.synced: list[int] = []

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        super().write_at(fd, path, position, data)
        self.unsynced += len(data)

    def sync(self, fd: int, path: str) -> None:
        super().sync(fd, path)
        self.synced.append(self.unsynced)
        self.unsynced = 0


@pytest.fixture
def fs(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(zeros, "SYNC_SIZE_BYTES", SYNC)
    monkeypatch.setattr(cut_file, "SYNC_SIZE_BYTES", SYNC)
    monkeypatch.setattr(cut_file, "_READ_SIZE_BYTES", CHUNK_SIZE_BYTES // 2)
    return Counting()


@pytest.mark.parametrize(("lo", "hi"), [(0, 5), (1, 4), (2, 4), (3, 3)])
def test_zeros_are_durable_whatever_their_number(
    tmp_path: Path, fs: Counting, lo: int, hi: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 6 * CHUNK_SIZE_BYTES)
    fd = fs.open(str(path))
    zero_range(fs, fd, str(path), lo * CHUNK_SIZE_BYTES + 7, hi * CHUNK_SIZE_BYTES + 7)
    zero_range(fs, fd, str(path), lo * CHUNK_SIZE_BYTES + 7, hi * CHUNK_SIZE_BYTES + 7)
    fs.close(fd)
    assert path.read_bytes().count(0) == (hi - lo) * CHUNK_SIZE_BYTES
    assert fs.unsynced == 0
    assert all(0 < one <= SYNC for one in fs.synced)


def test_cut_off_bytes_are_set_aside_in_pieces(tmp_path: Path, fs: Counting) -> None:
    lo, hi = 7, 7 + 5 * CHUNK_SIZE_BYTES
    data = bytes(range(256)) * (5 * CHUNK_SIZE_BYTES // 256)

    def read(position: int, size_bytes: int) -> bytes:
        return data[position - lo : position - lo + size_bytes]

    cut = write_cut_file(fs, str(tmp_path), epoch=1, lo=lo, hi=hi, read=read, now_unix_ms=1)
    assert b"".join(piece for _, piece in read_cut_file(fs, cut.path)) == data
    assert fs.unsynced == 0
    assert len(fs.synced) == 3
    assert max(fs.synced) <= SYNC + CHUNK_SIZE_BYTES // 2
