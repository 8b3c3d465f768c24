"""JSON that others wrote, read by one rule for files, options and calls.

Owns the limits of depth, of numbers and of the encoding, which depend neither on the caller nor on
Python's settings: Python's own reader guesses an encoding, keeps the last of two members of one
name, and fails where the stack of its caller ends, with an error that is no ValueError. So of two
replicas that apply one command one could accept the text and the other refuse it. Must not know
what a document means.
"""

import json
import math
from typing import Any, Final

DEPTH_MAX: Final = 64
"""Levels of nested objects and lists. Our texts have six at most, RocketMQ's tables four."""


class JsonLimitError(ValueError):
    """A text is over a limit, which the error names."""


def read_json(text: str | bytes, *, is_unique: bool = False) -> Any:
    """Return the value of a JSON text; bytes are UTF-8, and may begin with its mark.

    Raises ValueError, also for a text nested too deep, for a number that is infinite, none or of
    more digits than Python reads, and with `is_unique` for two members of one name."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ValueError(f"no UTF-8 at byte {error.start}; write it as UTF-8") from None
    hook = _unique if is_unique else None
    text = text.removeprefix("\ufeff")
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=hook
        )
    except RecursionError:
        raise _too_deep() from None
    except (json.JSONDecodeError, JsonLimitError):
        raise
    except ValueError:  # Of `int`, which names a function of Python.
        raise JsonLimitError("a whole number has more than 4,300 digits") from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError for a value that is nested too deep."""
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
            return
    raise _too_deep()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonLimitError(f"{twice[:200]!r} is there twice; keep one of them")
    return document


def _refuse(text: str) -> Any:
    raise JsonLimitError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonLimitError(f"{text:.20} is too large a number")
    return number


def _too_deep() -> JsonLimitError:
    return JsonLimitError(f"objects and lists are nested more than {DEPTH_MAX} deep")
