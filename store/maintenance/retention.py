"""Retention: which old files are deleted, and when the disk counts as full.

Owns the decision, as pure functions, and the round that carries it out; must not know what is in
the files. Oldest first, never the last file, never a file that is not durable as a whole, at most
ten in a round. A file that has not expired goes for room only if the owner said so
(`delete_when_full`); otherwise a full disk refuses appends until files expire or an operator makes
room.
Sources: RocketMQ CleanCommitLogService; storage-formats 5.9; fault-matrix S11, C1.

Age and clocks: the age of a file is counted in the log's own time, from the newest store timestamp
in the file to the newest in the next one, and so on, and from the last file to now. A step back
counts as 0. A step longer than the whole retention is not believed, for it would expire everything
at once: it counts as a quarter of the retention. So a clock that jumps to the year 2100 ages what
is there by that quarter once, and not by 74 years; one that jumps back ages nothing; and both hold
across restarts, without any state. A clock that is wrong by less than the retention is believed.
The price: after a pause longer than the retention between two files, or after a stop that long,
files stay for up to four such pauses more. A store that runs through the pause deletes in time.

Deviations: no hour of the day (`deleteWhen`); no file goes for room by default
(`cleanFileForciblyEnable`), nor below the force mark just because ten are allowed in a round;
readers keep the bytes of a deleted file as long as they hold them, none is unmapped by force; the
disk counts as full while one more file still fits.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

from store.config import StoreConfig
from store.errors import CorruptionError, FileSystemError, StoreFullError
from store.files.mapped_file import MappedFile
from store.stats import StoreCounters

DELETE_COUNT_MAX: Final = 10  # A round; as RocketMQ's deleteFileBatchMax.
_UNBELIEVED_PART: Final = 4  # A step that is not believed counts as this part of the retention.


class DiskState(enum.Enum):
    """How full the disk is; each state includes the consequences of those before it."""

    OK = "ok"
    WARN = "warn"
    """Tell the operator; expired files go as always."""
    FORCE = "force"
    """Delete files that have not expired; only where that was asked for."""
    FULL = "full"
    """Refuse appends; reads go on."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The file system of the store: free for this process, and total, see FileSystem.free_bytes.

    `refused_bytes`: what had to be free for the append that was refused last; 0: none was."""

    free_bytes: int
    total_bytes: int
    refused_bytes: int = 0

    @property
    def used_ratio(self) -> float:
        """Used part of the whole, 0 to 1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


@dataclass(frozen=True, slots=True)
class FileAge:
    """One file of the log, in order. `newest_unix_ms` is None when it is not known.

    `is_deletable`: all of it is durable, and not needed any more (dispatch, snapshot).
    """

    size_bytes: int
    newest_unix_ms: int | None
    is_deletable: bool


