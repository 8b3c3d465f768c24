"""The history that clients may rely on after a majority lost its memory (design 4.5,
`flush=async`).

Owns the cut in the history: up to the loss it is judged by the entries committed by then; the part
after it begins with the remaining entries. An acked call whose entry is gone, and any call that was
open at that moment, counts as unknown from there on; so does one that was not applied, since the
entry in its place may be gone, and a node whose log still ends in its own entry may lead. Must not
decide which entries are lost: the referee does, from the reports of the replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkers.history import AppendCall, Kind, Operation, acked
from raft.errors import Outcome
from raft.messages import Index

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.world import World


def cut_history(world: World, lo: Index) -> list[Operation]:
    """Forget the entries from `lo` on, which are reported as lost; return the history so far.

    The caller judges the returned history with the queue as it was before this call."""
    ledger = world.referee.ledger
    count = len(world.history)
    for client in world.clients:
        client.note_open_call()  # For the judgement only: the call continues and is noted again.
    before = list(world.history)
    ledger.roll_back(lo)
    world.history[:] = [
        _as_of_now(operation, ledger.offset_of)
        for operation in before[:count]
        if operation.kind in (Kind.APPEND, Kind.PUT)
    ]
    world.acked_end = len(ledger.queue)
    world.loss_us = world.now
    world.cells.turn_over()
    for client in world.clients:
        client.start_over(world.acked_end)
    world.coverage.hit("acked_entries_lost")
    return before


def _as_of_now(operation: Operation, offset_of: dict[int, int]) -> Operation:
    request = operation.request
    value = request.value if isinstance(request, AppendCall) else request
    if operation.outcome is Outcome.UNKNOWN or (acked(operation) and value in offset_of):
        return operation
    return operation._replace(outcome=Outcome.UNKNOWN, return_ns=None, result=None)
