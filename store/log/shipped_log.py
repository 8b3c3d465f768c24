"""A plain commit log that is shipped to other replicas as raw bytes, and cut where they differ.

Owns the work of a replica beyond `store.log.commit_log`: an append in two steps, of which only the
first can fail; runs of whole records out of the log and into it, each checked; no roll without a
reserved file. Must not know epochs, roles or which replica has which bytes. A blank is written as a
whole, zeros included: a sync beside it never ends within.
"""

from typing import NamedTuple

from store import format as fmt
from store.config import StoreConfig
from store.errors import PositionRangeError, RecordFormatError
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import FileSource
from store.log.commit_log import CommitLog, walk
from store.log.record_log import AppendResult
from store.record.check import check_records
from store.record.message import record_layout
from store.record.stamp import QueueKey
from store.record.units import BatchUnits


class PreparedBatch(NamedTuple):
    """A batch that was checked and stamped for its place, and has room there.

    `record_positions`, `queue_offsets`, `next_offsets` and `units` are what `Stamper.stamp`
    returned.
    """

    position: int
    size_bytes: int
    record_positions: list[int]
    queue_offsets: list[int]
    next_offsets: dict[QueueKey, int]
    units: BatchUnits | None
    store_unix_ms: int


class CheckedRaw(NamedTuple):
    """Raw bytes that may be written at a position; `ShippedLog.check_raw` makes it."""

    position: int
    data: bytes
    last_store_unix_ms: int
    """Store time of the last record; 0 for a blank alone."""


