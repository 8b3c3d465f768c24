"""Answers to calls that change something, and the clock of these calls.

Owns the kinds of answers, for the histories of single features; must not know any feature.
"""

import time
from collections.abc import Awaitable
from enum import StrEnum
from typing import TypeVar

from quorumlog.errors import DelayedGoneError, Outcome, QuorumlogError, StaleHandleError

_Result = TypeVar("_Result")


class ToldOutcome(StrEnum):
    """Outcome of a call, as far as its caller was told."""

    OK = "ok"
    TOO_LATE = "too late"
    """The matter of the call had been decided otherwise before."""
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"


async def outcome_of(call: Awaitable[_Result]) -> tuple[ToldOutcome, _Result | None]:
    """Return the outcome of a call as its caller learns it, and the result if there is one."""
    try:
        return ToldOutcome.OK, await call
    except (StaleHandleError, DelayedGoneError):
        return ToldOutcome.TOO_LATE, None
    except QuorumlogError as error:
        is_none = error.outcome is Outcome.NOT_APPLIED
        return ToldOutcome.NOT_APPLIED if is_none else ToldOutcome.UNKNOWN, None


def now_unix_ms() -> int:
    """Return the time of this machine's clock, which is that of every node."""
    return time.time_ns() // 1_000_000