class ToDelete(NamedTuple):
    """How many of the oldest files have to go; the last `for_room_count` of them not for their age
    or the size of the log, but because the disk has no room."""

    file_count: int
    for_room_count: int


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The rules. `retention_ms` 0 and `retention_size_bytes` 0 mean no such limit; `force_ratio`
    None: no file goes for room, however full the disk is."""

    retention_ms: int
    retention_size_bytes: int
    file_size_bytes: int
    warn_ratio: float
    force_ratio: float | None
    full_ratio: float
    reserve_bytes: int

    @classmethod
    def from_config(cls, config: StoreConfig) -> Self:
        """Take the rules from the store's settings."""
        return cls(
            retention_ms=config.retention_ms,
            retention_size_bytes=config.retention_size_bytes,
            file_size_bytes=config.file_size_bytes,
            warn_ratio=config.disk_warn_ratio,
            force_ratio=config.disk_force_ratio if config.delete_when_full else None,
            full_ratio=config.disk_full_ratio,
            reserve_bytes=config.disk_reserve_bytes,
        )

    def needed_free_bytes(self, usage: DiskUsage, spare_file_count: int) -> int:
        """Return how much must be free: meta reserve, and one file unless one is ready (S11); what
        an append was refused for, if that is more."""
        needed = self.reserve_bytes + (0 if spare_file_count else self.file_size_bytes)
        return max(needed, usage.refused_bytes)

    def disk_state(self, usage: DiskUsage, spare_file_count: int = 0) -> DiskState:
        """Judge the disk. `spare_file_count` files are allocated ahead of the log already."""
        if usage.used_ratio >= self.full_ratio or usage.free_bytes < self.needed_free_bytes(
            usage, spare_file_count
        ):
            return DiskState.FULL
        if self.force_ratio is not None and usage.used_ratio >= self.force_ratio:
            return DiskState.FORCE
        return DiskState.WARN if usage.used_ratio >= self.warn_ratio else DiskState.OK

    def files_to_delete(
        self,
        files: Sequence[FileAge],
        now_unix_ms: int,
        usage: DiskUsage,
        spare_file_count: int = 0,
    ) -> ToDelete:
        """Return how many of the oldest files to delete now, and by which rule. Pure."""
        limit = 0
        while limit < min(len(files) - 1, DELETE_COUNT_MAX) and files[limit].is_deletable:
            limit += 1
        ages = ages_ms([file.newest_unix_ms for file in files], now_unix_ms, self.retention_ms)
        kept_bytes = sum(file.size_bytes for file in files)
        to_free_bytes = self._bytes_to_free(usage, spare_file_count)
        count = for_room_count = freed_bytes = 0
        while count < limit:
            expired = self.retention_ms > 0 and ages[count] >= self.retention_ms
            too_large = 0 < self.retention_size_bytes < kept_bytes
            if not (expired or too_large):  # Nor is any behind it: those are younger.
                if freed_bytes >= to_free_bytes:
                    break
                for_room_count += 1
            kept_bytes -= files[count].size_bytes
            freed_bytes += files[count].size_bytes
            count += 1
        return ToDelete(count, for_room_count)

    def _bytes_to_free(self, usage: DiskUsage, spare_file_count: int) -> int:
        """Return the bytes to delete, to get below the force mark and have the reserve free."""
        state = self.disk_state(usage, spare_file_count)
        if self.force_ratio is None or state not in (DiskState.FORCE, DiskState.FULL):
            return 0
        allowed = int(usage.total_bytes * self.force_ratio)
        over = usage.total_bytes - usage.free_bytes - allowed + 1
        return max(over, self.needed_free_bytes(usage, spare_file_count) - usage.free_bytes)


def ages_ms(newest_unix_ms: Sequence[int | None], now_unix_ms: int, retention_ms: int) -> list[int]:
    """Return the age of each file in the log's own time; see the module for the rule."""
    ages = [0] * len(newest_unix_ms)
    later, age = now_unix_ms, 0
    for number in range(len(newest_unix_ms) - 1, -1, -1):
        newest = newest_unix_ms[number]
        if newest is not None:
            step = max(0, later - newest)
            age += step if step <= retention_ms else retention_ms // _UNBELIEVED_PART
            later = newest
        ages[number] = age
    return ages


class RetainedLog(Protocol):
    """A log as retention needs it."""

    @property
    def flushed_position(self) -> int:
        """Position before which every byte is durable."""

    def delete_first(self) -> int:
        """Delete the oldest file; return the bytes freed."""


@dataclass(frozen=True, slots=True)
class RetentionRound:
    """Result of one round. `error` ended it early, or hid how old a file is; the next round tries
    again."""

    state: DiskState
    deleted_file_count: int
    freed_bytes: int
    error: FileSystemError | CorruptionError | None = None


