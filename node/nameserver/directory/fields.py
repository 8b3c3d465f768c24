"""The fields of commands and snapshots: their ranges, their strict reading, and refusals.

Owns Result, CommandRefused and the types of single fields; must not know the purpose of a field.
Commands come from other replicas and may have any shape: pydantic reads them by these types, and
what does not fit is refused as `malformed`, which leaves the state unchanged and is the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from node.nameserver.directory.limits import (
    NAME_SIZE_CHARS_MAX,
    VALUE_SIZE_CHARS_MAX,
    DirectoryLimits,
)
from store.files.meta_file import Json

INTEGER_MAX: Final = 2**63 - 1
ID_MAX: Final = 2**31 - 1
"""The highest broker id: that of a node. Routes have no room for more than a uint32."""
_BROKER_COUNT_MAX: Final = DirectoryLimits().broker_count_max
_T = TypeVar("_T")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text has characters that cannot be printed")
    return text


def _ascending(ids: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(ids)) != len(ids):
        raise ValueError("a broker is named twice")
    return tuple(sorted(ids))


Number = Annotated[int, Field(strict=True, ge=0, le=INTEGER_MAX)]
Epoch = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
"""An epoch number; a text in JSON, where it is a key."""
BrokerId = Annotated[int, Field(strict=True, ge=0, le=ID_MAX)]
BrokerIds = Annotated[
    tuple[BrokerId, ...], Field(max_length=_BROKER_COUNT_MAX), AfterValidator(_ascending)
]
CopyCount = Annotated[int, Field(strict=True, ge=1, le=_BROKER_COUNT_MAX)]
Text = Annotated[str, Field(max_length=NAME_SIZE_CHARS_MAX), AfterValidator(_printable)]
Name = Annotated[
    str, Field(min_length=1, max_length=NAME_SIZE_CHARS_MAX), AfterValidator(_printable)
]
Value = Annotated[str, Field(max_length=VALUE_SIZE_CHARS_MAX), AfterValidator(_printable)]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command. Equal on all replicas."""

    is_accepted: bool
    reason: str = ""
    """The reason of a refusal as stable text for machines; empty when accepted."""
    detail: str = ""
    """The reason as text for people."""
    values: Mapping[str, Any] = field(default_factory=dict)


RESULT: Final = TypeAdapter(Result)


class CommandRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A command is refused and leaves the state unchanged. The refusal becomes its Result."""

    def __init__(self, reason: str, detail: str, **values: Json) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.values = reason, detail, values

    def result(self) -> Result:
        """Return the answer."""
        return Result(False, self.reason, self.detail, self.values)


def malformed(error: ValidationError) -> CommandRefused:
    """Return the refusal that names the first field that does not fit."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:64] for part in first["loc"])
    return CommandRefused("malformed", f"{place}: {first['msg'].removeprefix('Value error, ')}")


def checked(adapter: TypeAdapter[_T], value: Json) -> _T:
    """Return the value that JSON stands for. Raises CommandRefused."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise malformed(error) from None
