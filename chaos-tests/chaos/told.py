"""Answers to calls that change something, and the clock of these calls.

Owns the kinds of answers, for the histories of single features; must not know any feature.
"""

import time
from enum import StrEnum

from quorumlog.errors import Outcome, QuorumlogError


class ToldOutcome(StrEnum):
    """Outcome of a call, as far as its caller was told."""

    OK = "ok"
    TOO_LATE = "too late"
    """The matter of the call had been decided otherwise before."""
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"


def told_by(error: QuorumlogError) -> ToldOutcome:
    """Return the answer of an error that has no more information than its outcome."""
    return ToldOutcome.NOT_APPLIED if error.outcome is Outcome.NOT_APPLIED else ToldOutcome.UNKNOWN


def now_unix_ms() -> int:
    """Return the time of this machine's clock, which is that of every node."""
    return time.time_ns() // 1_000_000
