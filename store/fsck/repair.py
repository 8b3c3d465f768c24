"""Carries out a repair plan: every step can be repeated, and a crash between two is harmless.

Owns the order "copy aside, write a new file, switch names" (S15) and the right to do it, which is
that of the holder of the directory's lock. Must not choose the actions. No damaged byte is lost:
the bytes that a step takes away are in `damaged/<name>-<position>` before it begins. Derived files
are dropped and built from the log; a mark beside them tells that they are not whole until they are.
The run markers (`abort`, `boot_id`) are left alone: a repair is no clean end of the last run.
Sources: fault-matrix S07, S12, S13, S15; design 4.5.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

from store import format as fmt
from store.config import MIB, StoreConfig
from store.derived.dispatch import Dispatcher
from store.derived.keys.index_files import IndexFiles
from store.derived.queues.consume_queues import ConsumeQueues
from store.durability import durable_mark
from store.durability.checkpoint import Checkpoint
from store.durability.durable_mark import DurableMark, Mark
from store.durability.identity import DirectoryLock, RunMarker
from store.errors import FileSystemError
from store.files.checksum import crc32c
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.staging import TEMPORARY_SUFFIX, is_unfinished, stage
from store.fsck.checks.meta import DAMAGED_DIRECTORY, read_marks
from store.fsck.files import PAGE_SIZE_BYTES
from store.fsck.plan import FINGERPRINT_SIZE_BYTES
from store.fsck.types import (
    Action,
    ActionKind,
    LossRefusedError,
    Progress,
    StalePlanError,
    no_progress,
)
from store.ledger.ledger import Ledger
from store.ledger.start import LOG_FROM_ZERO, StartFile
from store.ledger.start import NAME as START_NAME
from store.log.commit_log import CommitLog
from store.opening import Directory, is_replica_directory, log_directory, open_log
from store.record.check import store_timestamp

_CHUNK_SIZE_BYTES: Final = MIB


def apply(
    root: str,
    actions: Iterable[Action],
    *,
    accept_loss: bool = False,
    progress: Progress = no_progress,
    fs: FileSystem | None = None,
) -> None:
    """Carry out a plan of `store.fsck.plan.plan`. Repeat it after any error or crash.

    Raises LossRefusedError (not accepted), StalePlanError (the files are not those of the plan),
    LockedError: nothing was changed then. StoreFullError or FileSystemError: repeat it.
    SyncFailedError: stop, start again, repeat it.
    """
    todo = list(actions)
    for action in todo:
        if action.loss is not None and not accept_loss:
            loss = action.loss
            raise LossRefusedError(loss.lo_position, loss.hi_position, loss.record_count)
    fs = fs or FileSystem()
    lock = DirectoryLock(fs, root)
    lock.acquire()
    try:
        if todo:
            config = todo[0].config
            assert config is not None, "an action that no plan made"
            _Repair(fs, root, config, progress).run(todo)
    finally:
        lock.release()


class _Repair:
    """One run over one plan; the directory's lock is held."""

    def __init__(self, fs: FileSystem, root: str, config: StoreConfig, progress: Progress) -> None:
        self.fs, self.root, self.config, self.progress = fs, root, config, progress
        self.directory = os.path.relpath(log_directory(root, config), root)

    def run(self, actions: list[Action]) -> None:
        for action in actions:
            if action.kind is ActionKind.CUT_LOG:
                self._check_fingerprint(action)
        kinds = {action.kind for action in actions}
        steps = {  # The others below, with the log open; a node refetches.
            ActionKind.KEEP: self._keep_page,
            ActionKind.REMOVE: self._remove,
            ActionKind.REWRITE_FILE: self._replace,
            ActionKind.RECREATE_START: self._recreate_start,
            ActionKind.CUT_LOG: self._cut,
            ActionKind.REBUILD_LEDGER_INDEX: self._drop_ledger_index,
            ActionKind.RECREATE_CHECKPOINT: self._recreate_checkpoint,
        }
        for action in actions:
            hit("fsck_repair.step")
            if action.kind in steps:
                steps[action.kind](action)
        with_log = {
            ActionKind.CUT_LOG,
            ActionKind.REBUILD_LEDGER_INDEX,
            ActionKind.REBUILD_DERIVED,
            ActionKind.RECREATE_MARKS,
        }
        if kinds & with_log:
            marks = next((a for a in actions if a.kind is ActionKind.RECREATE_MARKS), None)
            self._finish(rebuild=ActionKind.REBUILD_DERIVED in kinds, marks_action=marks)

    # --- Copies ---

    def _aside(self, path: str, lo: int, hi: int) -> None:
        """Copy the bytes [lo, hi) of a file to `damaged/`, durably; once, however often called."""
        fs, source = self.fs, os.path.join(self.root, path)
        if not os.path.exists(source):
            return
        hi = min(hi, os.stat(source).st_size)
        target = self._evidence_name(path, lo, source, hi) if lo < hi else None
        if target is None:
            return
        temporary = target + TEMPORARY_SUFFIX
        if os.path.exists(temporary):
            fs.unlink(temporary)
        out = fs.open(temporary, create=True)
        try:
            for at, data in self._chunks(source, lo, hi):
                fs.write_at(out, temporary, at - lo, data)
            fs.sync(out, temporary)
        finally:
            fs.close(out)
        fs.rename(temporary, target)
        fs.sync_directory(os.path.dirname(target))

    def _chunks(self, path: str, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
        """Yield (byte, bytes) of a file; pages that cannot be read are zeros."""
        fs = self.fs
        fd = fs.open(path, read_only=True)
        try:
            for at in range(lo, hi, _CHUNK_SIZE_BYTES):
                size_bytes = min(_CHUNK_SIZE_BYTES, hi - at)
                try:
                    yield at, fs.read_at(fd, path, at, size_bytes)
                except FileSystemError:
                    for page in range(at, at + size_bytes, PAGE_SIZE_BYTES):
                        room = min(PAGE_SIZE_BYTES, at + size_bytes - page)
                        try:
                            yield page, fs.read_at(fd, path, page, room)
                        except FileSystemError:
                            yield page, bytes(room)
        finally:
            fs.close(fd)

    def _evidence_name(self, path: str, lo: int, source: str, hi: int) -> str | None:
        """Return a free name in `damaged/`; None when these bytes are there already."""
        directory = os.path.join(self.root, DAMAGED_DIRECTORY)
        self.fs.make_directory(directory)
        name = os.path.basename(path)
        position = lo + (int(name) if fmt.is_file_name(name) else 0)
        base = os.path.join(directory, f"{path.replace('/', '_')}-{position}")
        for number in count():
            target = f"{base}.{number}" if number else base
            if not os.path.exists(target):
                return target
            if os.stat(target).st_size == hi - lo and all(
                ours == theirs
                for (_, ours), (_, theirs) in zip(
                    self._chunks(source, lo, hi), self._chunks(target, 0, hi - lo), strict=False
                )
            ):
                return None
        raise AssertionError("names ran out")

    def _move_aside(self, path: str) -> None:
        """Move a whole file to `damaged/`, durably."""
        source = os.path.join(self.root, path)
        if not os.path.isfile(source):
            return
        size_bytes = os.stat(source).st_size
        target = self._evidence_name(path, 0, source, size_bytes)
        if target is None:
            self.fs.unlink(source)
        else:
            self.fs.rename(source, target)
            self.fs.sync_directory(os.path.dirname(target))
        self.fs.sync_directory(os.path.dirname(source))

    def _replace(self, action: Action) -> None:
        """Write a new copy of a log file, as the action asks, and switch the names.

        The old bytes that go are copied aside first. Does nothing when the file has them already.
        """
        path, size_bytes = os.path.join(self.root, action.path), self.config.file_size_bytes
        if not os.path.exists(path) or self._is_done(action):
            return
        self._aside(action.path, action.zero_lo, action.zero_hi)
        self._aside(action.path, size_bytes, os.stat(path).st_size)
        fs, temporary = self.fs, stage(self.fs, *os.path.split(path))
        fd = fs.open(temporary, create=True)
        try:
            fs.allocate(fd, temporary, size_bytes)
            for lo, hi in ((0, action.zero_lo), (action.zero_hi, size_bytes)):
                for at, data in self._chunks(path, lo, min(hi, os.stat(path).st_size)):
                    fs.write_at(fd, temporary, at, data)
            if action.blank:
                fs.write_at(fd, temporary, action.zero_lo, self._blank(action))
            fs.sync(fd, temporary)
        except BaseException:
            fs.close(fd)
            fs.unlink(temporary)
            raise
        fs.close(fd)
        hit("fsck_repair.before_switch")
        fs.rename(temporary, path)
        fs.sync_directory(os.path.dirname(path))

    def _blank(self, action: Action) -> bytes:
        room = action.zero_hi - action.zero_lo
        if self.config.container == "ledger":
            return fmt.ENTRY_BLANK.pack(fmt.ENTRY_MAGIC_BLANK, room)
        return fmt.BLANK.pack(room, fmt.MAGIC_BLANK)

    def _is_done(self, action: Action) -> bool:
        """Whether a file has its size, and the bytes of the action in its range."""
        path = os.path.join(self.root, action.path)
        if os.stat(path).st_size != self.config.file_size_bytes:
            return False
        head = self._blank(action) if action.blank else b""
        for at, data in self._chunks(path, action.zero_lo, action.zero_hi):
            wanted = bytes(len(data))
            if at == action.zero_lo:
                wanted = head + wanted[len(head) :]
            if data != wanted:
                return False
        return True

    def _keep_page(self, action: Action) -> None:
        """Copy a page of a derived file aside, unless it was rebuilt since the plan was made."""
        path = os.path.join(self.root, action.path)
        if not os.path.isfile(path):
            return
        hi = min(action.zero_lo + PAGE_SIZE_BYTES, os.stat(path).st_size)
        page = b"".join(data for _, data in self._chunks(path, action.zero_lo, hi))
        if crc32c(page) == action.fingerprint:
            self._aside(action.path, action.zero_lo, hi)

    def _remove(self, action: Action) -> None:
        """Remove the file of an unfinished step; a file that may hold data is moved aside."""
        path = os.path.join(self.root, action.path)
        if not is_unfinished(path):
            self._move_aside(action.path)
        elif os.path.isfile(path):
            self.fs.unlink(path)
            self.fs.sync_directory(os.path.dirname(path))

    # --- The log ---

    def _check_fingerprint(self, action: Action) -> None:
        """Refuse a plan for other bytes; zeros there mean that the cut was done already."""
        path = os.path.join(self.root, action.path)
        if not os.path.exists(path) or self._is_done(action):
            return
        hi = min(action.zero_lo + FINGERPRINT_SIZE_BYTES, action.zero_hi)
        there = min(hi, os.stat(path).st_size)
        data = b"".join(data for _, data in self._chunks(path, action.zero_lo, there))
        if crc32c(data.ljust(hi - action.zero_lo, b"\0")) != action.fingerprint:
            raise StalePlanError(action.path, action.position)

    def _cut(self, action: Action) -> None:
        """End the log at a position: marks first, then later files, the cut one last."""
        path = os.path.join(self.root, action.path)
        if os.path.exists(path) and not self._is_done(action):
            self._aside(action.path, action.zero_lo, action.zero_hi)
        mark, _ = read_marks(self.fs, self.root, log_is_empty=False)
        if mark is not None and mark != mark.cut_to(action.position, -1):
            marks = DurableMark.open(self.fs, self.root, interval_ms=0, log_is_empty=False)
            try:
                marks.lower(action.position, -1)
            finally:
                marks.close()
        hit("fsck_repair.marks_lowered")
        names = self.fs.list_directory(os.path.join(self.root, self.directory))
        for name in reversed(names):
            path = f"{self.directory}/{name}"
            if fmt.is_file_name(name) and int(name) >= action.position and path != action.path:
                self._move_aside(path)
        self._replace(action)

    def _recreate_start(self, action: Action) -> None:
        """Write the start that the first entry proved, as a first save does: in both generations.

        The files are made in `damaged/` and renamed, so that they are whole at every moment. A
        crash between the two leaves the second as it was, and the check proves the start again.
        """
        directory = os.path.join(self.root, action.path)
        start = action.start
        assert start is not None, "a start without a proof"
        for parity in (0, 1):
            self._aside(f"{action.path}/{START_NAME}.{parity}", 0, 1 << 20)
        first, second = (os.path.join(directory, f"{START_NAME}.{n}") for n in (1, 0))
        if start != LOG_FROM_ZERO:
            workshop = os.path.join(self.root, DAMAGED_DIRECTORY, "workshop")
            self.fs.make_directory(workshop)
            for name in self.fs.list_directory(workshop):
                self.fs.unlink(os.path.join(workshop, name))
            file = StartFile(self.fs, workshop)
            file.load()
            file.save(start)
            self.fs.rename(os.path.join(workshop, f"{START_NAME}.1"), first)
            self.fs.rename(os.path.join(workshop, f"{START_NAME}.0"), second)
            os.rmdir(workshop)
        else:
            for path in (first, second):
                if os.path.exists(path):
                    self.fs.unlink(path)
        self.fs.sync_directory(directory)

    def _drop_ledger_index(self, action: Action) -> None:
        """Remove the index files, the last one first; opening the ledger writes them again."""
        directory = os.path.join(self.root, action.path)
        for name in reversed(self.fs.list_directory(directory)):
            self.fs.unlink(os.path.join(directory, name))
        if os.path.isdir(directory):
            self.fs.sync_directory(directory)

    # --- With the log open ---

    def _finish(self, *, rebuild: bool, marks_action: Action | None) -> None:
        """Open the log, which has to be whole now, build the derived files, write the marks."""
        fs, root = self.fs, self.root
        mark, findings = read_marks(fs, root, log_is_empty=False)
        last_run = RunMarker(fs, root).last_run()
        newest = mark or Mark()
        if marks_action is not None:
            # Opening refuses, and cuts nothing, when the log is not whole up to there.
            newest = Mark(marks_action.position, -1, 0, 0)
        log = open_log(Directory(fs, root, self.config, None, newest, last_run)).log
        try:
            log.sync()
            end = log.max_position
            last_index = log.last_index_before(end)
            built = self._dispatchable(log, mark or Mark())
            if rebuild:
                built = self._rebuild(log, built)
        finally:
            log.close()
        if marks_action is None:
            return
        if rebuild or last_run.was_clean or mark is None:
            target = Mark(end, last_index, built, built)
        else:
            built, durably = mark.dispatched_position, mark.dispatched_durable_position
            target = Mark(end, last_index, min(built, end), min(durably, end))
        if findings:
            self._aside(durable_mark.FILE_NAME, 0, 1 << 20)
        DurableMark.create(fs, root, target, interval_ms=0).close()

    def _dispatchable(self, log: CommitLog | Ledger, mark: Mark) -> int:
        """Return the position up to which records belong into derived files.

        In a replica's directory the records that were dispatched before: they were committed. A
        node that starts there continues automatically.
        """
        if not is_replica_directory(self.root):
            return log.max_position
        return min(max(mark.dispatched_position, log.min_position), log.max_position)

    def _rebuild(self, log: CommitLog | Ledger, hi_position: int) -> int:
        """Rebuild queues and index, and return the position reached. The log's time names the
        index files, so that a repetition gives the same names."""
        first = next(log.record_runs(log.min_position, log.max_position), None)
        unix_ms = store_timestamp(first[1]) if first is not None else 0
        queues = ConsumeQueues(self.fs, self.root, self.config)
        index = IndexFiles(self.fs, self.root, self.config, clock=lambda: unix_ms)
        try:
            dispatcher = Dispatcher(log, queues, index, dispatched_position=log.min_position)
            return dispatcher.rebuild(
                lambda done, total: self.progress("rebuild", done, total), hi_position=hi_position
            )
        finally:
            queues.close()
            index.close()

    def _recreate_checkpoint(self, action: Action) -> None:
        """Begin a new checkpoint with zeros, which only makes a recovery look further back."""
        path = os.path.join(self.root, action.path)
        if os.path.exists(path):
            content = b"".join(data for _, data in self._chunks(path, 0, os.stat(path).st_size))
            if content == bytes(fmt.CHECKPOINT_SIZE_BYTES):
                return
            self._move_aside(action.path)
        Checkpoint.open(self.fs, self.root).close()
