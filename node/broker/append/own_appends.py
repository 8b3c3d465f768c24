"""Entries that the broker writes on its own: messages it moves, with the commands for the move.

Owns the way of such an entry into the log and back, and how many may be under way; must not know
what they mean. Records and commands share one entry, so a message is delivered, retried or ended
exactly when the state says that it was: the next leader finds both or neither. In a plain log the
same holds up to the end of a batch that a power loss may cut (docs/guarantees.md).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from node.broker.append.attached import QueueKey
from node.broker.append.produce import own_size_bytes_max
from node.broker.core.context import Context
from node.broker.core.offset_moves import Moves
from node.errors.common import BusyError, OutcomeUnknownError, ShuttingDownError
from node.state.appends import Committed, Prepared
from node.state.command_records import CommandEncoder
from quorumlog.pb.state_pb2 import Command
from raft.errors import RaftError
from raft.messages import NO_INDEX, Index, Term
from store.errors import LimitExceededError


class WrittenAppend(NamedTuple):
    """An entry of the broker that is committed and applied here."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.
    term: Term
    positions: Sequence[int]
    """Positions of the records in the log, in the order given; the commands' come last."""
    queues: Mapping[QueueKey, tuple[int, int]]
    """Place of the records in each queue: (first offset, count)."""
    store_unix_ms: int


class OwnAppends:
    """Writes the broker's own entries, within limits. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._encoder = CommandEncoder(context.store.config.store_host)
        self.entry_size_bytes_max: Final = own_size_bytes_max(context)
        """Limit of records and encoded commands together."""
        self.count = self.size_bytes = 0
        """Entries not yet decided. A log that waits for copies may decide nothing for hours."""
        self.entries_total = self.records_total = 0

    def encode(self, commands: Iterable[Command]) -> bytes:
        """Return the records of commands, to attach them to a batch or to know their size."""
        return b"".join(map(self._encoder.encode, commands))

    async def write(
        self, records: bytes, commands: Sequence[Command], *, has_noted: bool = False
    ) -> WrittenAppend:
        """Append records and commands as one entry; return once it is applied here.

        The leader has made sure that the commands will not be refused: their records are in the log
        even if they change nothing. Raises at once, with nothing written: NotLeaderError,
        NotReadyError, BusyError, LimitExceededError, errors of a full disk. Later NotAppliedError,
        or with an unknown outcome OutcomeUnknownError: then this node leads no longer, and the next
        leader's state says what happened. Cancelling it does not withdraw the entry. `has_noted`:
        the caller itself notes the offsets in these commands as under way.
        """
        context = self._context
        context.check_leads()
        limit = context.limits.own_append_count_max
        if self.count >= limit:
            raise BusyError("entries of the broker", self.count, limit)
        batch = records + self.encode(commands)
        if len(batch) > self.entry_size_bytes_max:
            raise LimitExceededError("entry", len(batch), self.entry_size_bytes_max)
        size_bytes, limit = len(batch), context.limits.in_flight_size_bytes_max
        if self.count and self.size_bytes + size_bytes > limit:
            held = self.size_bytes + size_bytes
            raise BusyError("bytes of the broker's entries", held, limit)
        queues: dict[QueueKey, tuple[int, int]] = {}

        def look(prepared: Prepared) -> None:
            queues.update(prepared.queues)

        try:
            decided = context.driver.append(batch, look)
        except RaftError as error:
            raise context.translate(error) from error
        self.count += 1
        self.size_bytes += size_bytes
        moves = context.moves.begin(() if has_noted else commands)
        decided.add_done_callback(lambda decided: self._on_decided(moves, size_bytes, decided))
        committed = await self._decided(decided)
        result = committed.result
        return WrittenAppend(
            committed.index,
            committed.term,
            result.record_positions,
            queues,
            result.store_unix_ms,
        )

    def _on_decided(
        self, moves: Moves, size_bytes: int, decided: "asyncio.Future[Committed]"
    ) -> None:
        self.count -= 1
        self.size_bytes -= size_bytes
        self._context.moves.end(moves)
        if not decided.cancelled() and decided.exception() is None:
            self.entries_total += 1
            self.records_total += len(decided.result().result.record_positions)

    async def _decided(self, decided: "asyncio.Future[Committed]") -> Committed:
        try:
            return await asyncio.shield(decided)
        except ShuttingDownError:  # Would say that nothing was begun.
            raise OutcomeUnknownError(NO_INDEX, self._context.driver.term) from None
        except RaftError as error:
            raise self._context.translate(error) from error
