"""A property filter as a tree that decides about the properties of one message.

Owns the meaning, which is SQL's with three values: a property that a message does not have is NULL,
a comparison with it is unknown, and only a true filter matches. Must not know how a filter is
written (`filter_language`), nor records.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message's property, or what is left of zero by it."""

    name: str
    is_negative: bool = False


Operand = Property | Scalar


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two operands and the sign between them."""

    sign: str
    left: Operand
    right: Operand
    depth: int = 1

    def decide(self, properties: Properties) -> Decision:
        """Compare as numbers if one is a number, as texts if both are."""
        left, right = _value(self.left, properties), _value(self.right, properties)
        if left is None or right is None:
            return None
        return _compare(self.sign, left, right)


@dataclass(frozen=True, slots=True)
class Between:
    """A property within two numbers, both included."""

    name: str
    lo: float
    hi: float
    depth: int = 1

    def decide(self, properties: Properties) -> Decision:
        """Return None for a property that is no number."""
        value = number_in(properties.get(self.name))
        return None if value is None else self.lo <= value <= self.hi


@dataclass(frozen=True, slots=True)
class InList:
    """A property that is one of some constants."""

    name: str
    texts: frozenset[str]
    numbers: frozenset[float]
    truths: frozenset[str] = frozenset()
    """The texts of TRUE and FALSE, which are equal in any case."""
    depth: int = 1

    def decide(self, properties: Properties) -> Decision:
        """Compare with each constant as `=` does."""
        value = properties.get(self.name)
        if value is None:
            return None
        if value in self.texts or value.lower() in self.truths:
            return True
        return bool(self.numbers) and number_in(value) in self.numbers


@dataclass(frozen=True, slots=True)
class TextTest:
    """A property that has a text in it, at its beginning or at its end."""

    name: str
    kind: str
    text: str
    depth: int = 1

    def decide(self, properties: Properties) -> Decision:
        """Compare case-sensitively."""
        value = properties.get(self.name)
        return None if value is None else _TEXT_TESTS[self.kind](value, self.text)


@dataclass(frozen=True, slots=True)
class NullTest:
    """A property that a message does not have."""

    name: str
    depth: int = 1

    def decide(self, properties: Properties) -> Decision:
        """Whether the property is missing; never None."""
        return self.name not in properties


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE or FALSE alone."""

    is_true: bool
    depth: int = 1

    def decide(self, _properties: Properties) -> Decision:
        """Return the same for every message."""
        return self.is_true


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT."""

    inner: "Node"
    depth: int

    def decide(self, properties: Properties) -> Decision:
        """Return the opposite; None stays None."""
        decision = self.inner.decide(properties)
        return None if decision is None else not decision


@dataclass(frozen=True, slots=True)
class Junction:
    """AND or OR of two or more."""

    parts: tuple["Node", ...]
    depth: int
    deciding: bool
    """What one part decides for all: False of AND, True of OR."""

    def decide(self, properties: Properties) -> Decision:
        """Return what a deciding part says, else None if one is unknown, else the opposite."""
        deciding = self.deciding
        decision: Decision = not deciding
        for part in self.parts:
            of_part = part.decide(properties)
            if of_part is deciding:
                return deciding
            if of_part is None:
                decision = None
        return decision


Node = Comparison | Between | InList | TextTest | NullTest | Truth | Negation | Junction


def test_count(node: Node) -> int:
    """Return how many tests a filter makes of a message at most: its cost."""
    if isinstance(node, Negation):
        return test_count(node.inner)
    if isinstance(node, Junction):
        return sum(map(test_count, node.parts))
    return 1


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
