"""JSON bodies of requests and answers.

Owns how they are read and written. A body that is no object of the expected form is refused.
"""

import json
from typing import Any

from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode


def document_of(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a body. Raises RefusedError."""
    try:
        document = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        text = f"a body that is no JSON: {error}"
        raise RefusedError(ResponseCode.INVALID_PARAMETER, text) from None
    if type(document) is not dict:
        raise RefusedError(ResponseCode.INVALID_PARAMETER, "a body that is no JSON object")
    return document


def json_body(document: object) -> bytes:
    """Return the bytes of a JSON body, without blanks: some clients cut it at commas."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def text_in(row: dict[str, Any], name: str) -> str:
    """Return a text of an object; empty if it is missing or no text."""
    value = row.get(name)
    return value if type(value) is str else ""


def rows_of(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects; empty if it is missing. Raises RefusedError."""
    rows = document.get(name)
    if rows is None:
        return []
    if type(rows) is not list or not all(type(row) is dict for row in rows):
        raise RefusedError(ResponseCode.INVALID_PARAMETER, f"{name} is no list of objects")
    return rows
