"""Tables whose rows are tables: the second index of what has a key of its own.

Owns the rule that a row without items does not stay, so that what is gone leaves nothing.
"""

from collections.abc import MutableMapping
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Row = TypeVar("_Row", bound=MutableMapping[Any, Any])


def remove_from(table: dict[_Key, _Row], key: _Key, item: object) -> None:
    """Remove an item from the row of a key, and the row if it was the last."""
    row = table[key]
    del row[item]
    if not row:
        del table[key]
