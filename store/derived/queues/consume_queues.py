"""All consume queues of one store, found by topic and queue id.

Owns which queues exist, which of them have bytes that are not durable, and the bound on open files
that they share; must not know records or the log. Queues are made when their first unit is put.
Source: RocketMQ ConsumeQueueStore; storage-formats 0.3, 2.2, 2.6.
"""

import os
import threading
from collections.abc import Iterator, KeysView
from typing import Final

from store.config import StoreConfig
from store.derived.queues.consume_queue import ConsumeQueue, OnDoubt, QueueEnvironment
from store.derived.sum_files import SumFiles
from store.errors import DerivedFileError
from store.files.descriptor_cache import DescriptorCache, affordable_count
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX, sweep
from store.record.inner_batches import InnerBatches

DIRECTORY: Final = "consumequeue"
REBUILD_MARK: Final = "rebuilding"  # A file; RocketMQ passes over what is no directory.
QueueKey = tuple[bytes, int]  # Topic, queue id; as in store.record.stamp.


def queue_names(fs: FileSystem, directory: str) -> list[tuple[str, int]]:
    """List (topic, queue id) of a directory; as RocketMQ, other names are passed over."""
    names = []
    for topic in fs.list_directory(directory):
        path = os.path.join(directory, topic)
        if os.path.isdir(path):
            ids = fs.list_directory(path)
            names += [(topic, int(i)) for i in ids if i.isdecimal() and str(int(i)) == i]
    return names


