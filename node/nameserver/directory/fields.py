"""Strict reading of commands, and the answers to them.

Owns Result, Refusal and the readers of single fields; must not know the purpose of a field.
Commands come from other replicas and may have any shape: a reader returns a value of the right kind
and size, or raises Refusal, which leaves the state unchanged and is the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from store.files.meta_file import Json

INTEGER_MAX: Final = 2**63 - 1
ID_MAX: Final = 2**31 - 1
"""The highest broker id: that of a node. Routes have no room for more than a uint32."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command. Equal on all replicas."""

    is_accepted: bool
    reason: str = ""
    """The reason of a refusal as stable text for machines; empty when accepted."""
    detail: str = ""
    """The reason as text for people."""
    values: Mapping[str, Json] = field(default_factory=dict)

    def snapshot(self) -> list[Json]:
        """Return the result as JSON."""
        return [self.is_accepted, self.reason, self.detail, dict(self.values)]

    @classmethod
    def restored(cls, value: Json) -> "Result":
        """Return the result that `snapshot` wrote. Raises Refusal for any other value."""
        parts = exactly(value, "result", 4)
        if not isinstance(parts[0], bool):
            raise CommandRefused("malformed", f"{value!r} is no result")
        reason, detail = a_text(parts[1], "reason", 64), a_text(parts[2], "detail", 4096)
        return cls(parts[0], reason, detail, an_object(parts[3], "values"))


class CommandRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A command is refused and leaves the state unchanged. The refusal becomes its Result."""

    def __init__(self, reason: str, detail: str, **values: Json) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.values = reason, detail, values

    def result(self) -> Result:
        """Return the answer."""
        return Result(False, self.reason, self.detail, self.values)


def a_text(value: Json, name: str, size_chars_max: int, *, may_be_empty: bool = True) -> str:
    """Return a text of at most `size_chars_max` characters. Raises Refusal."""
    if not isinstance(value, str) or len(value) > size_chars_max or not (value or may_be_empty):
        wanted = f"a text of {0 if may_be_empty else 1} to {size_chars_max} characters"
        raise CommandRefused("malformed", f"{name} must be {wanted}")
    if not value.isprintable():
        raise CommandRefused("malformed", f"{name} has characters that cannot be printed")
    return value


def an_integer(value: Json, name: str, lo: int = 0, hi: int = INTEGER_MAX) -> int:
    """Return an integer from `lo` to `hi`. Raises Refusal."""
    if not isinstance(value, int) or isinstance(value, bool) or not lo <= value <= hi:
        raise CommandRefused("malformed", f"{name} must be an integer from {lo} to {hi}")
    return value


def a_broker_id(value: Json, name: str) -> int:
    """Return the id of a broker. Raises Refusal."""
    return an_integer(value, name, 0, ID_MAX)


def a_choice(value: Json, name: str, choices: tuple[str, ...]) -> str:
    """Return one of `choices`. Raises Refusal."""
    if not isinstance(value, str) or value not in choices:
        raise CommandRefused("malformed", f"{name} must be one of {', '.join(choices)}")
    return value


def a_list(value: Json, name: str, count_max: int) -> list[Json]:
    """Return a list of at most `count_max` items. Raises Refusal."""
    if not isinstance(value, list) or len(value) > count_max:
        raise CommandRefused("malformed", f"{name} must be a list of at most {count_max}")
    return value


def exactly(value: Json, name: str, count: int) -> list[Json]:
    """Return a list of exactly `count` items. Raises Refusal."""
    parts = a_list(value, name, count)
    if len(parts) != count:
        raise CommandRefused("malformed", f"{name} must be a list of {count}")
    return parts


def an_object(value: Json, name: str) -> dict[str, Json]:
    """Return a JSON object. Raises Refusal."""
    if not isinstance(value, dict):
        raise CommandRefused("malformed", f"{name} must be an object")
    return value


def ids(values: Json, name: str, count_max: int) -> tuple[int, ...]:
    """Return broker ids in ascending order, each once. Raises Refusal."""
    members = [a_broker_id(value, name) for value in a_list(values, name, count_max)]
    if len(set(members)) != len(members):
        raise CommandRefused("malformed", f"{name} names a broker twice")
    return tuple(sorted(members))
