"""Printing of results: `-o table|json|jsonl`.

Owns the three formats. Only results go to stdout, so that a pipe gets clean data. A table is drawn
by rich on a terminal and is plain aligned text elsewhere. JSON is one document with the keys in the
order given, the same keys for every row.
"""

import dataclasses
import enum
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence

import click

from quorumlog.command_errors import CliError
from quorumlog.foreign_text import shown, shown_json
from quorumlog.standard_output import is_stdout_closed, styled

Row = Mapping[str, object]


class Format(enum.StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def _format(_context: click.Context, _parameter: click.Parameter, value: str) -> Format:
    if is_stdout_closed():  # Before the work whose result it would take.
        raise CliError(
            "stdout is closed, and the result would be lost",
            "nothing was done",
            "start it with that stream; >/dev/null stands for none",
        )
    return Format(value)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice([f.value for f in Format]),
    default=Format.TABLE.value,
    show_default=True,
    callback=_format,
    help="How to print the result.",
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
            _print_table(complete, columns)
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
        click.echo(f"{key.ljust(width)}  {cell(value)}".rstrip())
    for key, value in record.items():
        if _is_row_list(value):
            assert isinstance(value, list | tuple)
            columns = list(dict.fromkeys(column for row in value for column in row))
            click.echo(f"\n{key}")
            print_rows(value, Format.TABLE, columns=columns)


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
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else str(value)
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    # A column of numbers is aligned right.
    right = {c for c in columns if rows and all(_is_number(r[c]) or r[c] is None for r in rows)}
    cells = [[cell(row[column]) for column in columns] for row in rows]
    if sys.stdout.isatty():
        _print_rich(cells, columns, right)
        return
    widths = [
        max(len(column), *(len(line[i]) for line in cells)) if cells else len(column)
        for i, column in enumerate(columns)
    ]
    for line in [list(columns), *cells]:
        padded = [
            text.rjust(width) if column in right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _print_rich(cells: Sequence[Sequence[str]], columns: Sequence[str], right: set[str]) -> None:
    # Imported here: rich costs a good part of the time a short command takes.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in right else "left")
    for line in cells:
        # Text, because rich would read brackets in data as its own markup.
        table.add_row(*(Text(text) for text in line))
    Console(file=styled(sys.stdout)).print(table)


def _is_row_list(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )
