"""What commands share: `printed`, `cluster_command` and `confirmed`, three decorators.

A command returns what it found. It is printed under the keys that the help of the command names
below "Keys of -o json": help and output cannot differ. Must not know any command.
"""

import functools
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple

import click

from qlog.broker_groups import shown_columns, shown_rows
from qlog.connection import ask, confirm, server_option
from qlog.output import Format, Row, output_option, print_record, print_rows
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from quorumlog.client import Client

_Command = Callable[..., int]


class TableRows(NamedTuple):
    """The rows of a table under their columns."""

    columns: Sequence[str]
    rows: Sequence[Row]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Row]) -> "TableRows":
        """Leave out the column `group` of a cluster of one broker group."""
        return cls(shown_columns(columns, rows), shown_rows(rows))


@dataclass(frozen=True, slots=True)
class Printout:
    """What a command prints, where tables or the exit code are special.

    A table leaves out the `omitted` keys, and with `omits_group` the key `group` of rows in a
    cluster of one broker group. If there is a `table`, it is printed instead; `lines` follow.
    """

    value: object
    table: Row | TableRows | None = None
    lines: Sequence[str] = ()
    omitted: Sequence[str] = ()
    omits_group: bool = False
    exit_code: ExitCode = ExitCode.OK


def printed(function: Callable[..., object]) -> _Command:
    """Add `-o` to a command, and print what it returns: a value, its list, or a Printout.

    The attributes of a value, or its items if it is a mapping, are printed under the keys of the
    help; so are those of the rows of a list that the help names with keys of its own.
    """

    @output_option
    @functools.wraps(function)
    def command(output: Format, **options: Any) -> int:
        result = function(**options)
        printout = result if isinstance(result, Printout) else Printout(result)
        _print(printout, keys_of(function.__doc__ or ""), output)
        return printout.exit_code

    return command


def cluster_command(
    function: "Callable[Concatenate[Client, ...], Coroutine[Any, Any, object]]",
) -> _Command:
    """Add `--server` and `-o`, run the coroutine function with a client, and print its result."""

    @server_option
    @printed
    @functools.wraps(function)
    def command(server: str | None, **options: Any) -> object:
        return ask(server, lambda client: function(client, **options))

    return command


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


def _print(printout: Printout, keys: Mapping[str, Sequence[str]], output: Format) -> None:
    is_table = output is Format.TABLE
    if is_table and printout.table is not None:
        if isinstance(printout.table, TableRows):
            print_rows(printout.table.rows, output, columns=printout.table.columns)
        else:
            print_record(printout.table, output)
    else:
        _print_value(printout, keys, output)
    for line in printout.lines if is_table else ():
        click.echo(line)


def _print_value(printout: Printout, keys: Mapping[str, Sequence[str]], output: Format) -> None:
    value, is_table = printout.value, output is Format.TABLE
    omitted = printout.omitted if is_table else ()
    shown = shown_rows if is_table and printout.omits_group else list
    if isinstance(value, list | tuple):
        rows = shown([_row(one, keys[""], omitted) for one in value])
        print_rows(rows, output, columns=tuple(rows[0]) if rows else _left(keys[""], omitted))
        return
    record = _row(value, keys[""], omitted)
    for name in keys.keys() & record.keys():
        items: Any = record[name]
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
