"""Finds the entries of consecutive records: a run of neighbours is one result.

Owns the way from records to entries; must not know the caller. The index leads, headers confirm: an
entry's header holds its own position. Records of one queue lie near each other, so the entry of the
next record is mostly a few entries on.
"""

from typing import Final

from store import format as fmt
from store.ledger.reader import LedgerReader
from store.log.record_log import EntryRun

_NEAR: Final = 8  # Entries that are tried one by one before a search.


def entry_runs(ledger: LedgerReader, records: bytes) -> list[EntryRun]:
    """Return the runs of records that were read from a ledger and lie back to back.

    Raises PositionRangeError for records that expired meanwhile, CorruptionError.
    """
    runs: list[EntryRun] = []
    at, number, lo, hi, index = 0, 0, 0, 0, -1
    while at < len(records):
        position = fmt.TIMESTAMP.unpack_from(records, at + fmt.PHYSICAL_OFFSET_AT)[0]
        if not lo <= position < hi:
            index = _index_at(ledger, position, index, hi)
            header = ledger.header(index)
            lo, hi = header.position, header.position + header.size_bytes
            runs.append(EntryRun(number, index, header.term))
        at += fmt.INT32.unpack_from(records, at)[0]
        number += 1
    return runs


def _index_at(ledger: LedgerReader, position: int, before: int, before_end: int) -> int:
    """Return the entry at a position; the last one found was `before`, or -1."""
    if before >= 0 and position >= before_end:
        for index in range(before + 1, min(before + 1 + _NEAR, ledger.last_index + 1)):
            unit = ledger.index.get(index)
            if unit is not None and unit.position <= position < unit.position + unit.size_bytes:
                return index
    return ledger.index_at_position(position)
