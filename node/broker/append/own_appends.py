"""Entries that the broker writes on its own: commands, and messages that it moves with commands.

Owns the way of such an entry into the log and back, and how many may be under way; must not know
what they mean. Records and commands share one entry, so a message is delivered, retried or ended
exactly when the state says that it was: the next leader finds both or neither. In a plain log the
same holds up to the end of a batch that a power loss may cut (docs/guarantees.md). Commands that
are submitted alone share one entry with all of their turn of the loop, so a thousand consumers that
commit at once cost one round to a quorum; each caller learns the outcome of its own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from node.broker.append.produce import Refused, batch_size_bytes_max, own_size_bytes_max
from node.broker.core.context import Context, noted
from node.broker.core.offset_moves import Moves
from node.errors.common import BusyError, OutcomeUnknownError, ShuttingDownError
from node.state.appends import Committed, Prepared
from node.state.command_records import CommandEncoder
from quorumlog.pb.state_pb2 import Command
from raft.errors import RaftError
from raft.messages import NO_INDEX, Index
from store.errors import LimitExceededError


def _accept(_prepared: Prepared) -> None:
    """Accept every entry: its maker has checked it."""


class _Submitted(NamedTuple):
    """A command that waits for the end of its turn, or for its entry."""

    record: bytes
    moves: Moves
    future: "asyncio.Future[Index]"


class OwnAppends:
    """Writes the broker's own entries, within limits. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._encoder = CommandEncoder(context.store.config.store_host)
        self.entry_size_bytes_max: Final = own_size_bytes_max(context)
        """Limit of records and encoded commands together."""
        self._shared_size_bytes_max = min(
            context.limits.command_entry_size_bytes_max, batch_size_bytes_max(context)
        )
        """Limit of an entry of submitted commands."""
        self.count = self.size_bytes = 0
        """Entries not yet decided. A log that waits for copies may decide nothing for hours."""
        self._submitted: list[_Submitted] = []
        """Commands of this turn."""
        self.command_count = 0
        """Commands submitted and not yet decided."""

    def encode(self, commands: Iterable[Command]) -> bytes:
        """Return the records of commands, to attach them to a batch or to know their size."""
        return b"".join(map(self._encoder.encode, commands))

    async def write(
        self, records: bytes, commands: Sequence[Command], *, has_noted: bool = False
    ) -> Committed:
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
        try:
            decided = context.driver.append(batch, _accept)
        except RaftError as error:
            raise context.translate(error) from error
        self.count += 1
        self.size_bytes += size_bytes
        moves = context.moves.begin(() if has_noted else commands)

        def on_decided(decided: "asyncio.Future[Committed]") -> None:
            self.count -= 1
            self.size_bytes -= size_bytes
            context.moves.end(moves)
            noted(decided)

        decided.add_done_callback(on_decided)
        try:
            return await asyncio.shield(decided)
        except ShuttingDownError:
            raise self._unknown() from None
        except RaftError as error:
            raise context.translate(error) from error

    def _unknown(self) -> OutcomeUnknownError:
        """Return the error for a stop: ShuttingDownError would say that nothing was begun."""
        return OutcomeUnknownError(NO_INDEX, self._context.driver.term)

    # --- Commands alone ---

    async def submit(self, command: Command, *, is_administration: bool = False) -> Index:
        """Submit a command cluster-wide; return the index of its entry once it is applied.

        What it makes counts for the address of the caller, unless it `is_administration`.
        Raises the error with which the state refuses it (nothing was changed then), NotLeaderError,
        NotReadyError, BusyError, LimitExceededError, errors of a full disk; and with an unknown
        outcome AppendTimeoutError, OutcomeUnknownError.
        """
        return await self.decided(self.submit_nowait(command, is_administration=is_administration))

    async def decided(self, future: "asyncio.Future[Index]") -> Index:
        """Wait for the future of `submit_nowait`. A caller that gives up does not withdraw it."""
        future.add_done_callback(noted)
        return await self._context.decided(future)

    def submit_nowait(
        self, command: Command, *, is_administration: bool = False
    ) -> "asyncio.Future[Index]":
        """As `submit`, without a coroutine: commands enter the log in the order of the calls.

        The caller that waits for the future limits the time.
        """
        context = self._context
        context.check_leads()
        limit = context.limits.command_count_max
        if self.command_count >= limit:
            raise BusyError("commands under way", self.command_count, limit)
        record = self._encoder.encode(command)
        entry_limit = self._shared_size_bytes_max
        if len(record) > entry_limit:
            raise LimitExceededError("command", len(record), entry_limit)
        if not is_administration:
            context.makers.check(command)
        loop = asyncio.get_running_loop()
        if not self._submitted:
            loop.call_soon(self._write_submitted)
        future: asyncio.Future[Index] = loop.create_future()
        self._submitted.append(_Submitted(record, context.moves.begin((command,)), future))
        self.command_count += 1
        return future

    def _write_submitted(self) -> None:
        """Write the commands submitted in this turn, in as few entries as the limit allows."""
        pending, self._submitted = self._submitted, []
        limit = self._shared_size_bytes_max
        lo, size_bytes = 0, 0
        for number, one in enumerate(pending):
            if size_bytes + len(one.record) > limit:
                self._write_entry(pending[lo:number])
                lo, size_bytes = number, 0
            size_bytes += len(one.record)
        self._write_entry(pending[lo:])

    def _write_entry(self, pending: list[_Submitted]) -> None:
        batch = b"".join(one.record for one in pending)
        try:
            decided = self._context.driver.append(batch, _accept)
        except Refused as error:
            self._fail(pending, error)
            return
        decided.add_done_callback(lambda decided: self._on_decided(pending, decided))

    def _on_decided(self, pending: list[_Submitted], decided: "asyncio.Future[Committed]") -> None:
        error = ShuttingDownError() if decided.cancelled() else decided.exception()
        if error is not None:
            assert isinstance(error, Exception), f"{error!r}"
            if isinstance(error, ShuttingDownError):
                error = self._unknown()
            self._fail(pending, error)
            return
        committed = decided.result()
        self._end(pending)
        take_refusal = self._context.machine.take_refusal
        for one, position in zip(pending, committed.result.record_positions, strict=True):
            refusal = take_refusal(position)
            if one.future.done():
                continue
            if refusal is None:
                one.future.set_result(committed.index)
            else:
                one.future.set_exception(refusal)

    def _end(self, pending: list[_Submitted]) -> None:
        """Release decided commands, before a caller hears of them."""
        self.command_count -= len(pending)
        for one in pending:
            self._context.moves.end(one.moves)

    def _fail(self, pending: list[_Submitted], error: Exception) -> None:
        self._end(pending)
        error = self._context.translate(error)
        for one in pending:
            if not one.future.done():
                one.future.set_exception(error)
