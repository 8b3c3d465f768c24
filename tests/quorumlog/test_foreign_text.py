"""Text of others: one line, printable, cut; the same document in JSON."""

import json
import sys

import pytest

from quorumlog.command_errors import CliError
from quorumlog.errors import QuorumlogError
from quorumlog.foreign_text import TEXT_LENGTH_MAX, shown, shown_json, shown_lines
from quorumlog.standard_output import escape_output, styled

HOSTILE = "a\x1b]0;x\x07\x7f\x9b\u202e\u2028\n\r\udc80\U000e0001[red]"
SHOWN = r"a\x1b]0;x\x07\x7f\x9b\u202e\u2028\n\r\udc80\U000e0001[red]"


def test_text_of_others_is_one_printable_line() -> None:
    assert shown(HOSTILE) == SHOWN
    assert shown("grün – 漢字 [bold]") == "grün – 漢字 [bold]"
    assert shown("x" * (TEXT_LENGTH_MAX + 9)) == "x" * TEXT_LENGTH_MAX + "..."
    assert shown_lines(f"a\tb\n{HOSTILE}") == "a\tb\n" + SHOWN.replace(r"\n", "\n")


@pytest.mark.parametrize("indent", [None, 2])
def test_json_says_the_same_and_is_printable(indent: int | None) -> None:
    document = {HOSTILE: [HOSTILE, "grün"]}
    text = shown_json(json.dumps(document, ensure_ascii=False, indent=indent))
    assert json.loads(text) == document
    assert all(line.isprintable() for line in text.split("\n"))
    assert "grün" in text


def test_errors_quote_others_in_one_line() -> None:
    error = QuorumlogError(f"the node says {HOSTILE}")
    assert error.message == str(error) == f"the node says {SHOWN}"
    lines = str(CliError(HOSTILE, HOSTILE, HOSTILE)).split("\n")
    assert lines == [f"error: {SHOWN}", f"  why: {SHOWN}", f"  do:  {SHOWN}"]


def test_output_is_escaped_but_for_our_styles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    escape_output()
    print("\x1b[2J")
    print("\x1b[2J", file=sys.stderr)
    print("\x1b[1mours\x1b[0m", file=styled(sys.stdout))
    assert capsys.readouterr() == ("\\x1b[2J\n\x1b[1mours\x1b[0m\n", "\\x1b[2J\n")
