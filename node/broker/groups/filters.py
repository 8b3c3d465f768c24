"""The form in which the leader compares what the members of a group read, of every protocol.

Must not know what a filter means.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

_LENGTH_MAX: Final = 64


def comparable(tags: Iterable[str], sql: str) -> str:
    """Return a filter by tags or by an expression; empty: everything. Of one that is longer than 64
    characters it returns a digest, as filters are only compared."""
    text = sql.strip().removeprefix("*") or " || ".join(sorted(set(tags)))
    return text if len(text) <= _LENGTH_MAX else hashlib.sha256(text.encode()).hexdigest()
