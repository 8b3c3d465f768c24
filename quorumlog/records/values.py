"""Results of calls as frozen dataclasses: made from messages of the wire, and as plain values.

Owns the copying by name; must not know any result.
"""

import functools
import typing
from collections.abc import MutableSequence, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value", bound="DataclassInstance")


def of_pb(kind: type[_Value], pb: Any, **others: object) -> _Value:
    """Make a dataclass from the fields of a message with the same names, repeated ones as tuples,
    of dataclasses too where the field is a tuple of one.

    `others` are the fields that the message does not have, or has in another form.
    """
    values = dict(others)
    for name, row_kind in _fields_of(kind):
        if name not in values:
            value = getattr(pb, name)
            if row_kind is not None:
                value = tuple(of_pb(row_kind, row) for row in value)
            values[name] = tuple(value) if isinstance(value, MutableSequence) else value
    return kind(**values)


@functools.cache
def _fields_of(kind: type) -> Sequence[tuple[str, Any]]:
    """Return the names of the fields, each with the dataclass that it is a tuple of, or None."""
    fields = []
    for name, hint in typing.get_type_hints(kind).items():
        row_kind = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        fields.append((name, row_kind if is_dataclass(row_kind) else None))
    return fields


def to_dict(value: "DataclassInstance") -> dict[str, Any]:
    """Return a result as plain values under stable names, for JSON."""
    return asdict(value)
