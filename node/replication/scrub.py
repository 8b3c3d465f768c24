"""Reads all sealed files again within a set time, and compares them with the other replicas.

Owns the time of the next piece, the replicas to ask, and the counters. Must not know bytes: reading
and checking them is `store.maintenance.scrub`'s, mending them `node.replication.raft.repair`'s. A
disk that changes its contents is found this way before a reader needs them, and while the other
replicas still have them (fault-matrix D5, S14). Checksums show that a file holds what this node
wrote. To detect that nodes wrote different bytes, a pass compares the chain CRC of each file's last
entry with that of another replica: it stands for everything before.

Nothing is kept over a restart. A pass begins at the share of the log that the clock gives, so a
node that is restarted more often than a pass takes still covers all of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from node.errors.common import ShuttingDownError
from node.replication.fetch import EntryFetcher, FetchError
from node.runtime.clock import unix_ms
from node.runtime.fail_stop import FailStop
from raft.messages import NodeId
from store import format as fmt
from store.config import MIB
from store.errors import CorruptionError, FileSystemError, StoreFullError
from store.ledger.entry import ChainLink, unpack_header
from store.maintenance.scrub import PIECE_SIZE_BYTES, Piece, Scrubber

ROUND_MS: Final = 1_000
RATE_BYTES_PER_S_MAX: Final = 16 * MIB
"""Limit of the rate, however short a pass should be: clients go first."""
_log: Final = structlog.get_logger(component="scrub")


class ScrubStats(NamedTuple):
    """Counters since the start of the process."""

    read_size_bytes: int
    pass_count: int
    """Passes from the start of the log to the end of the sealed files."""
    damage_count: int
    mended_unit_runs: int
    """Pieces whose index was wrong and has been repaired."""
    compared_count: int
    """Answers of other replicas about the end of a file that were equal to this log."""
    differing_count: int
    """Answers that differed."""


class Scrub:
    """Runs until stopped. Belongs to the running loop."""

    def __init__(
        self,
        scrubber: Scrubber,
        interval_ms: int,
        on_thread: Callable[[Callable[[], Piece]], Awaitable[Piece]],
        on_damage: Callable[[CorruptionError], None],
        fail_stop: FailStop,
        fetcher: EntryFetcher | None = None,
    ) -> None:
        """A pass takes `interval_ms`; 0: no passes. `on_thread` runs work on the maintenance
        thread, or raises ShuttingDownError. Without a fetcher nothing is compared."""
        self._scrubber, self._interval_ms, self._on_thread = scrubber, interval_ms, on_thread
        self._on_damage, self._fail_stop, self._fetcher = on_damage, fail_stop, fetcher
        self._task: asyncio.Task[None] | None = None
        self._is_pass_whole = False
        self._stats = ScrubStats(0, 0, 0, 0, 0, 0)

    def start(self) -> None:
        """Start the passes, unless there are none."""
        if self._interval_ms:
            self._task = asyncio.create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """Stop after the piece being read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def stats(self) -> ScrubStats:
        """Return a snapshot of the counters."""
        return self._stats

    async def _run(self) -> None:
        try:
            await self._on_thread(self._begin)
            owed, at_s = 0.0, time.monotonic()
            while True:
                await asyncio.sleep(ROUND_MS / 1000)
                now_s = time.monotonic()
                owed += self._rate() * (now_s - at_s)
                owed = await self._round(min(owed, RATE_BYTES_PER_S_MAX))
                at_s = now_s
        except ShuttingDownError:
            return
        except Exception as error:  # noqa: BLE001 - a failed sync or a bug: the process ends.
            self._fail_stop(error)

    def _begin(self) -> Piece:
        share = unix_ms() % self._interval_ms / self._interval_ms
        self._scrubber.begin_at(share)
        return Piece()

    def _rate(self) -> float:
        """Return the bytes due in a second."""
        per_second = self._scrubber.sealed_size_bytes * 1000 / self._interval_ms
        return min(per_second, RATE_BYTES_PER_S_MAX)

    async def _round(self, owed: float) -> float:
        """Read the bytes owed, once they are a piece or the whole log; return the rest."""
        while owed >= min(PIECE_SIZE_BYTES, self._scrubber.sealed_size_bytes) > 0:
            piece = await self._on_thread(self._step)
            await self._note(piece)
            if not piece.size_bytes:  # The end, or the log was replaced: end of the round.
                return 0.0
            owed -= piece.size_bytes
        return owed

    def _step(self) -> Piece:
        try:
            return self._scrubber.step()
        except (FileSystemError, StoreFullError) as error:  # Of the index: reads bypass it.
            _log.warning("the index of the log could not be mended", error=str(error))
            return Piece()

    async def _note(self, piece: Piece) -> None:
        stats = self._stats
        self._stats = stats._replace(
            read_size_bytes=stats.read_size_bytes + piece.size_bytes,
            pass_count=stats.pass_count + (piece.ends_pass and self._is_pass_whole),
            damage_count=stats.damage_count + (piece.damage is not None),
            mended_unit_runs=stats.mended_unit_runs + piece.is_index_mended,
        )
        if piece.ends_pass:
            self._is_pass_whole = True
        if piece.is_index_mended:
            _log.warning("the index of the log was wrong and is repaired")
        if piece.damage is not None:
            self._on_damage(piece.damage)
        if piece.last is not None and self._fetcher is not None:
            await self._compare(self._fetcher, piece.last)

    async def _compare(self, fetcher: EntryFetcher, last: ChainLink) -> None:
        """Compare the entry with that of every connected replica."""
        for node in fetcher.candidates():
            peer = await self._answer(fetcher, node, last)
            if peer is None:
                continue
            if peer == last:
                self._stats = self._stats._replace(compared_count=self._stats.compared_count + 1)
                continue
            self._stats = self._stats._replace(differing_count=self._stats.differing_count + 1)
            _log.error(
                "two replicas hold different committed entries; see docs/operations.md",
                node=node,
                index=last.entry_index,
                here=f"term {last.term}, chain {last.chain_crc:08X}",
                there=f"index {peer.entry_index}, term {peer.term}, chain {peer.chain_crc:08X}",
            )

    @staticmethod
    async def _answer(fetcher: EntryFetcher, node: NodeId, last: ChainLink) -> ChainLink | None:
        """Return the entry of a node; None if it lacks it or does not answer."""
        try:
            fetched = await fetcher.fetch(node, last.entry_index, last.entry_index + 1)
        except FetchError:
            return None  # The replica is behind, or the entry expired there.
        if len(fetched.raw_entries) < fmt.ENTRY_HEADER_SIZE_BYTES:
            return ChainLink(-1, 0, 0)
        header = unpack_header(fetched.raw_entries)
        return ChainLink(header.entry_index, header.term, header.chain_crc)
