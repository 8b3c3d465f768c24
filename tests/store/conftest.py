"""What all tests of the store share: descriptors of the dead, and files as on a disk.

What a test that plays a crash leaves open is closed, as the kernel does for a dead process.

Without it a run of all tests would use up the descriptors of a process that they share. That
a store which is closed in order leaves nothing open is tested in test_crash.py.
"""

import os
from collections.abc import Iterator

import pytest

from store import opening
from store.files.file_system import FileSystem


@pytest.fixture(autouse=True)
def _descriptors_of_the_dead() -> Iterator[None]:
    left: set[int] = set()
    opened, closed = FileSystem.open, FileSystem.close

    def open_and_note(
        self: FileSystem, path: str, *, create: bool = False, read_only: bool = False
    ) -> int:
        fd = opened(self, path, create=create, read_only=read_only)
        left.add(fd)
        return fd

    def close_and_note(self: FileSystem, fd: int) -> None:
        left.discard(fd)
        closed(self, fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystem, "open", open_and_note)
        patch.setattr(FileSystem, "close", close_and_note)
        yield
    for fd in left:
        os.close(fd)


@pytest.fixture(autouse=True)
def _on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store make its files as on a disk, also where tests keep theirs in memory."""
    monkeypatch.setattr(opening, "is_in_memory", lambda root: False)
