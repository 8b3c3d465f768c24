"""A log in memory, made of encoded records, and derived files over it: all that dispatch needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store import format as fmt
from store.config import StoreConfig
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queue import ConsumeQueue
from store.derived.queues.consume_queues import ConsumeQueues
from store.errors import PositionRangeError
from store.files.file_system import FileSystem
from store.log.sequence_lock import SequenceLock
from store.record.message import encode_message

FIRST_UNIX_MS = 1_700_000_000_000


class CountingFileSystem(FileSystem):
    """Knows which descriptors are open."""

    def __init__(self) -> None:
        self.open_fds: set[int] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)
        super().close(fd)


class MemoryLog:
    """A `RecordLog` whose records are laid out as in files of `file_size_bytes`.

    `gap_size_bytes` stands before each record, as entry headers do in a ledger.
    """

    has_full_checksums: Final = False
    are_runs_checked = False

    def __init__(
        self,
        *,
        first_position: int = 0,
        file_size_bytes: int = 1 << 20,
        gap_size_bytes: int = 0,
        run_size_bytes: int = 1 << 16,
    ) -> None:
        self.changes = SequenceLock()
        self.data = bytearray()
        self.first_position = first_position
        self.min_position = first_position
        self.file_size_bytes = file_size_bytes
        self.gap_size_bytes = gap_size_bytes
        self.run_size_bytes = run_size_bytes
        self.records: list[tuple[int, int]] = []  # Position, size.
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.unix_ms = FIRST_UNIX_MS

    @property
    def max_position(self) -> int:
        return self.first_position + len(self.data)

    def add(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        body: bytes = b"body",
        properties: dict[str, str] | None = None,
        *,
        sys_flag: int = 0,
        queue_offset: int | None = None,
        born_host: tuple[str, int] = ("127.0.0.1", 0),
        store_host: tuple[str, int] = ("127.0.0.1", 0),
    ) -> int:
        """Append one record as an append would patch it, and return its position."""
        key = (topic, queue_id)
        hidden = sys_flag & 0xC in (fmt.TRANSACTION_PREPARED, fmt.TRANSACTION_ROLLBACK)
        if queue_offset is None:
            queue_offset = 0 if hidden else self.next_offsets.get(key, 0)
        if not hidden:
            self.next_offsets[key] = queue_offset + 1
        encoded = encode_message(
            topic,
            queue_id,
            body,
            properties,
            sys_flag=sys_flag,
            born_host=born_host,
            store_unix_ms=self.unix_ms,
            store_host=store_host,
            queue_offset=queue_offset,
        )
        self._make_room(self.gap_size_bytes + len(encoded))
        self.data += bytes(self.gap_size_bytes)
        position = self.max_position
        self.data += encoded[:28] + fmt.TIMESTAMP.pack(position) + encoded[36:]
        self.records.append((position, len(encoded)))
        return position

    def _make_room(self, size_bytes: int) -> None:
        left = self.file_size_bytes - self.max_position % self.file_size_bytes
        assert size_bytes + 8 <= self.file_size_bytes
        if size_bytes + 8 > left:
            self.data += fmt.BLANK.pack(left, fmt.MAGIC_BLANK).ljust(left, b"\0")

    def read(self, position: int, size_bytes: int) -> bytes:
        lo, hi = self.min_position, self.max_position
        crosses = position // self.file_size_bytes != (position + size_bytes - 1) // (
            self.file_size_bytes
        )
        if not lo <= position <= position + size_bytes <= hi or crosses:
            raise PositionRangeError("position", position, lo, hi)
        at = position - self.first_position
        return bytes(self.data[at : at + size_bytes])

    def check(self, position: int, data: bytes, *, again: bool = False) -> None:
        """Memory is trusted."""

    def record_runs(self, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        first, run = lo, b""
        for position, size_bytes in self.records:
            if position < lo or position + size_bytes > hi:
                continue
            record = self.read(position, size_bytes)
            if run and (position != first + len(run) or len(run) >= self.run_size_bytes):
                yield first, run
                run = b""
            if not run:
                first = position
            run += record
        if run:
            yield first, run

    fresh_runs = checked_runs = record_runs

    def stamped(self, lo: int, hi: int) -> None:
        """Nothing was stamped: the records are walked over."""


class Derived:
    """Queues, index and dispatcher in one directory, opened as a store opens them."""

    def __init__(
        self,
        root: Path,
        log: MemoryLog,
        config: StoreConfig,
        *,
        durable_position: int = 0,
        is_clean: bool = True,
        open_files_max: int = 512,
    ) -> None:
        fs = FileSystem()
        self.queues = ConsumeQueues(fs, str(root), config, open_files_max=open_files_max)
        self.index = IndexFiles(fs, str(root), config, clock=lambda: FIRST_UNIX_MS)
        try:
            self.queues.recover(durable_position, is_clean=is_clean)
            self.queues.correct_min_offsets(log.min_position)
            self.index.recover(durable_position, is_clean=is_clean)
        except BaseException:
            self.close()
            raise
        self.dispatcher = Dispatcher(
            log, self.queues, self.index, dispatched_position=durable_position
        )

    def close(self) -> None:
        self.queues.close()
        self.index.close()


def queue_of(queues: ConsumeQueues, topic: bytes = b"orders", queue_id: int = 0) -> ConsumeQueue:
    """A queue that is there."""
    queue = queues.get(topic, queue_id)
    assert queue is not None
    return queue


def tree(root: Path) -> dict[str, bytes]:
    """All files below a directory with their bytes, but for checksums of derived files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "checksums" not in path.parts
    }
