"""Offsets that a broadcasting consumer keeps for itself: in memory, or in a small JSON file.

Owns the file; must not know the consumer. Each store replaces the whole file, so a crash leaves the
old one.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from quorumlog.errors import InvalidRequestError, QuorumlogError
from quorumlog.foreign_json import read_json
from quorumlog.records.queues import Queue


class LocalOffsets:
    """The next offset by queue. `path` None: kept in memory only."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._offsets: dict[Queue, int] = {}
        if path is not None and os.path.exists(path):
            self._offsets = self._load(path)

    def get(self, queue: Queue) -> int | None:
        """Return the stored offset of a queue."""
        return self._offsets.get(queue)

    def queues(self) -> Iterable[Queue]:
        """Return the queues with a stored offset."""
        return self._offsets.keys()

    def store(self, offsets: Mapping[Queue, int]) -> None:
        """Store these offsets; written and synced on return if there is a file."""
        self._offsets.update(offsets)
        if self._path is None:
            return
        lines = [
            {"topic": q.topic, "queue_id": q.queue_id, "group": q.group, "offset": offset}
            for q, offset in sorted(self._offsets.items())
        ]
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"offsets": lines}, file, indent=1)
                file.flush()
                os.fdatasync(file.fileno())
            os.replace(temporary, self._path)
            directory = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY)
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

    @staticmethod
    def _load(path: str) -> dict[Queue, int]:
        try:
            with open(path, "rb") as file:
                lines = read_json(file.read(), is_unique=True)["offsets"]
            return {_queue(line): _number(line, "offset") for line in lines}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"{path} holds no offsets ({error}); remove it to start again"
            ) from error


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
