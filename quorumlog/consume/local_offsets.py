"""Offsets that a broadcasting consumer keeps for itself: in memory, or in a small JSON file.

Owns the file; must not know the consumer. Each store replaces the whole file, so a crash leaves the
old one. A store replaces only what this consumer has read or written itself: a file of two
consumers is found out before one of them overwrites the other's offsets.
"""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from quorumlog.errors import ConflictError, InvalidRequestError, QuorumlogError
from quorumlog.foreign_json import read_json
from quorumlog.records.queues import Queue


class LocalOffsets:
    """The next offset by queue. `path` None: kept in memory only."""

    def __init__(self, path: str | None) -> None:
        """Read the file, if there is one. Raises InvalidRequestError if it holds no offsets."""
        self._path = None if path is None else os.path.realpath(path)
        self._offsets: dict[Queue, int] = {}
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

    def get(self, queue: Queue) -> int | None:
        """Return the stored offset of a queue."""
        return self._offsets.get(queue)

    def queues(self) -> Iterable[Queue]:
        """Return the queues with a stored offset."""
        return self._offsets.keys()

    def store(self, offsets: Mapping[Queue, int]) -> None:
        """Store these offsets; written and synced on return if there is a file.

        Raises ConflictError, with nothing written, if another consumer has stored there.
        """
        self._offsets.update(offsets)
        if self._path is None:
            return
        lines = [
            {"topic": q.topic, "queue_id": q.queue_id, "group": q.group, "offset": offset}
            for q, offset in sorted(self._offsets.items())
        ]
        content = json.dumps({"offsets": lines}, indent=1).encode()
        # A number of a process is that of another one in another container.
        temporary = f"{self._path}.{secrets.token_hex(4)}.tmp"
        try:
            if _content(self._path) not in (None, self._known):
                raise self._conflict()
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fdatasync(file.fileno())
            os.replace(temporary, self._path)
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

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            self._known = known = _content(self._path)
            lines = () if known is None else read_json(known, is_unique=True)["offsets"]
            self._offsets = {_queue(line): _number(line, "offset") for line in lines}
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
    """Return what stands in a file; None if there is none. Raises OSError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _queue(line: Mapping[str, Any]) -> Queue:
    return Queue(str(line["topic"]), _number(line, "queue_id"), str(line["group"]))


def _number(line: Mapping[str, Any], name: str) -> int:
    """Return a number of a line. Raises TypeError, or ValueError for one below 0."""
    value = line[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, no whole number")
    if value < 0:
        raise ValueError(f"{name} is {value}")
    return value
