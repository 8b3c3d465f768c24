"""Readers of foreign JSON with limits that do not depend on the caller, and the writer.

Owns the limits of depth and of values. Python's own reader fails where the stack of its caller
ends, with an error that is not a ValueError: of two replicas that apply one command, or of two
callers that read one file, one could accept the text and the other refuse it. Must not know what a
document means.
"""

import json
import math
from typing import Any, Final

import orjson

DEPTH_MAX: Final = 64
"""Levels of nested objects and lists. Our texts have six at most, RocketMQ's tables four."""

VALUE_COUNT_MAX: Final = 65_536
"""Values of one text of a stranger: the loop reads them in 10 ms. A heartbeat of a group that reads
1,024 topics has 16,000."""


class JsonLimitError(ValueError):
    """A text is over a limit, which the error names."""


def read_bounded_json(data: bytes, size_bytes_max: int) -> Any:
    """Return the value of a JSON text of a stranger, which is measured before it is read.

    All texts in it are UTF-8: half of a surrogate pair is a question mark. Raises JsonLimitError
    with the name of the limit, and ValueError as `read_json` does."""
    if len(data) > size_bytes_max:
        raise JsonLimitError(f"{len(data)} bytes of JSON, the limit is {size_bytes_max}")
    inner_count = data.count(b"[") + data.count(b"{")
    value_count = data.count(b",") + inner_count  # Never below the true one: texts have commas.
    if value_count > VALUE_COUNT_MAX:
        raise JsonLimitError(f"{value_count} values of JSON, the limit is {VALUE_COUNT_MAX}")
    try:
        value = orjson.loads(data)
    except ValueError:  # Also half of a surrogate pair, which orjson refuses and Java sends.
        return orjson.loads(dump_json(read_json(data)))
    if inner_count > DEPTH_MAX:
        _check_depth(value)
    return value


def dump_json(document: object) -> bytes:
    """Return a document as JSON, without blanks."""
    try:
        return orjson.dumps(document)
    except TypeError:  # Half of a surrogate pair: it becomes a question mark.
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for a text nested too deep, or with
    a number that is infinite or none: Python reads those, and what they are part of could not be
    written again."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
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


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text:.20} is too large a number")
    return found


def _too_deep() -> JsonLimitError:
    return JsonLimitError(f"objects and lists are nested more than {DEPTH_MAX} deep")
