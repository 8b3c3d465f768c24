"""What commands share: `printed`, `cluster_command` and `confirmed`, three decorators.

A command returns what it found. It is printed under the keys that the help of the command names
below "Keys of -o json": help and output cannot differ. Must not know any command.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qlog.broker_groups import shown_columns, shown_rows
from qlog.connection import ask, confirm, server_option
from qlog.output import Format, Row, output_option, print_record, print_rows, print_text
from quorumlog.command_errors import ExitCode
from quorumlog.foreign_text import shown

if TYPE_CHECKING:
    pass

_Command = Callable[..., int]


class TableRows(NamedTuple):
    """Rows under their columns, as a part of a table."""

    columns: Sequence[str]
    rows: Sequence[Row]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Row]) -> "TableRows":
        """Leave out the column `broker_group` of a cluster of one broker group."""
        return cls(shown_columns(columns, rows), shown_rows(rows))


@dataclass(frozen=True, slots=True)
class Printout:
    """The result of a command, with what `-o table` prints in another way, and the exit code.

    A table has no `omitted` keys. With `omits_group` its rows have no `broker_group` if all are
    of one. The parts of `table` replace the value, with empty lines between. `lines` follow.
    """

    value: object
    table: Sequence[Row | TableRows] = ()
    lines: Sequence[str] = ()
    omitted: Sequence[str] = ()
    omits_group: bool = False
    exit_code: ExitCode = ExitCode.OK


def printed(function: Callable[..., object]) -> _Command:
    """Add `-o` to a command, and print its result: a value, a list of rows, or a Printout.

    The help names the attributes (or items of a mapping) that are printed, also those of rows
    inside the value.
    """

    @output_option
    @functools.wraps(function)
    def command(output: Format, **options: Any) -> int:
        result = function(**options)
        printout = result if isinstance(result, Printout) else Printout(result)
        print_printout(printout, keys_of(function.__doc__ or ""), output)
        return printout.exit_code

    return command


def command_with(
    ask: Callable[..., object], printed: Callable[[Callable[..., object]], _Command] = printed
) -> Callable[[Callable[..., object]], _Command]:
    """Return a decorator that adds `--server`, `--timeout` and `-o`, has `ask` run the coroutine
    function with a client, and has `printed` print its result."""

    def decorate(function: Callable[..., object]) -> _Command:
        @server_option
        @printed
        @functools.wraps(function)
        def command(server: str | None, **options: Any) -> object:
            return ask(server, lambda client: function(client, **options))

        return command

    return decorate


cluster_command = command_with(ask)
"""Decorates a command of the cluster's client."""


def confirmed(question: str) -> Callable[[_Command], _Command]:
    """Add `--yes` to a command that cannot be undone; without it, ask first.

    `question` has arguments of the command in braces.
    """

    def decorate(function: _Command) -> _Command:
        @click.option("--yes", is_flag=True, help="Do not ask.")
        @functools.wraps(function)
        def command(yes: bool, **options: Any) -> int:
            confirm(question.format(**options), is_confirmed=yes)
            return function(**options)

        return command

    return decorate


def keys_of(help_text: str) -> dict[str, list[str]]:
    """Return the keys of `-o json` that a help text names.

    "" has those of the result, and the name of a list has those of its rows.
    """
    block = re.search(r"Keys of -o json:\n((?: +\S.*\n)+)", help_text)
    assert block is not None, f"the help names no keys: {help_text}"
    keys: dict[str, list[str]] = {"": []}
    lines = re.sub(r"\([^)]*\)", "", block[1]).splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    name = ""
    for line in lines:
        label, colon, names = line.strip().rpartition(": ")
        if colon:
            name = label
        elif not line[margin:].startswith(" "):
            name = ""
        keys.setdefault(name, []).extend(re.findall(r"\w+", names))
    return keys


def print_printout(printout: Printout, keys: Mapping[str, Sequence[str]], output: Format) -> None:
    """Print the result of a command whose help names `keys`, as `keys_of` returns them."""
    is_table = output is Format.TABLE
    parts = printout.table if is_table else ()
    if not parts:
        _print_value(printout, keys, output)
    for number, part in enumerate(parts):
        if number:
            click.echo()
        if isinstance(part, TableRows):
            print_rows(part.rows, output, columns=part.columns)
        else:
            print_record(part, output)
    for line in printout.lines if is_table else ():
        print_text(shown(line))


def _print_value(printout: Printout, keys: Mapping[str, Sequence[str]], output: Format) -> None:
    value, is_table = printout.value, output is Format.TABLE
    omitted = printout.omitted if is_table else ()
    shown = shown_rows if is_table and printout.omits_group else list
    if isinstance(value, list):
        rows = shown([_row(one, keys[""], omitted) for one in value])
        print_rows(rows, output, columns=tuple(rows[0]) if rows else _left(keys[""], omitted))
        return
    record = _row(value, keys[""], omitted)
    for name in keys.keys() & record.keys():
        items = record[name]
        if isinstance(items, list | tuple):
            record[name] = shown([_row(item, keys[name]) for item in items])
    print_record(record, output)


def _row(value: object, keys: Sequence[str], omitted: Sequence[str] = ()) -> dict[str, object]:
    """Return attributes or items of a value; an item that a mapping lacks is None.

    Raises ValueError for an item that the help does not name.
    """
    if not isinstance(value, Mapping):
        return {key: getattr(value, key) for key in _left(keys, omitted)}
    if unknown := [key for key in value if key not in keys]:
        raise ValueError(f"the help names {list(keys)}, and not {unknown}")
    return {key: value.get(key) for key in _left(keys, omitted)}


def _left(keys: Sequence[str], omitted: Sequence[str]) -> list[str]:
    return [key for key in keys if key not in omitted]
