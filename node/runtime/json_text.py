"""A reader of foreign JSON with a depth limit that does not depend on the caller.

Owns the limit. Python's own reader fails where the stack of its caller ends, with an error that is
not a ValueError: of two replicas that apply one command, or of two callers that read one file, one
could accept the text and the other refuse it. Must not know what a document means.
"""

import json
import math
from typing import Any, Final

DEPTH_MAX: Final = 64
"""Levels of nested objects and lists. Our texts have six at most, RocketMQ's tables four."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for a text nested too deep, or with
    a number that is infinite or none: Python reads those, and what they are part of could not be
    written again."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    inner = [value]
    for _ in range(DEPTH_MAX):
        inner = [
            part
            for outer in inner
            if isinstance(outer, dict | list)
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(part, dict | list)
        ]
        if not inner:
            return value
    raise _too_deep()


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text:.20} is too large a number")
    return found


def _too_deep() -> ValueError:
    return ValueError(f"objects and lists are nested more than {DEPTH_MAX} deep")
