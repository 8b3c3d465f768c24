"""JSON of strangers with limits of size and of values, and the writer.

Owns these two limits and the fast reader. The rule of what is read is that of
`quorumlog.foreign_json`. Must not know what a document means.
"""

import json
from typing import Any, Final

import orjson

from quorumlog.foreign_json import DEPTH_MAX, JsonLimitError, check_depth, read_json

VALUE_COUNT_MAX: Final = 65_536
"""Values of one text of a stranger: the loop reads them in 10 ms. A heartbeat of a group that reads
1,024 topics has 16,000."""


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
        check_depth(value)
    return value


def dump_json(document: object) -> bytes:
    """Return a document as JSON, without blanks."""
    try:
        return orjson.dumps(document)
    except TypeError:  # Half of a surrogate pair: it becomes a question mark.
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
