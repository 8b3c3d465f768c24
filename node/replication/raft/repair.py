"""Repairs a damaged log with entries of other replicas, before the node runs or while it does.

Owns the peers to ask, the time to ask again, and the progress shown to people. Must not know bytes:
finding damage, proving fetched entries by the chain and writing them is the store's. No entry is
cut that may be committed: damaged entries are cut only when a peer has committed an entry of
another term in front of them, as after a leader that lost its term. A node whose log cannot be
opened is repaired first and neither votes nor acks until then (design 4.5; fault-matrix D5, D7,
S05). It waits as long as necessary, because a node that went on would break its promises.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from node.replication.fetch import EntryFetcher, FetchError
from node.runtime.on_thread import on_thread
from raft.messages import NO_INDEX, Index, NodeId, Term
from store.config import StoreConfig
from store.errors import (
    CorruptionError,
    DamageWiderError,
    FileSystemError,
    ForeignEntryError,
    LayoutError,
    PositionRangeError,
    StoreFullError,
)
from store.files.file_system import FileSystem
from store.ledger.mending.damage import DamagedRange
from store.ledger.mending.fetched import RepairReport
from store.replicated.ledger_store import ReplicaStore
from store.replicated.repair import RepairSession, find_damage

_MIB: Final = 1 << 20
_Result = TypeVar("_Result")


class RepairLimits(NamedTuple):
    """Limits of repairs."""

    retry_ms: int = 500
    """Pause after no peer could give the entries."""
    live_size_bytes_max: int = 64 << 20
    """A larger damaged range of an open log is repaired only at the next start: live repair needs
    all of it in memory."""
    live_attempt_count_max: int = 20
    """Rounds over all peers, and errors of the disk, until a live repair is given up; the next read
    of the damage begins again."""
    live_error_count_max: int = 64
    """Damaged places that wait for their repair; the next read meets further ones again."""


_LIMITS: Final = RepairLimits()


class RepairProgress(NamedTuple):
    """State of a repair, for people."""

    range_count: int
    """Damaged ranges left, including the one under way."""
    fetched_size_bytes: int
    size_bytes: int
    waiting_for: str
    """Why it waits at the moment; empty while it proceeds."""

    def __str__(self) -> str:
        done, whole = self.fetched_size_bytes / _MIB, self.size_bytes / _MIB
        ranges = f"{self.range_count} range{'' if self.range_count == 1 else 's'}"
        waiting = f" ({self.waiting_for})" if self.waiting_for else ""
        return f"repairing: {ranges}, {done:.1f} MiB of {whole:.1f} MiB{waiting}"


OnProgress = Callable[[RepairProgress], None]


async def find_damaged(root: str, config: StoreConfig, fs: FileSystem) -> list[DamagedRange]:
    """Search a closed log for damage on a thread; raises as `find_damage`."""
    return await on_thread(partial(find_damage, root, config, fs=fs))


async def open_repaired(
    open_store: Callable[[], _Result], repair: Callable[[], Awaitable[list[RepairReport]]]
) -> tuple[_Result, list[RepairReport]]:
    """Open a store, repaired first if it is damaged; both on a thread. Return it and the repairs.

    `repair` repairs all damage, and returns an empty list if there is none. Raises the error of the
    opening when there is no damage that entries of peers could heal.
    """
    reports: list[RepairReport] = []
    while True:
        try:
            return await on_thread(open_store), reports
        except (CorruptionError, LayoutError):
            done = await repair()
            if not done:
                raise
            reports += done


class ClosedRepair:
    """Repairs the log of a store that is closed."""

    def __init__(
        self,
        root: str,
        config: StoreConfig,
        fetcher: EntryFetcher,
        on_progress: OnProgress,
        *,
        limits: RepairLimits = _LIMITS,
        fs: FileSystem | None = None,
        committed_index: Index = NO_INDEX,
        before_cut: Callable[[Term, Index], None],
    ) -> None:
        """`committed_index`: entries up to it are known to be committed, so they are never cut.

        `before_cut` makes the `held` of a session durable, on a thread (`NodeFile.note_cut`); after
        a StoreFullError or FileSystemError of it the cut is tried again."""
        self._root, self._config, self._fetcher = root, config, fetcher
        self._on_progress, self._fs = on_progress, fs or FileSystem()
        self._limits, self._committed_index = limits, committed_index
        self._before_cut = before_cut
        self._progress = RepairProgress(0, 0, 0, "")

    async def run(self, damage: list[DamagedRange] | None = None) -> list[RepairReport]:
        """Repair all damage; return once it is done, however long that takes.

        `damage` is a fresh result of `find_damaged`, to spare a search. An empty list means that
        `find_damage` finds no damage. Cancelling it leaves the damage as it was. Raises
        LockedError, SnapshotNeededError, LayoutError, SyncFailedError, and CorruptionError when no
        durable mark can be read.
        """
        reports: list[RepairReport] = []
        while True:
            ranges = damage or await find_damaged(self._root, self._config, self._fs)
            damage = None
            if not ranges:
                return reports
            size_bytes = sum(each.end_position - each.position for each in ranges)
            self._progress = RepairProgress(len(ranges), 0, size_bytes, "")
            for damaged in ranges:
                try:
                    report = await self._repair(damaged)
                    reports.append(report)
                    if report.is_cut:
                        break  # Nothing is left of the ranges behind.
                except CorruptionError as error:
                    # The edges changed, for instance as the range before became wider: search
                    # again.
                    self._tell(waiting_for=str(error))
                    await self._pause()
                    break
                self._tell(range_count=self._progress.range_count - 1)

    async def _repair(self, damaged: DamagedRange) -> RepairReport:
        session = await self._open_session(damaged)
        try:
            while True:
                is_branch = False
                while not (session.is_complete or is_branch):
                    is_branch = await self._fetch_some(session)
                try:
                    if is_branch:
                        await on_thread(partial(self._before_cut, *session.held))
                    return await on_thread(session.cut if is_branch else session.finish)
                except DamageWiderError:
                    wider = session.damaged.end_position - damaged.end_position
                    self._tell(size_bytes=self._progress.size_bytes + wider)
                except (StoreFullError, FileSystemError) as error:
                    self._tell(waiting_for=str(error))
                    await self._pause()
        finally:
            session.close()

    async def _open_session(self, damaged: DamagedRange) -> RepairSession:
        while True:
            try:  # Not on a thread: if cancelled, it would leave the directory locked.
                return RepairSession(self._root, self._config, damaged, fs=self._fs)
            except (StoreFullError, FileSystemError) as error:
                self._tell(waiting_for=str(error))
                await self._pause()

    async def _fetch_some(self, session: RepairSession) -> bool:
        """Add the next entries, from the first peer that has them.

        Return True when a peer has proven that the damaged entries were never committed.
        """
        lo = session.next_index
        # Without an entry behind the damage the number of missing ones is unknown: one by one.
        hi = max(session.damaged.hi_index, lo + 1)
        troubles: list[str] = []
        for node in self._fetcher.candidates():
            commit_index = lo
            try:
                fetched = await self._fetcher.fetch(node, lo, hi)
                await on_thread(partial(session.add, fetched.raw_entries))
            except FetchError as error:
                troubles.append(f"node {node}: {error.reason}")
                commit_index = error.commit_index
            except ForeignEntryError as error:
                troubles.append(f"from node {node}: {error}")
            except (StoreFullError, FileSystemError) as error:
                troubles.append(str(error))
                continue
            else:
                size_bytes = self._progress.fetched_size_bytes + len(fetched.raw_entries)
                self._tell(fetched_size_bytes=size_bytes, waiting_for="")
                return False
            try:
                index = await self._contradicted(session, node, commit_index)
            except (FetchError, ForeignEntryError, FileSystemError) as error:
                troubles.append(f"node {node}: {error}")
                continue
            if index is None:
                continue
            if not session.was_seen and session.damaged.lo_index > self._committed_index:
                return True
            troubles.append(f"node {node} has committed another entry {index} than this one")
        self._tell(waiting_for="; ".join(troubles) or "no peer is connected")
        await self._pause()
        return False

    async def _contradicted(
        self, session: RepairSession, node: NodeId, commit_index: Index
    ) -> Index | None:
        """Return an entry before the damage of which `node` has committed another, if it has.

        Raises FetchError, ForeignEntryError and FileSystemError.
        """
        index = min(session.damaged.lo_index - 1, commit_index)
        if index < session.first_index:
            return None
        raw_entries = b""
        for each in range(max(index - 1, session.first_index), index + 1):
            raw_entries += (await self._fetcher.fetch(node, each, each + 1)).raw_entries
        return index if await on_thread(partial(session.contradicts, raw_entries)) else None

    def _tell(self, **changes: object) -> None:
        self._progress = self._progress._replace(**changes)  # type: ignore[arg-type]
        self._on_progress(self._progress)

    async def _pause(self) -> None:
        await asyncio.sleep(self._limits.retry_ms / 1000)


class LiveRepair:
    """Repairs an open store where a read found damage, one place at a time, in the background."""

    def __init__(
        self,
        store: ReplicaStore,
        fetcher: EntryFetcher,
        on_repaired: Callable[[RepairReport], None],
        on_fatal: Callable[[BaseException], None],
        limits: RepairLimits = _LIMITS,
    ) -> None:
        """`on_repaired` is called on the loop; `on_fatal` gets an error that must end the
        process."""
        self._store, self._fetcher = store, fetcher
        self._on_repaired, self._on_fatal = on_repaired, on_fatal
        self._limits = limits
        self._errors: deque[CorruptionError] = deque()
        self._paths: set[str] = set()
        """Paths of the waiting errors, and of the one under repair."""
        self._given_up: set[str] = set()
        """Paths whose last repair was given up."""
        self._task: asyncio.Task[None] | None = None
        self.repaired_entry_count = self.given_up_count = 0
        self.last_trouble = ""

    def on_damage(self, error: CorruptionError) -> bool:
        """Have the file of a damaged read repaired soon; return whether that is news.

        Returns at once; repeated errors are one. The reader may ask again, unless the last repair
        was given up.
        """
        if error.path not in self._given_up and self._fetcher.candidates():
            error.note_repair()
        if error.path in self._paths or len(self._errors) >= self._limits.live_error_count_max:
            return False
        self._paths.add(error.path)
        self._errors.append(error)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
        return True

    async def stop(self) -> None:
        """Give up the repairs that are left; the damage stays as it is."""
        self._errors.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def waiting_count(self) -> int:
        """Damaged places known and not repaired, including the one under way."""
        return len(self._paths)

    async def _work(self) -> None:
        try:
            while self._errors:
                error = self._errors.popleft()
                await self._repair_file(error)
                self._paths.discard(error.path)
        except Exception as error:  # noqa: BLE001 - a failed sync or a bug: the process ends.
            self._on_fatal(error)

    async def _repair_file(self, error: CorruptionError) -> None:
        """Search, fetch and repair until the file is good or the attempts are used up."""
        for _ in range(self._limits.live_attempt_count_max):
            try:
                ranges = await on_thread(partial(self._store.damage_of, error))
                if not ranges:
                    self._given_up.discard(error.path)
                    return
                # One that no peer can give stops none behind it.
                if not any([await self._repair_range(each) for each in ranges]):
                    await asyncio.sleep(self._limits.retry_ms / 1000)
            except (StoreFullError, FileSystemError, CorruptionError) as trouble:
                self.last_trouble = str(trouble)
                await asyncio.sleep(self._limits.retry_ms / 1000)
        self._given_up.add(error.path)
        self.given_up_count += 1

    async def _repair_range(self, damaged: DamagedRange) -> bool:
        """Repair one range with the entries of one peer; return whether anything was repaired."""
        size_bytes = damaged.end_position - damaged.position
        limit = self._limits.live_size_bytes_max
        if size_bytes > limit:
            self.last_trouble = (
                f"{size_bytes} bytes are damaged, {limit} can be repaired while the node runs; "
                f"restart it"
            )
            return False
        lo, hi = damaged.lo_index, damaged.hi_index
        if lo == hi:  # Only the blank at the end of a file.
            return await self._put(lo, hi, b"", "the log itself")
        for node in self._fetcher.candidates():
            try:
                raw_entries = await self._fetch_all(node, lo, hi)
            except FetchError as error:
                self.last_trouble = str(error)
                continue
            if await self._put(lo, hi, raw_entries, f"node {node}"):
                return True
        return False

    async def _fetch_all(self, node: NodeId, lo: Index, hi: Index) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        while lo < hi:
            fetched = await self._fetcher.fetch(node, lo, hi)
            pieces.append(fetched.raw_entries)
            size_bytes += len(fetched.raw_entries)
            if size_bytes > 2 * self._limits.live_size_bytes_max:
                raise FetchError(node, f"its entries [{lo}, {hi}) are larger than those damaged")
            lo = fetched.hi
        return b"".join(pieces)

    async def _put(self, lo: Index, hi: Index, raw_entries: bytes, source: str) -> bool:
        try:
            report = await on_thread(partial(self._store.repair_range, lo, hi, raw_entries))
        except (ForeignEntryError, DamageWiderError, PositionRangeError) as error:
            self.last_trouble = f"entries of {source}: {error}"
            return False
        self.repaired_entry_count += report.entry_count
        self._on_repaired(report)
        return True
