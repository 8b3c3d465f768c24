"""The real-time rule (fault-matrix 9.2.4): operations with known positions must respect the clock.

Each operation has a slot on the line of all effects; an append at offset o has slot 2o + 1, a read
that saw the end e has slot 2e. An operation invoked after another returned must have a higher slot,
or for a read at least an equal one. One sweep in order of invocation finds every breach, and the
sweep is complete, because the slots already give the only possible order.
"""

from __future__ import annotations

from collections.abc import Callable

from checkers.history import NEVER_NS, Operation

NO_SLOT = -1


class Sweep:
    """Collects operations with slots, then finds the pairs that break real time."""

    __slots__ = ("_check_slots", "_invokes", "_is_write", "_operations", "_push_slots", "_returns")

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._invokes: list[int] = []
        self._returns: list[int] = []
        self._check_slots: list[int] = []
        self._push_slots: list[int] = []
        self._is_write: list[bool] = []

    def add_write(self, operation: Operation, position: int) -> None:
        """Add an append or put known to have taken effect at `position`, by its ack or a reader."""
        slot = 2 * position + 1
        self._add(operation, slot, slot, is_write=True)

    def add_read(self, operation: Operation, *, end_max: int | None, end_min: int | None) -> None:
        """Add a read that saw an end within [end_min, end_max]; None: that bound is unknown.

        A read cut short by its limit proves only that the end was not lower; a read that found no
        record at its offset only that the end was not higher.
        """
        check = NO_SLOT if end_max is None else 2 * end_max
        push = NO_SLOT if end_min is None else 2 * end_min
        self._add(operation, check, push, is_write=False)

    def _add(self, operation: Operation, check: int, push: int, *, is_write: bool) -> None:
        returned = operation.return_ns
        self._operations.append(operation)
        self._invokes.append(operation.invoke_ns)
        self._returns.append(NEVER_NS if returned is None else returned)
        self._check_slots.append(check)
        self._push_slots.append(push)
        self._is_write.append(is_write)

    def run(self, report: Callable[[Operation, Operation], None]) -> None:
        """Call `report(later, earlier)` for each operation placed before one that had ended when
        it began."""
        invokes, returns = self._invokes, self._returns
        by_invoke = sorted(range(len(invokes)), key=invokes.__getitem__)
        by_return = sorted(range(len(returns)), key=returns.__getitem__)
        highest, highest_at, done = NO_SLOT, NO_SLOT, 0
        count = len(by_return)
        for at in by_invoke:
            invoke = invokes[at]
            while done < count and returns[by_return[done]] < invoke:
                ended = by_return[done]
                done += 1
                if self._push_slots[ended] > highest:
                    highest, highest_at = self._push_slots[ended], ended
            slot = self._check_slots[at]
            if slot == NO_SLOT:
                continue
            if slot < highest or (slot == highest and self._is_write[at]):
                report(self._operations[at], self._operations[highest_at])
