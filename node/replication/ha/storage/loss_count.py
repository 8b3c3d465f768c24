"""Counts the messages in a lost range of the log while its bytes are still there.

Owns what counts as a message: a record of a topic that is not the system's. Must not know why the
range is lost.
"""

from __future__ import annotations

import contextlib

from node.replication.ha.core.effects import LossReport
from node.replication.ha.storage.log import HaLog
from node.replication.ha.storage.losses import LostEnd
from node.runtime.clock import unix_ms
from store.errors import StoreError
from store.record.message import record_layout
from store.record.topic_names import is_reserved


def count_loss(log: HaLog, report: LossReport) -> LostEnd:
    """Count the messages of a loss; -1 for bytes that are not here, whose count is unknown."""
    lo, hi = report.lo, min(report.hi, log.end)
    record_count, acked_count = -1, -1
    if hi > lo:
        with contextlib.suppress(StoreError):  # Damaged bytes are set aside all the same.
            record_count, acked_count = _count(log, lo, hi, report.acked_hi)
    return LostEnd(
        unix_ms=unix_ms(),
        epoch=report.epoch,
        lo=report.lo,
        hi=report.hi,
        acked_hi=report.acked_hi,
        is_exact=report.is_exact,
        record_count=record_count,
        acked_record_count=acked_count,
        file="",
    )


def _count(log: HaLog, lo: int, hi: int, acked_hi: int) -> tuple[int, int]:
    record_count = acked_count = 0
    for position, data in log.store.log.record_runs(lo, hi):
        view, at = memoryview(data), 0
        while at < len(view):
            layout = record_layout(view, at)
            at += layout.size_bytes
            if not is_reserved(bytes(view[layout.topic_at : layout.topic_hi]).decode()):
                record_count += 1
                acked_count += position + at <= acked_hi
    return record_count, acked_count
