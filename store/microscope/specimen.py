"""The values of the microscope: bytes as they were found, and the rows that name their fields.

Owns what a row and a verdict mean, and the text of values; must not know a layout.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

TEXT_LENGTH_MAX: Final = 64
"""Characters of a value that its text shows; the size is given, and the bytes are all there."""


class SpecimenKind(StrEnum):
    """The kinds of things that the microscope knows."""

    ENTRY = "entry"
    ENTRY_BEFORE = "entry_before"
    """The 48 bytes of the header of the entry before."""
    LEDGER_UNIT = "ledger_unit"
    """The unit of the ledger's index that points at an entry."""
    RECORD = "record"
    BLANK = "blank"
    """The first 8 bytes of what is left of a log file."""
    QUEUE_UNIT = "queue_unit"
    KEY_HEADER = "key_header"
    KEY_SLOT = "key_slot"
    KEY_ITEM = "key_item"


class Specimen(NamedTuple):
    """Bytes of one thing, as a file has them, right or wrong.

    `at` is the byte in `file`, whose name is below the directory of the store. `number` is the
    index of an entry or a unit of the ledger, the queue offset of a queue unit, the number of a
    slot or an item, the room for items of a header of the key index, and of a blank the bytes
    that the file has from there on; -1 elsewhere. `topic` and
    `queue_id` are of a queue unit.
    """

    kind: SpecimenKind
    data: bytes
    file: str
    at: int
    position: int = -1
    """Log position of an entry, a header or a record; -1 elsewhere."""
    number: int = -1
    topic: str = ""
    queue_id: int = -1


class FieldVerdict(StrEnum):
    """The result of the check of a field."""

    RIGHT = "right"
    """By its own check, or by a checksum that covers it."""
    WRONG = "wrong"
    NOT_CHECKED = "not_checked"
    """Any value is possible here, or what it is compared with is not known."""


class FieldRow(NamedTuple):
    """One field: bytes [at, at + size_bytes) of a specimen. `name` is its word in RocketMQ's
    formats; `expected` is empty unless the verdict is wrong."""

    at: int
    size_bytes: int
    name: str
    value: str
    verdict: FieldVerdict
    expected: str = ""


@dataclass(frozen=True, slots=True)
class FieldTable:
    """A specimen and its rows, which cover each of its bytes once, in order."""

    specimen: Specimen
    rows: tuple[FieldRow, ...]

    @property
    def wrong_count(self) -> int:
        """The count of the rows whose verdict is wrong."""
        return sum(row.verdict is FieldVerdict.WRONG for row in self.rows)


@dataclass(slots=True)
class RowList:
    """The rows of a specimen while they are made.

    `mended` is a copy of the bytes in which a wrong field with a known value has that value. A
    checksum is computed over it, so a wrong field is wrong once, and the checksum that fits then
    proves all others.
    """

    data: bytes
    rows: list[FieldRow] = field(default_factory=list)
    mended: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.mended = bytearray(self.data)

    def add(
        self,
        at: int,
        size_bytes: int,
        name: str,
        value: object,
        is_right: bool | None = None,
        expected: object = "",
        right: bytes = b"",
    ) -> None:
        """Add a row. `is_right` is None for a field without a check; `right` are the bytes that it
        should have, when they are known."""
        verdict = FieldVerdict.NOT_CHECKED
        if is_right is not None:
            verdict = FieldVerdict.RIGHT if is_right else FieldVerdict.WRONG
        said = str(expected) if is_right is False else ""
        self.rows.append(FieldRow(at, size_bytes, name, str(value), verdict, said))
        if is_right is False and len(right) == size_bytes:
            self.mended[at : at + size_bytes] = right

    def add_integer(
        self, at: int, size_bytes: int, name: str, expected: int | None = None, form: str = ""
    ) -> int:
        """Add a row of a signed integer, or with `form` of one without a sign, which is compared
        with `expected` when that is known; return it."""
        value = int.from_bytes(self.data[at : at + size_bytes], "big", signed=not form)
        is_right = None if expected is None else value == expected
        right = b""
        if expected is not None:
            right = (expected & ((1 << 8 * size_bytes) - 1)).to_bytes(size_bytes, "big")
        wanted = format(expected, form) if expected is not None else ""
        self.add(at, size_bytes, name, format(value, form), is_right, wanted, right)
        return value

    def add_rest(self, at: int, hi: int) -> None:
        """Add the bytes that cannot be decoded, as one row."""
        if at < hi:
            self.add(at, hi - at, "rest", shown_bytes(self.data[at:hi]))

    def cover(self, lo: int, hi: int | None = None) -> None:
        """Call those of the rows [lo, hi) right that have no check: a checksum covers them."""
        for number, row in enumerate(self.rows[lo:hi], lo):
            if row.verdict is FieldVerdict.NOT_CHECKED:
                self.rows[number] = row._replace(verdict=FieldVerdict.RIGHT)


def shown_bytes(data: bytes) -> str:
    """Return bytes as text, cut, with their size; what is no visible character is escaped."""
    text = data[: 4 * TEXT_LENGTH_MAX].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) > TEXT_LENGTH_MAX or len(data) > 4 * TEXT_LENGTH_MAX:
        text = f"{text[:TEXT_LENGTH_MAX]}..."
    return f"{text} ({len(data)} bytes)" if len(data) != 1 else f"{text} (1 byte)"


def integer_at(data: bytes, at: int, size_bytes: int = 4) -> int:
    """Return a signed integer."""
    return int.from_bytes(data[at : at + size_bytes], "big", signed=True)