class ShippedLog(CommitLog):
    """The plain log of a replica. One writer; reads and a sync may run beside it."""

    def __init__(
        self, fs: FileSystem, root: str, config: StoreConfig, source: FileSource | None = None
    ) -> None:
        super().__init__(fs, root, config, source)
        self._prepared: PreparedBatch | None = None
        """The batch in the scratch, until it is appended."""
        self._mapped: MappedFile | None = None
        """The last file, once it was found mapped."""

    @property
    def end_position(self) -> int:
        """Position where the next bytes go, if they fit into the last file."""
        return self.files.wrote_position

    # --- Appending ---

    def prepare(self, batch: bytes, *, now_unix_ms: int) -> PreparedBatch:
        """Do all of an append that can fail; errors as `append`. No byte is written, no blank.

        `append_prepared` may follow or not: the next batch takes the place.
        """
        position, fits, stamped = self._stamp(batch, now_unix_ms)
        self._make_room(len(batch), 0 if fits else 1)
        prepared = self._prepared = PreparedBatch(position, len(batch), *stamped, now_unix_ms)
        return prepared

    def append_prepared(self, prepared: PreparedBatch) -> AppendResult:
        """Append the batch that `prepare` returned last; the log has not changed since.

        Cannot fail, except by an error after which memory and disk may differ: stop the process.
        """
        position, size_bytes, record_positions, queue_offsets, updates, _, unix_ms = prepared
        assert prepared is self._prepared, "another batch was prepared since"
        self._prepared = None
        hit("shipped_log.before_append")
        file = self._file_for(position)
        landed = file.append(self._scratch_view[:size_bytes])
        assert landed == position, f"stamped for {position}, landed at {landed}"
        self.stamper.publish(updates)
        hit("shipped_log.after_append")
        return AppendResult(
            position, position + size_bytes, -1, record_positions, queue_offsets, unix_ms
        )

    # --- Raw bytes ---

    def check_raw(self, position: int, data: bytes) -> CheckedRaw:
        """Check bytes that another replica shipped, every one, for this position.

        The bytes are whole records that belong there, or the blank of a file's end, or both, of one
        file. Raises RecordFormatError; nothing is written.
        """
        file_size_bytes = self.files.file_size_bytes
        hi = position + len(data)
        file_hi = (position // file_size_bytes + 1) * file_size_bytes
        if not data or hi > file_hi:
            actual = f"{len(data)} bytes, {file_hi - position} to the end of the file"
            raise RecordFormatError(0, "size of a transfer", "records of one file", actual)
        checked = check_records(data, position)
        end = checked.end
        if checked.problem is not None:
            raise checked.problem
        if end < len(data):
            _check_blank(data, end, checked.blank_size_bytes, is_file_end=hi == file_hi)
        elif file_hi - hi < fmt.BLANK_SIZE_BYTES_MIN:
            raise RecordFormatError(end, "record", "room for a blank behind it", "none")
        if end > self._batch_size_bytes_max:
            self._check_sizes(data, end)
        return CheckedRaw(position, data, checked.last_store_unix_ms)

    def _check_sizes(self, data: bytes, end: int) -> None:
        at = 0
        while at < end:
            size_bytes = fmt.INT32.unpack_from(data, at)[0]
            if size_bytes > self._batch_size_bytes_max:
                limit = f"up to {self._batch_size_bytes_max} bytes"
                raise RecordFormatError(at, "record", limit, str(size_bytes))
            at += size_bytes

    def write_raw(self, checked: CheckedRaw) -> None:
        """Append bytes that `check_raw` accepted. Raises as `reserve`, nothing was written then;
        raises nothing when `reserve` made room before."""
        position, data, _ = checked
        assert position == self.end_position, f"raw at {position}, end {self.end_position}"
        files = self.files.files
        is_open = bool(files) and files[-1].free_bytes > 0
        self._make_room(len(data), 0 if is_open else 1)
        self._prepared = None
        hit("shipped_log.before_append")
        landed = self._file_for(position).append(data)
        assert landed == position, f"checked for {position}, landed at {landed}"
        hit("shipped_log.after_append")

    # --- Room ---

    def reserve(self, size_bytes: int, file_count: int) -> None:
        """Make room: the next writes cannot fail. `file_count` is of `files.file_count_for`.

        Raises StoreFullError, FileSystemError or BusyError; what was reserved before stays.
        """
        assert size_bytes <= self.files.file_size_bytes * max(1, file_count), f"{size_bytes} bytes"
        self._make_room(size_bytes, file_count)

    def _make_room(self, size_bytes: int, count: int) -> None:
        """Have the last file mapped, with blocks, and `count` files behind it reserved."""
        files = self.files.files
        if files and files[-1] is not self._mapped and files[-1].free_bytes:
            files[-1].append(b"")
            self._mapped = files[-1]
        if count:
            self.files.reserve(count)
        self.files.make_room(size_bytes)

    def _file_for(self, position: int) -> MappedFile:
        """Return the file whose next byte is `position`; the last one is closed if need be."""
        files = self.files.files
        if files:
            last = files[-1]
            if last.wrote_position == position and last.free_bytes:
                return last
            if last.free_bytes:
                blank = fmt.BLANK.pack(last.free_bytes, fmt.MAGIC_BLANK)
                last.append(blank + bytes(last.free_bytes - len(blank)))
        file = self.files.roll()
        assert file.position == position, f"wanted {position}, rolled to {file.position}"
        self.files.seal_complete()
        return file

    # --- Shipping ---

    def ship_end(self, lo: int, hi: int, size_bytes_max: int, last_topic: bytes) -> int:
        """Return the end of the whole records (a blank is one) of one file to ship from `lo`.

        At most `hi`, where one ends. If that is more than `size_bytes_max`, the transfer ends
        behind a record of `last_topic`: the last one that keeps the limit, else the first one. The
        transfer is larger than a batch only without such a record.
        """
        file = self.files.file_at(lo)
        limit = min(hi, file.end_position)
        if limit - lo <= size_bytes_max:
            return limit
        data = file.read(lo, min(limit - lo, size_bytes_max + self._batch_size_bytes_max))
        last = at = 0
        while len(data) - at >= fmt.BLANK_SIZE_BYTES_MIN:
            size_bytes, magic = fmt.BLANK.unpack_from(data, at)
            end = at + size_bytes
            is_whole = magic in (fmt.MAGIC_V1, fmt.MAGIC_V2) and at < end <= len(data)
            if not is_whole or (last and end > size_bytes_max):
                break
            if _topic(data, at) == last_topic:
                last = end
            at = end
        # A blank alone; or bytes that are no record, which is found when they are read.
        return lo + (last or at) if at else limit

    def read_raw(self, lo: int, hi: int) -> bytes:
        """Copy the bytes of one transfer; checked as every read. Raises CorruptionError."""
        data = self.files.read(lo, hi - lo)
        if not self.checked.covers(lo, hi):
            end, is_blank = walk(data)
            if end or not is_blank:
                self.check(lo, data[:end] if is_blank else data)
        return data

    # --- Cutting ---

    def cut(self, position: int) -> None:
        """Cut everything from `position`, where a record begins, durably; later bytes are zero.

        Any error means that memory and disk may differ: stop.
        """
        end = self.end_position
        if not self.min_position <= position <= end:
            raise PositionRangeError("position", position, self.min_position, end + 1)
        self.changes.begin()
        self._prepared = self._mapped = None
        self.checked.cut(position)
        self.files.truncate(position, end)
        self.changes.end()

    def set_first_aside(self) -> None:
        """Keep all files but the last beside the log; see `MappedFileQueue.set_first_aside`."""
        self.changes.begin()
        self.files.set_first_aside()
        self.changes.end()

    def begin_at(self, position: int) -> None:
        """Replace the files by an empty one at `position`, where a file begins, durably.

        Any error: as `cut`."""
        self.changes.begin()
        self._prepared = self._mapped = None
        self.checked.cut(0)
        self.files.reset(position)
        self.files.sync()
        self.changes.end()


def _check_blank(data: bytes, at: int, size_bytes: int, *, is_file_end: bool) -> None:
    """Check the bytes behind the last record of a transfer: only a whole blank is accepted."""
    rest = len(data) - at
    if size_bytes != rest or not is_file_end:
        raise RecordFormatError(at, "record", "a whole record, or a blank", data[at : at + 8].hex())
    if data.count(0, at + fmt.BLANK_SIZE_BYTES_MIN) != rest - fmt.BLANK_SIZE_BYTES_MIN:
        raise RecordFormatError(at, "blank", "zeros", "other bytes")


def _topic(data: bytes, at: int) -> bytes:
    """Return the topic of a record; any bytes for a damaged one."""
    magic = fmt.BLANK.unpack_from(data, at)[1]
    if magic != fmt.MAGIC_V1 or data[at + fmt.SYS_FLAG_AT + 3] & fmt.SYS_FLAG_ANY_V6:
        try:
            layout = record_layout(memoryview(data), at)
        except RecordFormatError:
            return b""
        return data[layout.topic_at : layout.topic_hi]
    topic_at = at + fmt.BODY_AT + fmt.INT32.unpack_from(data, at + fmt.BODY_LENGTH_AT)[0] + 1
    return data[topic_at : topic_at + data[topic_at - 1]] if 0 < topic_at <= len(data) else b""
