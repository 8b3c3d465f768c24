"""Results of calls as frozen dataclasses: made from messages of the wire, and as plain values.

Owns the copying by name; must not know any result.
"""

from collections.abc import MutableSequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value", bound="DataclassInstance")


def of_pb(kind: type[_Value], pb: Any, **others: object) -> _Value:
    """Make a dataclass from the fields of a message with the same names, repeated ones as tuples.

    `others` are the fields that the message does not have, or has in another form.
    """
    values = dict(others)
    for field in fields(kind):
        if field.name not in values:
            value = getattr(pb, field.name)
            values[field.name] = tuple(value) if isinstance(value, MutableSequence) else value
    return kind(**values)


def to_dict(value: "DataclassInstance") -> dict[str, Any]:
    """Return a result as plain values under stable names, for JSON."""
    return asdict(value)