class Retention:
    """Runs the policy on one log. The thread that appends calls it, so that no lock is needed."""

    def __init__(
        self,
        policy: RetentionPolicy,
        log: RetainedLog,
        files: Callable[[], Sequence[MappedFile]],
        newest_unix_ms: Callable[[MappedFile], int | None],
        *,
        path: str,
        deletable_position: Callable[[], int],
        spare_file_count: Callable[[], int],
        counters: StoreCounters,
        disk: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Take the log and its files. `newest_unix_ms` is called once for each complete file: its
        newest store timestamp, for which the first one of the next file is good enough.
        `deletable_position`: files that end beyond it are still needed. `path` names the store in
        StoreFullError. `disk` returns the free and all bytes of its disk now.
        """
        self._disk = disk
        self.policy: Final = policy
        self._log, self._files, self._newest_unix_ms = log, files, newest_unix_ms
        self._path = path
        self._deletable_position = deletable_position
        self._spare_file_count = spare_file_count
        self._counters = counters
        self._unreadable: FileSystemError | CorruptionError | None = None  # Of this round.
        self.newest_times: dict[int, int] = {}
        """Newest store time of complete files, by position, as far as it was needed so far."""
        self.state = DiskState.OK
        self.usage = DiskUsage(1, 1)

    def run_once(self, now_unix_ms: int, usage: DiskUsage) -> RetentionRound:
        """Delete the files that have to go and judge the disk again.

        Deletions are durable on return. Raises SyncFailedError: stop the process. A file that
        cannot be deleted ends the round and is tried again in the next one. A file whose time
        cannot be read is as old as the one behind it: damage neither keeps it nor ends the process.
        """
        self._unreadable = None
        count, for_room_count = self.plan(now_unix_ms, usage)
        deleted = freed_bytes = 0
        failed = self._unreadable
        try:
            while deleted < count:
                freed_bytes += self._log.delete_first()
                deleted += 1
        except (FileSystemError, CorruptionError) as error:
            failed = error
        self._counters.deleted_file_count += deleted
        self._counters.deleted_for_room_count += max(0, deleted - (count - for_room_count))
        self.judge(DiskUsage(usage.free_bytes + freed_bytes, usage.total_bytes))
        return RetentionRound(self.state, deleted, freed_bytes, failed)

    def plan(self, now_unix_ms: int, usage: DiskUsage) -> ToDelete:
        """Judge the disk, and return which of the oldest files have to go; deletes nothing."""
        self.judge(usage)
        ages = self._ages(self._files())
        return self.policy.files_to_delete(ages, now_unix_ms, self.usage, self._spare_file_count())

    def forget_times(self) -> None:
        """Forget what the files hold: the log was cut or replaced, and others may lie there now."""
        self.newest_times = {}

    def judge(self, usage: DiskUsage) -> None:
        """Set the state. The disk stays full until there is room for what was refused last."""
        refused_bytes = self.usage.refused_bytes
        if usage.free_bytes < refused_bytes:
            usage = DiskUsage(usage.free_bytes, usage.total_bytes, refused_bytes)
        self.usage = usage
        self.state = self.policy.disk_state(usage, self._spare_file_count())

    def note(self, error: StoreFullError) -> None:
        """Count the disk as full from now on, as it had no room for an append or its file.

        A quota refuses bytes that are free: this state, which is judged by those, cannot show it.
        """
        if self.state is not DiskState.FULL and error.free_bytes < error.needed_bytes:
            total_bytes = max(self.usage.total_bytes, error.free_bytes)
            self.judge(DiskUsage(error.free_bytes, total_bytes, error.needed_bytes))

    def refusal(self) -> StoreFullError | None:
        """Return why appends are refused; None: the disk does not count as full."""
        if self.state is not DiskState.FULL:
            return None
        usage, policy = self.usage, self.policy
        needed = policy.needed_free_bytes(usage, self._spare_file_count())
        by_ratio = int(usage.total_bytes * (1 - policy.full_ratio)) + 1
        reserve = policy.reserve_bytes if needed >= by_ratio else 0
        return StoreFullError(
            self._path, max(needed, by_ratio), usage.free_bytes, reserve_bytes=reserve
        )

    def check_writable(self) -> None:
        """Raise StoreFullError while the disk counts as full; nothing was written then.

        The state is that of the last round, or of a refusal since, which is looked at again.
        """
        if self.usage.refused_bytes and self._disk is not None:
            self.judge(DiskUsage(*self._disk()))
        if (error := self.refusal()) is not None:
            raise error

    def _ages(self, files: Sequence[MappedFile]) -> list[FileAge]:
        hi = min(self._log.flushed_position, self._deletable_position())
        complete = files[:-1]  # The last one may have been so before, and was cut since.
        times = {
            f.position: self.newest_times[f.position]
            for f in complete
            if f.position in self.newest_times
        }
        for file in complete:
            if file.position not in times:
                newest = self._time_of(file)
                if newest is not None:
                    times[file.position] = newest
        self.newest_times = times
        ages = [FileAge(f.size_bytes, times.get(f.position), f.end_position <= hi) for f in files]
        if files:  # The last file grows, so each call reads its time.
            last = ages[-1]
            ages[-1] = FileAge(last.size_bytes, self._time_of(files[-1]), False)
        return ages

    def _time_of(self, file: MappedFile) -> int | None:
        try:
            return self._newest_unix_ms(file)
        except (FileSystemError, CorruptionError) as error:
            self._unreadable = error
            return None
