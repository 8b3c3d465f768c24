"""Offsets that a broadcasting consumer keeps for itself: in memory, or in a small JSON file.

Owns the file; must not know the consumer. Each store replaces the whole file by a new one, so a
crash leaves the old one. A store replaces only what this consumer has read or written itself, and
holds a lock on the new file meanwhile: a file of two consumers is found out before one of them
overwrites the other's offsets. The new file has one name, so a crash leaves one of them at most.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final
from weakref import WeakValueDictionary

from quorumlog.arguments import check_number, check_text
from quorumlog.errors import ConflictError, InvalidRequestError, QuorumlogError
from quorumlog.foreign_json import read_json
from quorumlog.records.queues import Queue

try:
    import fcntl
except ImportError:  # Not on Windows: two stores of the same instant are not told apart there.
    fcntl = None  # type: ignore[assignment]

_PLAIN: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags to open what may be no file without waiting for it."""


class LocalOffsets:
    """The next offset by queue. `path` None: kept in memory only."""

    def __init__(self, path: str | None) -> None:
        """Read the file, if there is one. Raises InvalidRequestError if it holds no offsets."""
        self._path = None if path is None else os.path.realpath(path)
        self.offsets: dict[Queue, int] = {}
        self._known: bytes | None = None
        """The file as this consumer read or wrote it last."""
        self._read()

    def open(self) -> None:
        """Take the file for the consumer, and read it again.

        Raises ConflictError if a consumer of this process has it, and as the constructor. A
        consumer of another process is found by the first `store` of the two that comes second.
        """
        if self._path is not None:
            if _taken.setdefault((os.getpid(), self._path), self) is not self:
                raise self._conflict()
            self._read()

    def close(self) -> None:
        """Leave the file to the next consumer."""
        if self._path is not None and _taken.get((os.getpid(), self._path)) is self:
            del _taken[os.getpid(), self._path]

    def store(self, offsets: Mapping[Queue, int]) -> None:
        """Store these offsets; written and synced on return if there is a file.

        Raises ConflictError, with nothing written, if another consumer has stored there.
        """
        self.offsets.update(offsets)
        if self._path is None:
            return
        lines = [
            {"topic": q.topic, "queue_id": q.queue_id, "group": q.broker_group, "offset": offset}
            for q, offset in sorted(self.offsets.items())
        ]
        content = json.dumps({"offsets": lines}, indent=1).encode()
        try:
            with self._new_file() as file:
                if _content(self._path) not in (None, self._known):
                    raise self._conflict()
                file.truncate(0)  # Of a store that a crash ended.
                file.write(content)
                file.flush()
                os.fdatasync(file.fileno())
                os.replace(file.name, self._path)
            self._known = content
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(directory)  # noqa: TID251 - Else a power loss brings the old file back.
            finally:
                os.close(directory)
        except OSError as error:
            raise QuorumlogError(
                f"offsets cannot be kept in {self._path} ({error}); make room for it, or use "
                f"another offsets_path",
                code="client.offsets_file",
            ) from error

    @contextmanager
    def _new_file(self) -> Iterator[BinaryIO]:
        """Open the file that is to replace the old one, for this consumer alone. It is removed if
        the block fails. Raises ConflictError, OSError."""
        name = f"{self._path}.tmp"
        with open(name, "ab", opener=lambda path, flags: os.open(path, flags | _PLAIN)) as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(name))
            except (BlockingIOError, FileNotFoundError):
                is_there = False
            if not is_there:  # Another consumer stores, or has just stored.
                raise self._conflict()
            try:
                yield file
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(name)
                raise

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            self._known = content = _content(self._path)
            lines = [] if content is None else read_json(content, is_unique=True)["offsets"]
            if not isinstance(lines, list):
                raise TypeError("offsets are no list")
            self.offsets = {_queue(line): _number(line, "offset") for line in lines}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"{self._path} holds no offsets ({error}); remove it to start again"
            ) from error

    def _conflict(self) -> ConflictError:
        return ConflictError(
            f"another consumer stores its offsets in {self._path}, so nothing was stored; give "
            f"each consumer an offsets_path of its own",
            code="client.offsets_in_use",
        )


_taken: Final = WeakValueDictionary[tuple[int, str], LocalOffsets]()
"""Those of consumers that run, by process (a fork has others) and path."""


def _content(path: str) -> bytes | None:
    """Return what stands in a file; None if there is none. Raises OSError, also for what is no
    regular file."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _PLAIN)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is no regular file")
            return file.read()
    except FileNotFoundError:
        return None


def _queue(line: Mapping[str, Any]) -> Queue:
    for name in ("topic", "group"):
        check_text(name, line[name])
    return Queue(line["topic"], _number(line, "queue_id"), line["group"])


def _number(line: Mapping[str, Any], name: str) -> int:
    check_number(name, line[name])
    return int(line[name])
