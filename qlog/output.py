"""Printing of results: `-o table|wide|json|jsonl`.

Owns the formats. Only results go to stdout, so that a pipe gets clean data. A table is aligned
text. One that is wider than the terminal, or than COLUMNS says, is folded, and nothing of it is
cut; in a pipe without COLUMNS and with `-o wide` a row is one line. JSON is one document with the
keys in the order given, the same keys for every row.
"""

import dataclasses
import enum
import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import IO, Final

import click

from quorumlog.command_errors import CliError
from quorumlog.foreign_text import shown, shown_json
from quorumlog.standard_output import is_stdout_closed

Row = Mapping[str, object]
_WIDE: Final = "wide"
_GAP: Final = "  "
_DECIMALS_MAX: Final = 12
_WIDTH_MIN: Final = 20
"""Columns of the smallest terminal that lines are folded for; a smaller one breaks them."""
_ROOM_MIN: Final = 16
"""Columns in which a text of several words is wrapped beside others; with less it goes below."""


class Format(enum.StrEnum):
    """The values of `-o`; `wide` is a table that is not folded."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def _format(context: click.Context, _parameter: click.Parameter, value: str) -> Format:
    if is_stdout_closed():  # Before the work whose result it would take.
        raise CliError(
            "stdout is closed, and the result would be lost",
            "nothing was done",
            "start it with that stream; >/dev/null stands for none",
        )
    context.meta[_WIDE] = value == _WIDE
    return Format.TABLE if value == _WIDE else Format(value)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", _WIDE, "json", "jsonl"]),
    default=Format.TABLE.value,
    show_default=True,
    callback=_format,
    help="How to print it; wide folds no table.",
)
"""Decorates a command with `-o`; it arrives as the argument `output`, a Format."""


def print_rows(rows: Sequence[Row], output: Format, *, columns: Sequence[str]) -> None:
    """Print many results of one shape: a table, a JSON array, or one JSON object a line.

    A key that a row lacks is null. Raises ValueError for a key outside `columns`.
    """
    for row in rows:
        if unknown := [key for key in row if key not in columns]:
            raise ValueError(f"keys {unknown} are not among the columns {list(columns)}")
    complete = [{column: row.get(column) for column in columns} for row in rows]
    match output:
        case Format.TABLE:
            for number, part in enumerate(table_parts(complete, columns, line_width())):
                if number:
                    click.echo()
                for line, _ in part:
                    click.echo(line)
        case Format.JSON:
            click.echo(to_json(complete, indent=2))
        case Format.JSONL:
            for row in complete:
                click.echo(to_json(row))


def say_if_more(rows: Sequence[object], max_count: int, do: str = "raise --max-count") -> None:
    """Say on stderr that a list is cut. The caller asked for one more than it shows."""
    if len(rows) > max_count:
        click.echo(f"there are more than {max_count}: {do}", err=True)


def print_record(record: Row, output: Format) -> None:
    """Print one result: names and values, or one JSON object.

    In a table, a value that is a list of rows follows under its name as a table of its own.
    """
    if output is not Format.TABLE:
        click.echo(to_json(record, indent=2 if output is Format.JSON else None))
        return
    single = {key: value for key, value in record.items() if not _is_row_list(value)}
    width = max((len(key) for key in single), default=0)
    for key, value in single.items():
        print_text(cell(value), key.ljust(width) + _GAP)
    for key, value in record.items():
        if _is_row_list(value):
            assert isinstance(value, list | tuple)
            columns = list(dict.fromkeys(column for row in value for column in row))
            click.echo(f"\n{key}")
            print_rows(value, Format.TABLE, columns=columns)


def print_text(text: str, head: str = "", *, err: bool = False) -> None:
    """Print a text behind its head, as a part of a table: on a terminal it is folded at words.

    `err` prints it on stderr."""
    width = line_width(sys.stderr if err else sys.stdout)
    room = None if width is None else max(width - len(head), _ROOM_MIN)
    for line in wrapped(text, room):
        click.echo((head + line).rstrip(), err=err)
        head = " " * len(head)


def line_width(stream: IO[str] | None = None) -> int | None:
    """Return COLUMNS, else those of the terminal that a stream is, by default stdout; None where a
    line may be of any length."""
    context = click.get_current_context(silent=True)
    is_limited = (stream or sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    if not is_limited or (context is not None and context.meta.get(_WIDE)):
        return None
    return max(shutil.get_terminal_size().columns, _WIDTH_MIN)


def to_json(value: object, indent: int | None = None) -> str:
    """Return one JSON document; raises TypeError or ValueError for values without a JSON form."""
    # NaN and infinity are no JSON; a result that holds one is a bug and must not pass silently.
    return shown_json(
        json.dumps(value, indent=indent, default=_plain, ensure_ascii=False, allow_nan=False)
    )


def _plain(value: object) -> object:
    """Turn values without a JSON form into ones that have it: bytes to hex, paths to text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def cell(value: object) -> str:
    """Return one value as one line of text, escaped and cut as `shown` does."""
    if value is None or (isinstance(value, list | tuple | Mapping) and not value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value) if math.isfinite(value) else str(value)
    if isinstance(value, int) and not isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        text = value
    elif isinstance(value, list | tuple) and all(isinstance(v, str | int) for v in value):
        text = ", ".join(str(v) for v in value)
    else:
        plain = _plain(value) if not isinstance(value, list | tuple) else value
        text = plain if isinstance(plain, str) else to_json(plain)
    return shown(text)


