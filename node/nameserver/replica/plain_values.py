"""Plain values between replicas: JSON, in which bytes are `{"bytes": "<base64>"}`.

Owns the form of numbers, texts, bytes, lists and objects on the wire; must not know the library or
the meaning of a message. JSON takes the place of the library's pickle, since a pickle machine calls
functions that the data names and allocates what the data asks for, even before the sender has
authenticated.
"""

import base64
import json
from typing import Any, Final

from quorumlog.foreign_json import read_json

_BYTES: Final = "bytes"


def encoded_value(value: object, protocol: object = None) -> bytes:
    """Return a value in the form that `decoded_value` reads; a tuple becomes a list."""
    del protocol  # The library names a protocol of pickle.
    return json.dumps(value, default=_tagged, separators=(",", ":")).encode()


def decoded_value(data: bytes, value_count_max: int) -> Any:
    """Return the value of at most `value_count_max` parts, with containers. Raises ValueError.

    Memory stays within a small multiple of the size of `data` and of `value_count_max`."""
    count = 1 + sum(data.count(mark) for mark in b",[{")
    if count > value_count_max:
        raise ValueError(f"{count} values, more than {value_count_max}")
    return _untagged(read_json(data, is_unique=True))


def refuse_pickle(*_: object) -> None:
    """Raise ValueError; takes the place of the library's own reader, which we never call."""
    raise ValueError("nothing that a replica reads goes through a pickle machine")


def _tagged(value: object) -> dict[str, str]:
    assert isinstance(value, bytes), "a message has plain values only"
    return {_BYTES: base64.b64encode(value).decode()}


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {_BYTES}:
        return {name: _untagged(item) for name, item in value.items()}
    if not isinstance(value[_BYTES], str):
        raise ValueError("bytes that are no text of base64")
    return base64.b64decode(value[_BYTES], validate=True)
