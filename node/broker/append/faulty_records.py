"""The faulty records of a refused batch, so that a client can send all others again at once.

Owns the search, which begins when a batch is refused because of a record, and its limit; must not
know what makes a record faulty.
"""

from collections.abc import Callable
from typing import Final

from node.errors.common import NodeError
from store.errors import LimitExceededError, RecordFormatError, StoreError
from store.record.message import record_layout

OF_THE_BATCH: Final = ("batch", "entry")
"""The limits that the logs keep for what is written at once: no record alone breaks one."""
LOOKED_AT_MAX: Final = 1_000
"""Records that are looked at: as many as a batch of our own client has. So a refusal costs about as
much as stamping these twice, and its error fits into the trailer of a call."""


def faulty_records(
    records: bytes, error: NodeError | StoreError, check: Callable[[bytes], object]
) -> tuple[int, ...]:
    """Return the numbers of the records that have the fault `error`; `records` is the whole batch.

    `check` gets one record after the other and raises for a faulty one. Behind a record whose end
    cannot be found nothing is known. A batch that is too large as a whole has no faulty record.
    """
    if isinstance(error, LimitExceededError) and error.what in OF_THE_BATCH:
        return ()
    numbers, at, view = list[int](), 0, memoryview(records)
    for number in range(LOOKED_AT_MAX):
        if at >= len(records):
            break
        try:
            end = at + record_layout(view, at).size_bytes
        except RecordFormatError as unreadable:
            if unreadable.code == error.code:
                numbers.append(number)
            break
        try:
            check(records[at:end])
        except (NodeError, StoreError) as fault:
            if fault.code == error.code:
                numbers.append(number)
        at = end
    return tuple(numbers)
