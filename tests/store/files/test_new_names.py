"""What is told to be durable lies in a file whose name is durable, too (fault-matrix S03)."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile, prepare_file
from store.files.mapped_file_queue import InlineFiles, MappedFileQueue
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import PAGE


class LazySource(InlineFiles):
    """Leaves it to the next sync to make the names of its files durable."""

    def __init__(self, fs: FileSystem, directory: str, size_bytes: int = PAGE) -> None:
        super().__init__(fs, directory, size_bytes)

    def take(self, position: int) -> MappedFile:
        prepared = prepare_file(
            self._fs, self._directory, position, self._size_bytes, warm_up=False
        )
        assert prepared is not None
        return prepared.publish(is_durable=False)


class RacedQueue(MappedFileQueue):
    """Rolls to the next file just when a sync has seen that there is no new name."""

    is_raced = False
    _seen = False

    @property
    def _has_new_name(self) -> bool:
        seen = self._seen
        if self.is_raced:
            self.is_raced = False
            self.reserve()
            self.roll().append(b"late")
        return seen

    @_has_new_name.setter
    def _has_new_name(self, value: bool) -> None:
        self._seen = value


class NoLuck(Random):
    """A power loss that keeps nothing that was not synced."""

    def choice(self, options: Any) -> Any:
        return options[0]


@pytest.mark.parametrize("way", ["roll", "reset"])
def test_bytes_are_durable_only_under_a_name_that_is(tmp_path: Path, way: str) -> None:
    fs = PowerLossFileSystem()
    files = RacedQueue(fs, str(tmp_path / "data"), PAGE, LazySource(fs, str(tmp_path / "data")))
    files.load()
    files.reserve()
    files.roll().append(bytes(PAGE))
    assert files.sync() == PAGE
    if way == "roll":
        files.is_raced = True
        files.sync()
    else:
        files.reset(5 * PAGE)
        files.files[0].append(b"new")
        files.sync()
    flushed_position = files.flushed_position
    files.close()
    fs.build_image(str(tmp_path / "data"), str(tmp_path / "image"), NoLuck())
    durable = [int(path.name) for path in (tmp_path / "image").iterdir()]
    assert (flushed_position - 1) // PAGE * PAGE in durable