def counted(count: int, what: str) -> str:
    """Return a count with what is counted, which is given in the singular."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _number(value: float) -> str:
    """Return a number with three decimals; with as many as three of its digits need, if small."""
    decimals = 3 if abs(value) >= 0.1 or not value else 2 - math.floor(math.log10(abs(value)))
    if decimals > _DECIMALS_MAX:
        return f"{value:.3g}"
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def table_parts(
    rows: Sequence[Row],
    columns: Sequence[str],
    width: int | None,
    *,
    right: Collection[str] | None = None,
) -> list[list[tuple[str, int | None]]]:
    """Return a table as parts of at most `width` columns, which stand below each other.

    A part is its lines, each with the number of its row; the head has None. A table that is too
    wide loses the columns without any value. Then it is folded: each part begins with the columns
    that tell the rows apart, which take at most half of it. A text that has no room is wrapped at
    words, and within one only if that has no line for itself. `right` are the columns that are
    aligned right: by default those of numbers.
    """
    if right is None:
        right = {c for c in columns if rows and all(_is_number(r[c]) or r[c] is None for r in rows)}
    cells = {column: [cell(row[column]) for row in rows] for column in columns}
    widths = {c: max(map(width_of, [c, *texts])) for c, texts in cells.items()}
    if width is None or _sum(widths.values()) <= width:
        return [_part(cells, widths, columns, right)]
    chosen = [c for c in columns if not rows or any(text not in ("", "-") for text in cells[c])]
    keys = _keys(cells, chosen, len(rows))
    if _sum(widths[c] for c in keys) > width // 2:
        keys = _needed(keys, cells, len(rows))
    if _sum(widths[c] for c in keys) > width // 2:
        widths |= {c: min(widths[c], width // 2 // len(keys) - len(_GAP)) for c in keys}
    parts, part = [], list(keys)
    for column in (c for c in chosen if c not in keys):
        room = width - _sum(widths[c] for c in part) - (len(_GAP) if part else 0)
        longest = max(map(width_of, " ".join([column, *cells[column]]).split()))
        if widths[column] > room and max(longest, _ROOM_MIN) > room and len(part) > len(keys):
            parts.append(part)
            part = list(keys)
            room = width - _sum(widths[c] for c in part) - (len(_GAP) if part else 0)
        widths[column] = min(widths[column], room)
        part.append(column)
    return [_part(cells, widths, one, right) for one in [*parts, part]]


def _keys(cells: Mapping[str, Sequence[str]], columns: Sequence[str], count: int) -> list[str]:
    """Return the first columns that no two rows have the same texts in; one if there are none."""
    for number in range(1, len(columns)):
        if _are_told_apart(cells, columns[:number], count):
            return list(columns[:number])
    return list(columns[:1])


def _needed(columns: list[str], cells: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Leave out the columns without which rows are told apart as well."""
    for column in columns[:-1]:
        others = [c for c in columns if c != column]
        if _are_told_apart(cells, others, count):
            columns = others
    return columns


def _are_told_apart(cells: Mapping[str, Sequence[str]], columns: Sequence[str], count: int) -> bool:
    return len(set(zip(*(cells[c] for c in columns), strict=True))) == count


def _part(
    cells: Mapping[str, Sequence[str]],
    widths: Mapping[str, int],
    columns: Sequence[str],
    right: Collection[str],
) -> list[tuple[str, int | None]]:
    rows: list[tuple[int | None, Sequence[str]]] = [(None, columns)]
    rows += enumerate(zip(*(cells[column] for column in columns), strict=True))
    lines = []
    for number, texts in rows:
        folded = [wrapped(text, widths[c]) for c, text in zip(columns, texts, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            padded = []
            for column, text in zip(columns, line, strict=True):
                pad = " " * (widths[column] - width_of(text))
                padded.append(pad + text if column in right else text + pad)
            lines.append((_GAP.join(padded).rstrip(), number))
    return lines


def wrapped(text: str, room: int | None) -> list[str]:
    """Return a text as lines of at most `room` columns, without a limit as one."""
    if room is None or width_of(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}" if lines[-1] else word
        if width_of(line) <= room:
            lines[-1] = line
            continue
        lines.append(word)
        while width_of(lines[-1]) > room:
            cut = max(room if word.isascii() else room // 2, 1)
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:]]
    return [line for line in lines if line]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text
    )


def _sum(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(_GAP) * max(len(widths) - 1, 0)


def _is_row_list(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )
