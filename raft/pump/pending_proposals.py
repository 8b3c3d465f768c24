"""Callers that wait for a proposal, and their answers.

Owns the outcome: committed or never applied where the log tells, unknown where it no longer can
(R37, R38). Must not know the order of work; `replica` calls this when the core has decided.
"""

from __future__ import annotations

from typing import Final

from raft.config import RaftConfig
from raft.errors import BusyError
from raft.messages import Index, Term
from raft.pump.effects import Completion, Resolution
from raft.state.log_view import LogView

_new: Final = tuple.__new__  # One call; the constructor of a named tuple is two.


class PendingProposals:
    """Waiting callers by index, each with the term of its proposal. One entry has one waiter."""

    __slots__ = ("_config", "by_index", "completed", "grace_deadline")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.by_index: dict[Index, tuple[Term, object]] = {}
        self.grace_deadline: int | None = None
        """Tick at which waiters of a lost leadership are given up; None without such waiters."""
        self.completed: list[Completion] = []
        """Decided proposals, to be handed out with the next effects."""

    def __len__(self) -> int:
        return len(self.by_index)

    def check(self) -> None:
        """Raise BusyError if no further caller may wait."""
        limit = self._config.waiter_count_max
        if len(self.by_index) >= limit:
            raise BusyError("waiting proposals", len(self.by_index), limit)

    def register(self, index: Index, term: Term, waiter: object) -> None:
        if index in self.by_index:
            # An earlier proposal at this index was cut off here, but may still be in other logs.
            self._resolve(index, Resolution.UNKNOWN)
        if waiter is not None:
            self.by_index[index] = (term, waiter)

    def complete(self, lo: Index, hi: Index, log: LogView) -> None:
        """Decide the proposals at [lo, hi), which are final: with another term, never applied."""
        by_index = self.by_index
        for index in range(lo, hi):
            if index in by_index:
                term, waiter = by_index[index]
                del by_index[index]
                stored_term = log.last_term if index == log.last_index else log.term_of(index)
                outcome = Resolution.COMMITTED if stored_term == term else Resolution.NOT_APPLIED
                self.completed += (_new(Completion, (waiter, index, term, outcome)),)

    def overtaken(self, through: Index) -> None:
        """Decide proposals covered by an installed snapshot: unknown, committed or replaced."""
        for index in [index for index in self.by_index if index <= through]:
            self._resolve(index, Resolution.UNKNOWN)

    def deposed(self, now_ticks: int) -> None:
        """Begin the wait for a definite answer by the next leader's log (R37)."""
        if self.by_index and self.grace_deadline is None:
            self.grace_deadline = now_ticks + self._config.waiter_grace_ticks

    def give_up(self, leading: Term | None) -> None:
        """Stop waiting for all but the proposals of the term this node leads in, if any."""
        for index in [index for index, (term, _) in self.by_index.items() if term != leading]:
            self._resolve(index, Resolution.UNKNOWN)

    def take(self) -> list[Completion]:
        """Return the proposals decided since the last call."""
        completed, self.completed = self.completed, []
        return completed

    def _resolve(self, index: Index, resolution: Resolution) -> None:
        term, waiter = self.by_index.pop(index)
        self.completed.append(Completion(waiter, index, term, resolution))
