"""The decorators of commands: keys of the help, tables, exit codes."""

import json
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from qlog.command_decorators import Printout, TableRows, keys_of, printed
from quorumlog.command_errors import ExitCode


@dataclass(frozen=True)
class Shelf:
    """Some result."""

    name: str
    broker_group: str
    size: int
    internal: str = "not in the help"


@click.command()
@click.argument("form", default="record")
@printed
def shelves(form: str) -> object:
    """Show shelves.

    \b
    Keys of -o json:
      broker_group (that
      has it), name, size

    \b
    Examples:
      shelves
    """
    first, second = Shelf("a", "g0", 1), Shelf("b", "g0", 2)
    forms: dict[str, object] = {
        "record": first,
        "rows": [first, {"name": "c", "broker_group": "g1"}],
        "one group": Printout([first, second], omits_group=True, lines=["end"]),
        "omitted": Printout([first], omitted=("size",), exit_code=ExitCode.FINDINGS),
        "empty": Printout([], omitted=("size",)),
        "table": Printout(first, table=[{"size": 1}, TableRows(("head",), [{"head": 7}])]),
        "unknown": {"name": "d", "weight": 3},
    }
    return forms[form]


@click.command()
@printed
def nested() -> object:
    """Show rows inside.

    \b
    Keys of -o json:
      shelves, count
      shelves: name,
        size
    """
    return {"count": 1, "shelves": [Shelf("a", "g0", 1)]}


def out(*arguments: str, command: click.Command = shelves, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == code
    return result.stdout


def test_keys_of_the_help_are_the_keys_of_the_output() -> None:
    assert json.loads(out("-o", "json")) == {"broker_group": "g0", "name": "a", "size": 1}
    assert out("rows", "-o", "jsonl").splitlines() == [
        '{"broker_group": "g0", "name": "a", "size": 1}',
        '{"broker_group": "g1", "name": "c", "size": null}',
    ]
    assert json.loads(out("-o", "json", command=nested)) == {
        "shelves": [{"name": "a", "size": 1}],
        "count": 1,
    }


def test_a_key_that_the_help_does_not_name_is_an_error() -> None:
    result = CliRunner().invoke(shelves, ["unknown"], standalone_mode=False)
    assert isinstance(result.exception, ValueError)
    assert "'weight'" in str(result.exception)


def test_help_without_keys_is_an_error() -> None:
    with pytest.raises(AssertionError, match="names no keys"):
        keys_of("Show shelves.")


def test_tables_omit_keys_and_the_only_group() -> None:
    assert out("one group").splitlines() == ["name  size", "a        1", "b        2", "end"]
    assert out("omitted", code=1).splitlines() == ["broker_group  name", "g0            a"]
    assert out("empty").splitlines() == ["broker_group  name"]
    assert json.loads(out("omitted", "-o", "json", code=1))[0]["size"] == 1


def test_a_table_of_its_own_replaces_the_value_in_tables_only() -> None:
    assert out("table").splitlines() == ["size  1", "", "head", "   7"]
    assert json.loads(out("table", "-o", "json"))["name"] == "a"
