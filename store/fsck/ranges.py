"""Names the damage of a ledger as the ranges that a replica has to fetch again, and their borders.

Owns the way from a check to the ranges of `store.ledger.mending.damage`; must not repair. A node of
a raft group finds the same ranges when it starts, and fetches them from its peers.
"""

from store.fsck.check import Check
from store.fsck.checks.log import NOWHERE
from store.fsck.files import Segments
from store.ledger.mending.damage import DamagedRange, DamageWalk, Goal
from store.ledger.walk import EntryBoundary


def damaged_ranges(check: Check) -> list[DamagedRange]:
    """Return the damaged ranges of entries below the known good position, oldest first.

    Reads the whole log once more. Empty for a plain log, and where it is not known how far the log
    was good or how it began.
    """
    mark = check.trust.mark
    if check.index is None or mark is None or check.is_resetting or not check.is_start_proven:
        return []
    if check.trust.known_good_position == NOWHERE:
        return []
    walk = DamageWalk(
        lambda position, size_bytes: _read(check.data, position, size_bytes),
        check.config.file_size_bytes,
        Goal(check.trust.known_good_position, mark.durable_index),
    )
    try:
        return list(walk.ranges(EntryBoundary(check.start.min_position, check.start.link)))
    finally:
        check.place.descriptors.close()


def _read(data: Segments, position: int, size_bytes: int) -> bytes:
    if not data.position <= position < data.end_position:  # The first or last files are missing.
        return bytes(size_bytes)
    return data.read(position, size_bytes)
