"""A file system that remembers what is written into which file, and what of it before a sync."""

from pathlib import Path

from store.files.file_system import FileSystem


class WrittenRanges(FileSystem):
    """Remembers names, bounds and syncs."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        self.ranges_at_sync: list[int] = []
        """Count of the ranges at each sync of a file."""

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        self.ranges.append((Path(path).name, position, position + len(data)))
        super().write_at(fd, path, position, data)

    def sync(self, fd: int, path: str) -> None:
        super().sync(fd, path)
        self.ranges_at_sync.append(len(self.ranges))
