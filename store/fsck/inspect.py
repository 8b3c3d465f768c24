"""Summarizes a store directory, without reading all of it and without judging it.

Owns the summary that `qlog store inspect` prints; must not look for damage. Works beside a server,
too: the few bytes are read without a lock, so the summary is then a moment old.
Sources: storage-formats 0.3, 2.1, 3.1, 4.1.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.derived.keys.index_files import DIRECTORY as INDEX_DIRECTORY
from store.derived.queues.consume_queue import UNIT_SIZE_BYTES
from store.derived.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from store.derived.queues.consume_queues import queue_names
from store.durability import checkpoint
from store.files.descriptor_cache import DescriptorCache
from store.fsck.checks.meta import read_starts, read_trust, stray_files
from store.fsck.files import OPEN_FILES_MAX, Place, ReadOnlyFileSystem, Segments, holder_of
from store.fsck.layout import GivenSettings, Layout, detect, index_names
from store.fsck.types import NO_OWNER_FILES, OwnerFiles, Part, Progress, Severity, no_progress

Row = dict[str, object]


def inspect(
    root: str,
    progress: Progress = no_progress,
    *,
    given: GivenSettings | None = None,
    owner: OwnerFiles = NO_OWNER_FILES,
) -> Row:
    """Return the content of a directory, as plain values that JSON knows.

    Raises LayoutError when there is no store or it cannot be told how to read it, FileSystemError.
    """
    inspection = _Inspection(root, given, owner)
    try:
        return inspection.row(progress)
    finally:
        inspection.place.descriptors.close()


def readable_time(unix_ms: int) -> str | None:
    """Return a time as ISO 8601 in UTC with milliseconds; None for none (0) or nonsense."""
    if not 0 < unix_ms < 1 << 47:
        return None
    moment = datetime.fromtimestamp(unix_ms // 1000, UTC).replace(microsecond=unix_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Inspection:
    """One inspection of one directory."""

    def __init__(self, root: str, given: GivenSettings | None, owner: OwnerFiles) -> None:
        self._root, self._owner = root, owner
        self._fs = ReadOnlyFileSystem()
        self._layout: Layout = detect(self._fs, root, given)
        self._config = self._layout.config
        self.place = Place(self._fs, DescriptorCache(self._fs, OPEN_FILES_MAX), root)

    def row(self, progress: Progress) -> Row:
        """Read the parts that are cheap to read."""
        root, layout = self._root, self._layout
        size_bytes = self._config.file_size_bytes
        log = Segments(self.place, layout.log_directory, size_bytes, Part.LOG)
        trust, _ = read_trust(self._fs, root, log_is_empty=not log.files)
        mark = trust.mark
        free_bytes, disk_bytes = self._fs.free_bytes(root)
        queues: list[QueueRange] = []
        for queue in queue_ranges(self.place, self._config, log.position):
            queues.append(queue)
            progress("queues", len(queues), 0)
        strays = [*stray_files(self._fs, root, layout, self._owner.names), *log.findings]
        return {
            "directory": os.path.abspath(root),
            "container": self._config.container,
            "logs": list(layout.containers),
            "held_by": holder_of(root),
            "last_run_clean": trust.last_run.was_clean,
            "same_boot": trust.last_run.same_boot,
            **self._log_row(log),
            "topic_count": len({queue.topic for queue in queues}),
            "queue_count": len(queues),
            "queued_record_count": sum(queue.end_offset - queue.first_offset for queue in queues),
            "durable_log_position": mark.durable_position if mark else None,
            "durable_index": mark.durable_index if mark else None,
            "dispatched_log_position": mark.dispatched_position if mark else None,
            "dispatched_durable_log_position": mark.dispatched_durable_position if mark else None,
            "known_good_log_position": trust.known_good_position if mark else None,
            "used_bytes": self._used_bytes(progress),
            "disk_free_bytes": free_bytes,
            "disk_size_bytes": disk_bytes,
            "left_over": [f.path for f in strays if f.severity is Severity.LEFT_OVER],
            "unknown": [f.path for f in strays if f.severity is Severity.UNKNOWN],
            "settings": [
                {"setting": name, "value": getattr(self._config, name), "from": source}
                for name, source in layout.source.items()
            ],
            "log_files": [
                {
                    "file": file.path,
                    "log_position": file.position,
                    "size_bytes": file.size_bytes,
                    "missing": file.is_missing,
                }
                for file in log.files
            ],
            "queues": [queue._asdict() for queue in queues],
            "index_files": self._index_files(),
            "checkpoint": self._checkpoint(),
        }

    def _used_bytes(self, progress: Progress) -> int:
        """Return what the files take on the disk, holes left out."""
        used_bytes = count = 0
        for directory, _, names in os.walk(self._root):
            for name in names:
                used_bytes += os.lstat(os.path.join(directory, name)).st_blocks * 512
            count += len(names)
            progress("files", count, 0)
        return used_bytes

    def _log_row(self, log: Segments) -> Row:
        """Return how far the log goes, by its last byte that is not zero."""
        row: Row = {
            "file_count": len(log.files),
            "first_log_position": log.position,
            "written_log_position": log.dirty_hi(),
        }
        if self._config.container == "ledger":
            directory = self._layout.ledger_directory
            starts, _, _ = read_starts(self._fs, self._root, directory)
            unit = fmt.INDEX_UNIT_SIZE_BYTES
            units = self._config.ledger_index_units_per_file * unit
            index = Segments(self.place, f"{directory}/index", units, Part.LEDGER_INDEX)
            row["first_index"] = starts[0].link.entry_index + 1
            # A unit ends with a term, which is not zero as a rule, so the last one is found so.
            row["last_index"] = (index.dirty_hi() + unit - 1) // unit - 1
        return row

    # --- Derived files ---

    def _index_files(self) -> list[Row]:
        rows: list[Row] = []
        top = os.path.join(self._root, INDEX_DIRECTORY)
        for name in index_names(self._fs, top):
            path = os.path.join(top, name)
            if os.stat(path).st_size < fmt.INDEX_HEADER_SIZE_BYTES:
                rows.append({"file": f"{INDEX_DIRECTORY}/{name}"})
                continue
            header = self._fs.read_file(path, fmt.INDEX_HEADER_SIZE_BYTES)
            begin_ms, end_ms, begin, end, used_count, count = fmt.INDEX_HEADER.unpack(header)
            rows.append(
                {
                    "file": f"{INDEX_DIRECTORY}/{name}",
                    "entry_count": max(0, count - 1),
                    "used_slot_count": used_count,
                    "begin_time": readable_time(begin_ms),
                    "end_time": readable_time(end_ms),
                    "first_log_position": begin,
                    "end_log_position": end,
                }
            )
        return rows

    def _checkpoint(self) -> list[Row]:
        path = os.path.join(self._root, checkpoint.FILE_NAME)
        if not os.path.exists(path) or os.stat(path).st_size < fmt.CHECKPOINT.size:
            return []
        values = fmt.CHECKPOINT.unpack(self._fs.read_file(path, fmt.CHECKPOINT.size))
        names = checkpoint.CheckpointValues._fields
        return [
            {
                "field": name,
                "value": value,
                "time": readable_time(value) if name.endswith("_unix_ms") else None,
            }
            for name, value in zip(names, values, strict=True)
        ]


class QueueRange(NamedTuple):
    """Offsets [first_offset, end_offset) of a queue whose records are at or behind a position."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    file_count: int


