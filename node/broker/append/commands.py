"""Submits commands to the replicated state, and tells each caller the outcome of its own.

Owns the way of a command into the log and back; must not know what commands mean. Commands of one
loop turn share one entry, so a thousand consumers that commit at once cost one round to a quorum.
"""

import asyncio
from typing import Final, NamedTuple

from node.broker.append.produce import batch_size_bytes_max
from node.broker.core.context import Context, within
from node.broker.core.offset_moves import Moves
from node.errors.common import (
    AppendTimeoutError,
    BusyError,
    NodeError,
    OutcomeUnknownError,
    ShuttingDownError,
)
from node.state.appends import Committed, Prepared
from node.state.command_records import CommandEncoder
from quorumlog.pb.state_pb2 import Command
from raft.errors import RaftError
from raft.messages import NO_INDEX, Index
from store.errors import LimitExceededError, StoreError


class _Pending(NamedTuple):
    record: bytes
    moves: Moves
    future: "asyncio.Future[Index]"


class Commands:
    """The commands under way and their callers. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._encoder = CommandEncoder(context.store.config.store_host)
        self._entry_size_bytes_max = min(
            context.limits.command_entry_size_bytes_max, batch_size_bytes_max(context)
        )
        self._pending: list[_Pending] = []
        self.count = 0
        """Commands submitted and not yet decided."""
        self.commands_total = self.entries_total = 0

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
        timeout_ms = self._context.limits.append_timeout_ms
        future.add_done_callback(_noted)
        return await within(
            asyncio.shield(future), timeout_ms, lambda: AppendTimeoutError(timeout_ms)
        )

    def submit_nowait(
        self, command: Command, *, is_administration: bool = False
    ) -> "asyncio.Future[Index]":
        """As `submit`, without a coroutine: commands enter the log in the order of the calls.

        The caller that waits for the future limits the time.
        """
        context = self._context
        context.check_leads()
        limit = context.limits.command_count_max
        if self.count >= limit:
            raise BusyError("commands under way", self.count, limit)
        record = self._encoder.encode(command)
        entry_limit = self._entry_size_bytes_max
        if len(record) > entry_limit:
            raise LimitExceededError("command", len(record), entry_limit)
        if not is_administration:
            context.makers.check(command)
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._write)
        future: asyncio.Future[Index] = loop.create_future()
        self._pending.append(_Pending(record, context.moves.begin((command,)), future))
        self.count += 1
        return future

    def _write(self) -> None:
        """Write the commands submitted in this turn, in as few entries as the limit allows."""
        pending, self._pending = self._pending, []
        limit = self._entry_size_bytes_max
        lo, size_bytes = 0, 0
        for number, one in enumerate(pending):
            if size_bytes + len(one.record) > limit:
                self._write_entry(pending[lo:number])
                lo, size_bytes = number, 0
            size_bytes += len(one.record)
        self._write_entry(pending[lo:])

    def _write_entry(self, pending: list[_Pending]) -> None:
        batch = b"".join(one.record for one in pending)
        try:
            decided = self._context.driver.append(batch, _accept)
        except (NodeError, StoreError, RaftError) as error:
            self._fail(pending, error)
            return
        decided.add_done_callback(lambda decided: self._on_decided(pending, decided))

    def _on_decided(self, pending: list[_Pending], decided: "asyncio.Future[Committed]") -> None:
        error = ShuttingDownError() if decided.cancelled() else decided.exception()
        if error is not None:
            assert isinstance(error, Exception), f"{error!r}"
            if isinstance(error, ShuttingDownError):  # Would say that nothing was begun.
                error = OutcomeUnknownError(NO_INDEX, self._context.driver.term)
            self._fail(pending, error)
            return
        committed = decided.result()
        self._end(pending)
        self.entries_total += 1
        self.commands_total += len(pending)
        take_refusal = self._context.machine.take_refusal
        for one, position in zip(pending, committed.result.record_positions, strict=True):
            refusal = take_refusal(position)
            if one.future.done():
                continue
            if refusal is None:
                one.future.set_result(committed.index)
            else:
                one.future.set_exception(refusal)

    def _end(self, pending: list[_Pending]) -> None:
        """Release decided commands, before a caller hears of them."""
        self.count -= len(pending)
        for one in pending:
            self._context.moves.end(one.moves)

    def _fail(self, pending: list[_Pending], error: Exception) -> None:
        self._end(pending)
        error = self._context.translate(error)
        for one in pending:
            if not one.future.done():
                one.future.set_exception(error)


def _accept(prepared: Prepared) -> None:
    """Accept: commands were checked when they were submitted."""


def _noted(future: "asyncio.Future[Index]") -> None:
    """Mark an error as retrieved: the caller that waited for it may have gone."""
    if not future.cancelled():
        future.exception()
