"""The files at the ends of the queues that are written now, held open between two writes.

Owns the bound on them; must not know units. A look-up in the cache of descriptors, its lock twice
and the name of the file cost several times as much as the write of one unit. A file that is held is
never closed under its user; one that was deleted or replaced says so, and is then held no longer.
"""

from typing import Final, NamedTuple

from store.files.descriptor_cache import DescriptorCache, OpenFile

TAIL_FILES_MAX: Final = 128
"""Limit of files held at once; each is passed over when another one has to be closed for room."""
_SHARE: Final = 4
"""At most this part of the descriptors is held, so that most of them can still be closed."""


class TailFile(NamedTuple):
    """One held file, and the first offset in it."""

    file: OpenFile
    file_lo: int


class TailFiles:
    """The held files of all queues of a store. For the one thread that puts."""

    def __init__(self, descriptors: DescriptorCache) -> None:
        self._descriptors = descriptors
        self._limit = min(TAIL_FILES_MAX, descriptors.limit // _SHARE)
        self.held: Final[dict[object, TailFile]] = {}
        """By queue, the one that has held its file for longest first; for others to read only."""

    def hold(self, queue: object, path: str, file_lo: int) -> TailFile | None:
        """Hold the file of a path for a queue, instead of the one that it holds; None if no file
        may be held. Raises FileSystemError."""
        if queue in self.held:
            self._release(queue)
        if not self._limit:
            return None
        while len(self.held) >= self._limit:
            self._release(next(iter(self.held)))
        file = self.held[queue] = TailFile(self._descriptors.acquire(path), file_lo)
        return file

    def release_all(self) -> None:
        """Hold no file any more: the queues are closed or dropped."""
        for queue in list(self.held):
            self._release(queue)

    def _release(self, queue: object) -> None:
        self._descriptors.release(self.held.pop(queue).file)
