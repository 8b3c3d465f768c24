"""Values that callers choose from: consistency of reads, positions, durability, decisions.

Owns their names and their parsing from text; must not know their use.
"""

import datetime
import enum
from dataclasses import dataclass
from typing import Final

from quorumlog.errors import InvalidRequestError

TIMEOUT_MS_MAX: Final = 24 * 60 * 60 * 1000

Position = int | str
"""A place in a queue: an offset, "first", "end", "@<unix ms>", "@<ISO 8601 time>", or "-100", which
is that many messages before the end."""

OFFSET_MAX: Final = (1 << 63) - 1
POSITIONS: Final = (
    f"an offset from 0 to {OFFSET_MAX}, 'first', 'end', '-100', or '@TIME' with Unix ms or ISO "
    "8601, as in '@2026-01-31T12:00:00Z'"
)
"""What errors say of a Position."""
FIRST: Final = "first"
END: Final = "end"


class Consistency(enum.Enum):
    """The freshness of a read. Reads return committed records only, with each of them."""

    LEADER = "leader"
    """The leader's records; may be old while a deposed leader has not noticed."""

    LINEARIZABLE = "linearizable"
    """At least everything acknowledged before the call began. Costs a round to a quorum."""

    LOCAL = "local"
    """The committed prefix of the replica that gets the call. It waits for `at_least_index`."""

    @classmethod
    def of(cls, value: "Consistency | str") -> "Consistency":
        """Accept a member or its name in lower case. Raises InvalidRequestError."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(member.value for member in cls)
            text = f"consistency {value!r} is unknown; use one of {names}"
            raise InvalidRequestError(text) from None


class Durability(enum.Enum):
    """The safety of the acknowledged bytes when the receipt was sent."""

    UNSPECIFIED = "unspecified"
    QUORUM_MEMORY = "quorum_memory"
    """In the page cache of a quorum (flush=async)."""

    QUORUM_DISK = "quorum_disk"
    """Synced on a quorum (flush=sync, the default of a cluster)."""

    LEADER_DISK = "leader_disk"
    """Synced on the node that answered, and perhaps nowhere else (an async master)."""

    COPIES_DISK = "copies_disk"
    """Synced on as many nodes as the group demands, which may be no majority (a sync master)."""


@dataclass(frozen=True, slots=True)
class Time:
    """A position by store time, Unix ms: the first message stored then or later."""

    unix_ms: int


def parse_position(position: Position, name: str = "position") -> int | str | Time:
    """Return an offset, FIRST, END or a Time; of "-100" the number -100. Raises
    InvalidRequestError, which names the argument."""
    if isinstance(position, int):  # `arguments` has looked at its range.
        return position
    text = str(position)
    if text in (FIRST, END):
        return text
    if text.startswith("@") and (unix_ms := _unix_ms(text[1:])) is not None:
        return Time(unix_ms)
    number = _number(text.removeprefix("-"))
    if number is not None and not text.startswith("-"):
        return number
    if number:
        return -number
    raise InvalidRequestError(f"{name} is {position!r:.100}; use {POSITIONS}")


def _unix_ms(text: str) -> int | None:
    """Return the time that a text means; None: it means none."""
    if text.isascii() and text.isdecimal():
        return _number(text)
    try:
        # Without a zone: local time, as people type it. There are no store times before 1970.
        return max(0, int(datetime.datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> int | None:
    """Return the number that decimal digits mean; None: they mean none, or one too large."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(OFFSET_MAX)):
        return None
    return number if (number := int(text)) <= OFFSET_MAX else None


class Decision(enum.StrEnum):
    """The decision about a transaction. `UNKNOWN`: ask again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, value: "Decision | str", *, what: str = "decision") -> "Decision":
        """Accept a member or its value. Raises InvalidRequestError."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(member.value for member in cls)
            text = f"{what} is {value!r:.100}; use one of {names}"
            raise InvalidRequestError(text) from None
