"""The bounded set of open descriptors: reuse, eviction, and that nothing in use is closed."""

import os
from pathlib import Path

import pytest

from store.errors import FileSystemError
from store.files.descriptor_cache import DescriptorCache, affordable_count
from store.files.file_system import FileSystem
from tests.store.fakes import CountingFileSystem


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for n in range(5):
        (tmp_path / str(n)).write_text(str(n))
    return [str(tmp_path / str(n)) for n in range(5)]


def read(cache: DescriptorCache, path: str) -> str:
    with cache.use(path) as file:
        return os.pread(file.fd, 10, 0).decode()


def test_the_least_recently_used_file_is_closed_first(paths: list[str]) -> None:
    fs = CountingFileSystem()
    cache = DescriptorCache(fs, 3)
    for n in (0, 1, 2, 0, 3):
        assert read(cache, paths[n]) == str(n)
        assert len(fs.open_fds) == len(cache) <= 3
    assert cache.opened_count == 4
    for n in (0, 2, 3):
        read(cache, paths[n])
    assert cache.opened_count == 4, "1 was the oldest"
    read(cache, paths[1])
    assert cache.opened_count == 5


def test_files_in_use_stay_open_beyond_the_limit(paths: list[str]) -> None:
    fs = CountingFileSystem()
    cache = DescriptorCache(fs, 2)
    held = [cache.acquire(path) for path in paths[:4]]
    assert [os.pread(file.fd, 10, 0).decode() for file in held] == list("0123")
    assert len(fs.open_fds) == 4
    for file in held:
        cache.release(file)
    read(cache, paths[4])
    assert len(fs.open_fds) == len(cache) == 2, "the limit holds again"
    cache.acquire(paths[0])
    cache.close()
    assert len(fs.open_fds) == 1, "the one that is held"


def test_a_forgotten_file_is_closed_with_its_last_user(paths: list[str]) -> None:
    fs = CountingFileSystem()
    cache = DescriptorCache(fs, 512)
    file = cache.acquire(paths[0])
    os.unlink(paths[0])
    Path(paths[0]).write_text("new")
    cache.forget(paths[0])
    assert os.pread(file.fd, 10, 0) == b"0"
    assert read(cache, paths[0]) == "new"
    assert len(fs.open_fds) == 2
    cache.release(file)
    assert len(fs.open_fds) == 1


def test_a_file_that_cannot_be_opened_is_not_kept(tmp_path: Path) -> None:
    cache = DescriptorCache(FileSystem(), 512)
    with pytest.raises(FileSystemError):
        cache.acquire(str(tmp_path / "none"))
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("soft", "count"), [(20_000, 12_000), (1024, 614), (1, 1), (1 << 20, 16_384)]
)
def test_most_of_the_descriptors_of_a_process_may_be_of_queues(
    monkeypatch: pytest.MonkeyPatch, soft: int, count: int
) -> None:
    monkeypatch.setattr("store.files.descriptor_cache.resource.getrlimit", lambda _: (soft, soft))
    assert affordable_count() == count
