"""A measurement of the log checker on a clean history of any length (fault-matrix section 11)."""

from __future__ import annotations

import resource
import time

from checkers.checker import check_log
from checkers.history import (
    AppendCall,
    Drain,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Value,
)
from raft.errors import Outcome

QUEUE = "log"
_TAIL_EVERY = 5
_POLL_EVERY = 7


def clean_history(count: int) -> tuple[list[Operation], list[Drain]]:
    """Return `count` legal operations of overlapping clients, and the drain of three replicas."""
    operations: list[Operation] = []
    values: list[Value] = []
    polled = 0
    for op_id in range(count):
        span = (10 * op_id, 10 * op_id + 25)
        if op_id % _TAIL_EVERY == 0:
            found = Operation(op_id, 1, Kind.TAIL, QUEUE, *span, Outcome.APPLIED, None, len(values))
        elif op_id % _POLL_EVERY == 0:
            records = tuple(enumerate(values[polled : polled + 8], polled))
            found = Operation(
                op_id,
                2,
                Kind.POLL,
                QUEUE,
                *span,
                Outcome.APPLIED,
                ReadCall(polled, 8),
                Records(records),
            )
            polled += len(records)
        else:
            process = 3 + op_id % 16
            call = AppendCall(op_id, process, op_id)
            found = Operation(
                op_id,
                process,
                Kind.APPEND,
                QUEUE,
                *span,
                Outcome.APPLIED,
                call,
                HistoryReceipt(len(values)),
            )
            values.append(op_id)
        operations.append(found)
    return operations, [Drain(replica, QUEUE, 0, values) for replica in (1, 2, 3)]


def run(count: int) -> int:
    """Build and check a history; print time and memory. Non-zero if the checker reports
    anything."""
    operations, drains = clean_history(count)
    began = time.perf_counter()
    violations = check_log(operations, drains)
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count} operations, {len(drains)} drained replicas: {seconds:.2f} s, "
        f"{memory:.0f} MiB at most, {len(violations)} violations"
    )
    return 1 if violations else 0
