"""The output formats, byte for byte, and all tables in a terminal of 80 columns."""

import enum
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import qlog
from qlog import main
from qlog.command_decorators import Printout, keys_of, print_printout
from qlog.output import Format, cell, output_option, print_record, print_rows
from tests.tidy import checks


class Colour(enum.Enum):
    """Some enum."""

    RED = "red"


@dataclass(frozen=True)
class Range:
    """Some value."""

    lo: int
    hi: int


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def terminal_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Make a terminal stdout."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


ADDRESS = "node-1.cluster-a.example.com:18081"
SENTENCE = f"the node at {ADDRESS} does not answer: its process ended; 節點 無 回應, {ADDRESS}"


def made_up(key: str) -> object:
    """Return a large value for a key."""
    if key.endswith(("_count", "_index", "_bytes", "offset", "position", "_ms", "_s", "_id")):
        return 1_234_567_890_123
    return ADDRESS if "address" in key else SENTENCE


def tables() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each table of each command, with made-up rows."""
    for path, command in checks.commands(main):
        if "Keys of -o json:" in (command.help or ""):
            keys = keys_of(inspect.cleandoc(command.help or "") + "\n")
            row = {key: made_up(key) for key in keys[""] if key not in keys}
            inner = {name: [dict.fromkeys(keys[name], SENTENCE)] * 2 for name in keys if name}
            for value in (row | inner, [row, row]):
                yield path, partial(print_printout, Printout(value), keys, Format.TABLE)
    for name, module in sorted(sys.modules.items()):
        for constant, columns in vars(module).items():
            if name.partition(".")[0] in ("qlog", "bench", "pipeline", "planning") and (
                constant.endswith("COLUMNS") and isinstance(columns, tuple)
            ):
                rows = [{key: made_up(key) for key in columns}] * 3
                yield f"{name}.{constant}", partial(print_rows, rows, Format.TABLE, columns=columns)


def test_every_table_has_whole_values_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(80, monkeypatch)
    names = []
    for name, table in tables():
        terminal.truncate(terminal.seek(0))
        table()
        text = terminal.getvalue()
        assert max(map(cell_len, text.splitlines())) <= 80, f"{name}:\n{text}"
        assert text.count(ADDRESS) == text.count("node-1") == text.count("081"), text
        names.append(name)
    assert {"qlog cluster status", "qlog top", "qlog plan", "qlog.server.local._TABLE_COLUMNS"} <= {
        *names
    }
    sources = Path(qlog.__file__).parent.rglob("*.py")
    assert not [path for path in sources if "rich.table" in path.read_text()], "a way past these"


def test_every_help_has_lines_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in checks.commands(main):
        text = command.get_help(click.Context(command, info_name=name, max_content_width=100))
        assert [line for line in text.splitlines() if len(line) > 80] == [], name


def test_a_folded_table_repeats_what_tells_rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(80, monkeypatch)
    columns = ["topic", "queue_id", "empty", "a" * 30, "b" * 40, "why"]
    row = {"topic": "t", "a" * 30: "x", "b" * 40: "y", "why": "some words " * 5}
    rows = [{**row, "queue_id": number} for number in (0, 10)]
    print_rows(rows, Format.TABLE, columns=columns)
    head, first, second, _, lower, *wrapped = terminal.getvalue().splitlines()
    assert head.split() == ["topic", "queue_id", "a" * 30]
    assert (first.split(), second.split()) == (["t", "0", "x"], ["t", "10", "x"])
    assert lower.split() == ["topic", "queue_id", "b" * 40, "why"]
    assert [line.split()[:3] for line in wrapped if line.startswith("t")] == [
        ["t", "0", "y"],
        ["t", "10", "y"],
    ]


def test_a_narrow_table_names_each_row_in_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(40, monkeypatch)
    columns = ["cluster_id", "broker_group", "node_id", "address", "version"]
    row = dict.fromkeys(columns, "x" * 25)
    print_rows([{**row, "node_id": n} for n in (1, 2)], Format.TABLE, columns=columns)
    parts = terminal.getvalue().split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert part.startswith("node_id  ")
        assert [line.split()[0] for line in part.splitlines() if line[6] != " "][1:] == ["1", "2"]
    terminal.truncate(terminal.seek(0))
    print_rows([{**row, "cluster_id": c * 30} for c in "AB"], Format.TABLE, columns=columns)
    text = terminal.getvalue()
    assert max(map(len, text.splitlines())) <= 40
    assert [text.count(c) for c in "AB"] == [30 * len(text.split("\n\n"))] * 2


def test_a_wide_table_and_one_in_a_pipe_have_a_line_for_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(80, monkeypatch)

    @click.command()
    @output_option
    def show(output: Format) -> None:
        print_rows([{"address": ADDRESS, "text": SENTENCE}], output, columns=["address", "text"])

    show.main(["-o", "wide"], standalone_mode=False)
    wide = terminal.getvalue()
    assert wide.count("\n") == 2
    assert wide == CliRunner(env={"COLUMNS": None}).invoke(show).stdout
    show.main([], standalone_mode=False)
    folded = terminal.getvalue().removeprefix(wide)
    assert folded.count("\n") > 2
    assert folded == CliRunner().invoke(show).stdout, "COLUMNS decides in a pipe as well"


@pytest.mark.parametrize("output", [Format.JSON, Format.JSONL])
def test_a_record_is_one_object(output: Format, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"raw": b"\x00\xff", "path": Path("a/b"), "colour": Colour.RED, "range": Range(1, 2)}
    print_record(record, output)
    text = capsys.readouterr().out
    assert json.loads(text) == {
        "raw": "00ff",
        "path": "a/b",
        "colour": "red",
        "range": {"lo": 1, "hi": 2},
    }
    assert (text.count("\n") == 1) == (output is Format.JSONL)


def test_values_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_record({"rate": float("nan")}, Format.JSON)
    with pytest.raises(TypeError, match="object"):
        print_record({"thing": object()}, Format.JSON)


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"topic": "a\x1b[31m\nb"}], Format.TABLE, columns=["topic"])
    assert capsys.readouterr().out.splitlines() == ["topic", r"a\x1b[31m\nb"]


def test_a_small_number_keeps_three_digits() -> None:
    numbers = {1234.5678: "1,234.568", 0.5: "0.5", 0.01234: "0.0123", 1.2345e-5: "0.0000123"}
    numbers |= {0.0: "0", -0.00098765: "-0.000988", 1e-300: "1e-300"}
    assert {number: cell(number) for number in numbers} == numbers


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_a_terminal_of_hardly_a_column_gets_the_table_of_a_small_one(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for width in (columns, 20):
        screen = terminal_of(width, monkeypatch)
        rows = [dict.fromkeys("abcdef", SENTENCE) | {"g": number} for number in range(2)]
        print_rows(rows, Format.TABLE, columns="abcdefg")
        texts.append(screen.getvalue())
    assert texts[0] == texts[1] != ""
