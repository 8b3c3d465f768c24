"""The ledger: the one true sequence of committed entries, and the state they produce.

Owns the three states that clients see: a queue, a register of unique values, and small registers
for compare-and-set. Must not know which replica applied which entry. A repeated value is an
idempotent retry and counts once.
"""

from __future__ import annotations

from typing import NamedTuple

from checkers.history import Swapped
from checkers.linearizability import INITIAL
from raft.messages import Index, Term
from raft.ready import EntryKind
from simulation.raft.coverage import Coverage
from simulation.raft.disk.image import DirectoryEntry
from simulation.raft.verdict import InvariantError


class CommittedLedger:
    """Every committed entry, and the state machine's state after the entry at each index."""

    __slots__ = (
        "cells",
        "commit_terms",
        "coverage",
        "ends",
        "entries",
        "offset_of",
        "queue",
        "registers",
        "swapped",
    )

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self._clear()

    def _clear(self) -> None:
        self.entries: list[DirectoryEntry] = []
        self.commit_terms: list[Term] = []
        """Term of the leader that committed each entry; never falls."""
        self.queue: list[int] = []
        """Appended values in order, each once: a repeated one is an idempotent retry."""
        self.offset_of: dict[int, int] = {}
        self.ends: list[int] = []
        """Length of the queue once the entry at this index is applied."""
        self.swapped: dict[int, Swapped] = {}
        """Result of each compare-and-set, by its number."""
        self.cells: dict[int, list[tuple[Index, int]]] = {}
        """By key of a compare-and-set register: (index, value) of each swap, oldest first."""
        self.registers: list[tuple[int | None, int]] = []
        """(value, index) of the newest put once the entry at this index is applied."""

    def extend(self, entry: DirectoryEntry, commit_term: Term) -> None:
        if self.commit_terms and commit_term < self.commit_terms[-1]:
            raise InvariantError("I4", f"{entry} was committed in the past term {commit_term}")
        self.entries.append(entry)
        self.commit_terms.append(commit_term)
        register = self.registers[-1] if self.registers else (None, -1)
        if entry.kind is EntryKind.DATA:
            value = entry.body
            if isinstance(value, CasBody):
                self._swap(entry.index, value)
            elif not isinstance(value, int):
                raise InvariantError("I5", f"{entry} holds neither a value nor a swap")
            elif is_put(value):
                # A put retried after an unknown outcome must not undo later puts.
                if value not in self.offset_of:
                    self.offset_of[value] = entry.index
                    register = (value, entry.index)
            elif value in self.offset_of:
                self.coverage.hit("duplicate_in_log")
            else:
                self.offset_of[value] = len(self.queue)
                self.queue.append(value)
        self.ends.append(len(self.queue))
        self.registers.append(register)

    def roll_back(self, lo: Index) -> None:
        """Forget the entries from `lo` on and all their effects."""
        kept = list(zip(self.entries[:lo], self.commit_terms[:lo], strict=True))
        self._clear()
        for entry, term in kept:
            self.extend(entry, term)

    def _swap(self, index: Index, body: CasBody) -> None:
        """Apply a compare-and-set once: a repeated one is a retry (I12)."""
        if body.number in self.swapped:
            return
        found = self.cell_at(body.key, index)
        is_swapped = body.expected in (ANYTHING, found)
        if is_swapped:
            self.cells.setdefault(body.key, []).append((index, body.new))
        self.swapped[body.number] = Swapped(is_swapped, found)

    def cell_at(self, key: int, applied: Index) -> int:
        """Return the value of a compare-and-set register after the entry at `applied`."""
        for index, value in reversed(self.cells.get(key, ())):
            if index <= applied:
                return value
        return INITIAL

    def end_at(self, applied: Index) -> int:
        return self.ends[applied] if applied >= 0 else 0

    def register_at(self, applied: Index) -> tuple[int | None, int]:
        return self.registers[applied] if applied >= 0 else (None, -1)


ANYTHING = -1
"""Used as the expected value: any value will do."""


class CasBody(NamedTuple):
    """Body of an entry that asks for a compare-and-set. Integers only, see `chain_of`."""

    number: int
    key: int
    expected: int
    new: int


def is_put(value: int) -> bool:
    """Whether a value is of a put: those are odd, values of appends are even."""
    return bool(value & 1)