def queue_ranges(place: Place, config: StoreConfig, position: int) -> Iterator[QueueRange]:
    """Find the range of each queue of a directory, by binary search.

    Correct for a queue that is not damaged. Fillers and expired units come before, zeros behind.
    """
    file_size_bytes = config.consume_queue_units_per_file * UNIT_SIZE_BYTES
    names = queue_names(place.fs, os.path.join(place.root, QUEUE_DIRECTORY))
    for topic, queue_id in sorted(names):
        directory = f"{QUEUE_DIRECTORY}/{topic}/{queue_id}"
        files = Segments(place, directory, file_size_bytes, Part.QUEUE)
        hi = (files.dirty_hi() + UNIT_SIZE_BYTES - 1) // UNIT_SIZE_BYTES
        lo = files.position // UNIT_SIZE_BYTES

        def is_kept(offset: int, files: Segments = files) -> bool:
            unit = files.read(offset * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES)
            own, size_bytes, _ = fmt.CONSUME_QUEUE_UNIT.unpack(unit)
            return bool(size_bytes != fmt.CONSUME_QUEUE_FILLER_SIZE and own >= position)

        lo += bisect_left(range(lo, hi), True, key=is_kept)
        yield QueueRange(topic, queue_id, lo, hi, len(files.files))