class ConsumeQueues:
    """The set of queues. `put`, `truncate` and deletions by one thread at a time.

    Look-ups and reads come from any thread, and one `sync` may run beside the writer.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        config: StoreConfig,
        *,
        open_files_max: int | None = None,
    ) -> None:
        """Make an empty set; `open_files_max` is `affordable_count()` by default."""
        self._fs = fs
        self.directory = os.path.join(root, DIRECTORY)
        self.descriptors: Final = DescriptorCache(fs, open_files_max or affordable_count())
        self._environment = QueueEnvironment(
            fs,
            self.directory,
            config.consume_queue_units_per_file,
            self.descriptors,
            SumFiles(root, "units"),
        )
        self.inner_batches: Final = InnerBatches(fs, root)
        """Topics with inner batches, which have no queue here."""
        self._rebuild_mark = os.path.join(self.directory, REBUILD_MARK)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.dirty: dict[ConsumeQueue, None] = {}  # Have bytes or names that are not durable.
        self._dirty_lock = threading.Lock()
        self._sync_lock = threading.Lock()  # One sync at a time, and none during a cut.
        self._grown: dict[QueueKey, None] = {}

    def compare_with(self, on_doubt: OnDoubt) -> None:
        """Ask `on_doubt` from now on about units without a confirmed checksum."""
        self._environment.on_doubt = on_doubt

    # --- Finding ---

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def get(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if no unit was ever put into it."""
        return self._queues.get((topic, queue_id))

    def next_offsets(self) -> dict[QueueKey, int]:
        """Return the next offset of each queue, for `Stamper.next_offsets`."""
        return {key: queue.max_offset for key, queue in list(self._queues.items())}

    # --- Opening ---

    def recover(self, hi_position: int, *, is_clean: bool) -> None:
        """Open every queue of the directory, each cut to the records before `hi_position`.

        Before there are readers and writers; a second call, for a smaller position, cuts again.
        Raises DerivedFileError when a queue is damaged or a rebuild was not completed (both:
        rebuild), or FileSystemError.
        """
        self._queues, self.dirty = {}, {}
        self.inner_batches.load()
        sweep(self._fs, self.directory)
        if os.path.exists(self._rebuild_mark):
            raise DerivedFileError(self._rebuild_mark, 0, "rebuild", "completed", "unfinished")
        for topic, queue_id in queue_names(self._fs, self.directory):
            queue = ConsumeQueue(self._environment, topic, queue_id)
            queue.recover(hi_position, is_clean=is_clean)
            if queue.has_files:
                self._queues[topic.encode(), queue_id] = queue
                if not is_clean or queue.has_new_names:
                    self.dirty[queue] = None
            if not is_clean:  # The last run may have been killed before it synced them.
                self._environment.new_names |= {
                    os.path.join(self.directory, topic),
                    self.directory,
                    os.path.dirname(self.directory),
                }

    # --- Building ---

    def append(self, topic: bytes, queue_id: int, first_offset: int, units: bytes) -> int:
        """Put the next units into a queue that has room for them; return their count.

        Return 0, with nothing changed, where more has to be thought of: `put` does it. Errors as
        `ConsumeQueue.append`.
        """
        key, queues = (topic, queue_id), self._queues
        if key not in queues:
            return 0
        queue = queues[key]
        try:
            count = queue.append(first_offset, units)
        except BaseException:
            self._note_dirty(queue)
            raise
        if count:
            if queue not in self.dirty:  # A sync that takes this set later has the bytes, too.
                self._note_dirty(queue)
            self._grown[key] = None
        return count

    def put(
        self,
        topic: bytes,
        queue_id: int,
        *,
        first_offset: int,
        units: bytes,
        may_begin_late: bool,
    ) -> int:
        """Put units into a queue that is made if need be; see ConsumeQueue.put.

        Return by how much that raised the sum of the next offsets of all queues.
        """
        key = (topic, queue_id)
        queue, begin = self._queues.get(key), 0
        if queue is None:
            begin = first_offset
            queue = ConsumeQueue(self._environment, topic.decode("ascii"), queue_id)
        try:
            count = queue.put(first_offset, units, may_begin_late=may_begin_late)
        finally:
            self._note_dirty(queue)
        if key not in self._queues:
            self._queues[key] = queue  # Only now readers can find it.
        self._grown[key] = None
        return begin + count

    def _note_dirty(self, queue: ConsumeQueue) -> None:
        """Note a queue after its bytes: a sync that missed them leaves it dirty."""
        with self._dirty_lock:
            self.dirty[queue] = None

    def take_grown(self) -> KeysView[QueueKey]:
        """Return the queues that got units since the last call, to wake their waiting readers.

        Call it on the thread that puts.
        """
        grown, self._grown = self._grown, {}
        return grown.keys()

    def sync(self) -> None:
        """Make everything that was put before the call durable. Raises SyncFailedError: stop."""
        with self._sync_lock:
            with self._dirty_lock:
                dirty, self.dirty = self.dirty, {}
            try:
                for queue in dirty:
                    queue.sync_units()
                # Names after all units: the first directory sync commits the rest of them too.
                for queue in dirty:
                    queue.sync_names()
                names, self._environment.new_names = self._environment.new_names, set()
                for directory in sorted(names, reverse=True):
                    self._fs.sync_directory(directory)
                self._environment.sums.write()
            except BaseException:
                with self._dirty_lock:
                    self.dirty |= dirty
                raise

    def mend(self, queue: ConsumeQueue, offset: int, units: bytes) -> None:
        """Overwrite wrong units of a queue; see `ConsumeQueue.rewrite`."""
        queue.rewrite(offset, units)
        self._note_dirty(queue)

    # --- Cutting ---

    def truncate(self, position: int) -> None:
        """Drop the units of all records at and after `position`, durably.

        The caller has first made a built-up-to mark of at most `position` durable. Raises
        FileSystemError or SyncFailedError; repeat it then.
        """
        with self._sync_lock:
            for queue in self:
                queue.truncate(position)

    def correct_min_offsets(self, min_position: int) -> None:
        """Raise the min offset of each queue to its first record at or after `min_position`."""
        for queue in self:
            queue.correct_min_offset(min_position)

    def delete_expired_of(self, queue: ConsumeQueue, min_position: int) -> int:
        """Correct a queue's min offset, delete its wholly expired files; return their count.

        A deletion need not be durable: a file that comes back is deleted again. Raises
        FileSystemError; repeat it then.
        """
        with self._sync_lock:
            return queue.delete_expired(min_position)

    def begin_rebuild(
        self, hi_position: int, next_offsets: dict[QueueKey, int] | None = None
    ) -> None:
        """Delete every queue file, durably; the set is empty then and can be filled again.

        Leaves a mark, first and durably, until `complete_rebuild`: derived files that are
        half-built must not pass as whole ones. The mark holds what the log cannot tell: the next
        offsets of queues whose records, all before `hi_position`, have expired. Goes by the names
        on disk, so that files that cannot be opened are dropped, too. With `next_offsets` the mark
        holds those instead, whatever was there. Raises FileSystemError, StoreFullError or
        SyncFailedError; repeat it then.
        """
        fs = self._fs
        self.inner_batches.load()
        with self._sync_lock:
            self._queues = {}
            with self._dirty_lock:
                self.dirty = {}
            self._environment.tail_files.release_all()
            self.descriptors.close()
            fs.make_directory(self.directory)
            if next_offsets is not None:
                self._write_mark(next_offsets)
            elif not os.path.exists(self._rebuild_mark):
                self._write_mark(self._readable_offsets(hi_position))
            directories = [
                f"{self.directory}/{t}/{i}" for t, i in queue_names(self._fs, self.directory)
            ]
            for directory in directories:
                for name in fs.list_directory(directory):
                    fs.unlink(os.path.join(directory, name))
            for directory in directories:  # After all deletions: they share one journal commit.
                fs.sync_directory(directory)
            self._remove_empty()

    def has_of_inner_batches(self) -> bool:
        """Whether there are queues of topics that must have none; a rebuild drops them."""
        return any(topic in self.inner_batches.topics for topic, _ in self._queues)

    def _remove_empty(self) -> None:
        """Remove directories of topics that have no queue here: RocketMQ would not load them.

        Need not be durable: every rebuild does it.
        """
        for topic in self.inner_batches.topics:
            path = os.path.join(self.directory, topic.decode())
            for directory in (*(f"{path}/{n}" for n in self._fs.list_directory(path)), path):
                if os.path.isdir(directory) and not self._fs.list_directory(directory):
                    self._fs.remove_directory(directory)

    def _readable_offsets(self, hi_position: int) -> dict[QueueKey, int]:
        """Return the next offset of each queue on disk, as far as its files can be read."""
        offsets: dict[QueueKey, int] = {}
        for topic, queue_id in queue_names(self._fs, self.directory):
            queue = ConsumeQueue(self._environment, topic, queue_id)
            try:
                queue.recover(hi_position, is_clean=True, may_be_short=True)
            except DerivedFileError:
                continue  # Unknown, unless the log still has records of it.
            if queue.has_files:
                offsets[topic.encode(), queue_id] = queue.max_offset
        self.descriptors.close()
        return offsets

    def _write_mark(self, next_offsets: dict[QueueKey, int]) -> None:
        fs, temporary = self._fs, self._rebuild_mark + TEMPORARY_SUFFIX
        lines = [f"{t.decode()} {i} {offset}\n" for (t, i), offset in next_offsets.items()]
        fs.write_file(temporary, "".join(lines).encode())
        fs.rename(temporary, self._rebuild_mark)
        fs.sync_directory(self.directory)

    def restore_silent_queues(self) -> None:
        """Make the queues of the mark that got no record, so that their offsets go on.

        Call it after the last `put` of a rebuild and before the sync. Errors as `put`.
        """
        text = self._fs.read_file(self._rebuild_mark).decode("ascii")
        for line in text.splitlines():
            topic, queue_id, offset = line.split()
            key = topic.encode(), int(queue_id)
            if key not in self._queues and key[0] not in self.inner_batches.topics:
                queue = ConsumeQueue(self._environment, topic, key[1])
                queue.begin(int(offset))
                self._note_dirty(queue)
                self._queues[key] = queue

    def complete_rebuild(self) -> None:
        """Remove the mark; the caller has synced all derived files. Raises SyncFailedError."""
        self._fs.unlink(self._rebuild_mark)
        self._fs.sync_directory(self.directory)

    def close(self) -> None:
        """Close the files. Syncs nothing."""
        for queue in self:
            queue.sums.save()
        self._environment.sums.close()
        self._queues = {}
        self._environment.tail_files.release_all()
        self.descriptors.close()
