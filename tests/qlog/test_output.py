"""The three output formats, byte for byte."""

import enum
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from qlog.output import Format, print_record, print_rows


class Colour(enum.Enum):
    """Some enum."""

    RED = "red"


@dataclass(frozen=True)
class Range:
    """Some value."""

    lo: int
    hi: int


def test_a_table_on_a_terminal_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_rows([{"name": "[bold]x[/bold]", "count": 1}], Format.TABLE, columns=["name", "count"])
    assert "[bold]x[/bold]" in terminal.getvalue()
    assert "──" in terminal.getvalue()


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
