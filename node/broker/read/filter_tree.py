"""A property filter as a tree that decides about the properties of one message.

Owns the meaning, which is SQL's with three values: a property that a message does not have is NULL,
a comparison with it is unknown, and only a true filter matches. Must not know how a filter is
written (`filter_language`), nor records.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

Properties = Mapping[str, str]
Scalar = str | int | float | bool
Decision = bool | None
"""None: unknown."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES: Final = frozenset({"=", "<>", "!="})
_TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_NUMBER: Final = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?", re.ASCII)


class Property(NamedTuple):
    """The value of a message's property, or what is left of zero by it."""

    name: str
    is_negative: bool = False


Operand = Property | Scalar


class Node(NamedTuple):
    """A filter, or a part of one."""

    decide: Callable[[Properties], Decision]
    depth: int = 1
    test_count: int = 1
    """How many tests it makes of a message at most: its cost."""


def comparison(sign: str, left: Operand, right: Operand) -> Node:
    """Compare two operands: as numbers if one is a number, as texts if both are."""

    def decide(properties: Properties) -> Decision:
        value, other = _value(left, properties), _value(right, properties)
        return None if value is None or other is None else _compare(sign, value, other)

    return Node(decide)


def between(name: str, lo: float, hi: float) -> Node:
    """Test for a number within two, both included; of a property that is no number: unknown."""

    def decide(properties: Properties) -> Decision:
        value = number_in(properties.get(name))
        return None if value is None else lo <= value <= hi

    return Node(decide)


def in_list(name: str, constants: Iterable[Scalar]) -> Node:
    """Test for one of some constants, as `=` does."""
    texts, numbers, truths = set[str](), set[float](), set[str]()
    for constant in constants:
        if isinstance(constant, bool):  # The texts of TRUE and FALSE are equal in any case.
            truths.add(_text(constant))
        elif isinstance(constant, str):
            texts.add(constant)
        else:
            numbers.add(constant)

    def decide(properties: Properties) -> Decision:
        value = properties.get(name)
        if value is None:
            return None
        if value in texts or value.lower() in truths:
            return True
        return bool(numbers) and number_in(value) in numbers

    return Node(decide)


def text_test(name: str, kind: str, text: str) -> Node:
    """Test, case-sensitively, for a text within a property, at its beginning or at its end."""
    test = _TEXT_TESTS[kind]

    def decide(properties: Properties) -> Decision:
        value = properties.get(name)
        return None if value is None else test(value, text)

    return Node(decide)


def negation(inner: Node, depth: int) -> Node:
    """Return the opposite; unknown stays unknown."""

    def decide(properties: Properties) -> Decision:
        decision = inner.decide(properties)
        return None if decision is None else not decision

    return Node(decide, depth, inner.test_count)


def junction(parts: Sequence[Node], depth: int, *, deciding: bool) -> Node:
    """Join two or more by AND or OR; `deciding` is what one part decides for all: False of AND,
    True of OR. If none does, one that is unknown makes all unknown."""
    decides = [part.decide for part in parts]

    def decide(properties: Properties) -> Decision:
        decision: Decision = not deciding
        for of_part in decides:
            decided = of_part(properties)
            if decided is deciding:
                return deciding
            if decided is None:
                decision = None
        return decision

    return Node(decide, depth, sum(part.test_count for part in parts))


def _value(operand: Operand, properties: Properties) -> Scalar | None:
    if not isinstance(operand, Property):
        return operand
    value = properties.get(operand.name)
    if not operand.is_negative:
        return value
    number = number_in(value)  # A text has no negative: that is unknown.
    return None if number is None else -number


def number_in(text: str | None) -> float | None:
    """Return the number that a text spells; None if it spells none."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _compare(sign: str, left: Scalar, right: Scalar) -> Decision:
    if isinstance(left, bool) or isinstance(right, bool):
        left, right = _text(left), _text(right)
    elif not isinstance(left, str) or not isinstance(right, str) or sign not in EQUALITIES:
        left_number, other = _as_number(left), _as_number(right)
        if left_number is None or other is None:
            # A text that is no number differs from every number, and is neither above nor below it.
            return sign != "=" if sign in EQUALITIES else None
        return _OPERATORS[sign](left_number, other)
    return _OPERATORS[sign](left, right)


def _as_number(value: Scalar) -> float | None:
    return number_in(value) if isinstance(value, str) else value


def _text(value: Scalar) -> str:
    return str(value).lower()
