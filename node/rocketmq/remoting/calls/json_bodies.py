"""JSON bodies of requests and answers.

Owns how they are read and written, and how large one of each kind may be. A body that is no object
of the expected form is refused, before it is read if it is too large.
"""

import time
from collections.abc import Iterable
from typing import Any, Final

from orjson import Fragment

from node.rocketmq.remoting.protocol.answers import Answer, InvalidError
from node.rocketmq.remoting.protocol.fields import TEXT_LENGTH_MAX
from node.runtime.json_text import dump_json, read_bounded_json
from quorumlog.foreign_json import JsonLimitError

DOCUMENT_SIZE_BYTES_MAX: Final = 64 * 1024
"""Body that is about one thing: a group, a subscription with 64 tags, an assignment."""
LIST_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Body with rows: the heartbeat of a group that reads 1,024 topics has half of it, a request for
4,096 locks the same. It is read in 10 ms."""
ROW_COUNT_MAX: Final = 4_096
"""Rows of a list: four of the widest topics; tools send some hundred topics or groups."""


class OverLimitError(InvalidError):
    """A body is over a limit, which the remark names."""


def document_of(body: bytes, size_bytes_max: int = DOCUMENT_SIZE_BYTES_MAX) -> dict[str, Any]:
    """Read the JSON object of a body. Raises RefusedError."""
    try:
        document = read_bounded_json(body, size_bytes_max)
    except JsonLimitError as error:
        raise OverLimitError(f"a body: {error}") from None
    except ValueError as error:
        raise InvalidError(f"a body that is no JSON: {error}") from None
    if type(document) is not dict:
        raise InvalidError("a body that is no JSON object")
    return document


def list_of(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a body whose rows `rows_of` returns. Raises RefusedError."""
    return document_of(body, LIST_SIZE_BYTES_MAX)


def data_version() -> dict[str, int]:
    """Return a version that is newer each time: tools compare versions of tables.

    Its time says so. The client for Go refuses a table whose counter exceeds 32 bits.
    """
    return {"stateVersion": 0, "timestamp": int(time.time() * 1000), "counter": 0}


def json_answer(**document: object) -> Answer:
    """Return the answer that has a document of these fields as its body, without blanks: some
    clients cut it at commas."""
    return Answer(body=dump_json(document))


def table_of(entries: Iterable[bytes]) -> Fragment:
    """Return a table of entries as `Shared.by_queue` makes them."""
    return Fragment(b"{%b}" % b",".join(entries))


def text_in(row: dict[str, Any], name: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return a text of an object; empty if it is missing or no text. Raises RefusedError."""
    value = row.get(name)
    if type(value) is not str:
        return ""
    if len(value) > length_max:
        raise OverLimitError(f"{name} has {len(value)} characters, the limit is {length_max}")
    return value


def number_in(row: dict[str, Any], name: str, hi: int, default: int = 0) -> int:
    """Return a number from 0 to `hi` of an object. Raises RefusedError."""
    value = row.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= hi:
        raise InvalidError(f"{name} is {str(value)[:40]}; it is a number from 0 to {hi}")
    return value


def rows_of(
    document: dict[str, Any], name: str, count_max: int = ROW_COUNT_MAX
) -> list[dict[str, Any]]:
    """Return a list of objects; empty if it is missing. Raises RefusedError."""
    rows = document.get(name)
    if rows is None:
        return []
    if type(rows) is not list or not all(type(row) is dict for row in rows):
        raise InvalidError(f"{name} is no list of objects")
    if len(rows) > count_max:
        raise OverLimitError(f"{len(rows)} rows of {name}, the limit is {count_max}")
    return rows
