"""Bodies of messages: a value, unique over all runs, and padding that follows from it.

Owns their form, so that a reader can identify a message from its bytes alone. A body that is not
the one of its value is shown as a value that was never sent.
"""

import hashlib
from typing import Final

_PADDING_COUNT: Final = 3


def body_of(value: str) -> bytes:
    """Return the body that carries a value."""
    padding = hashlib.sha1(value.encode(), usedforsecurity=False).hexdigest()
    return f"{value} {padding * _PADDING_COUNT}".encode()


def value_of(body: bytes) -> str:
    """Return the value of a body, or a text that was never sent."""
    value = bytes(body).partition(b" ")[0].decode("utf-8", "replace")
    return value if body_of(value) == body else f"damaged:{bytes(body[:60]).hex()}"
