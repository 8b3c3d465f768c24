"""JSON that others wrote, read to a depth that does not depend on who reads it.

Owns the bound. Python's own reader ends where the stack of its caller does, with an error that is
no ValueError: of two replicas that apply one command, or of two callers that read one file, one
could take what the other refuses. Must not know what a document means.
"""

import json
from typing import Any, Final

DEPTH_MAX: Final = 64
"""Objects and lists inside each other. Ours have six at most, RocketMQ's tables four."""


def read_json(text: str | bytes) -> Any:
    """Return the value that a JSON text holds. Raises ValueError, also when it is too deep."""
    try:
        value = json.loads(text)
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


def _too_deep() -> ValueError:
    return ValueError(f"objects and lists are nested more than {DEPTH_MAX} deep")
