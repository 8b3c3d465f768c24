"""What a caller was told of a call that changes something, and by which clock.

Owns the words for it, for the histories of single features; must not know any feature.
"""

import time
from enum import StrEnum

from quorumlog.errors import Outcome, QuorumlogError


class Told(StrEnum):
    """What became of it."""

    OK = "ok"
    TOO_LATE = "too late"
    """What it was about was decided otherwise before."""
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"


def told_by(error: QuorumlogError) -> Told:
    """Of an error that does not say more than its outcome."""
    return Told.NOT_APPLIED if error.outcome is Outcome.NOT_APPLIED else Told.UNKNOWN


def now_unix_ms() -> int:
    """The clock of this machine, which is that of every node."""
    return time.time_ns() // 1_000_000
