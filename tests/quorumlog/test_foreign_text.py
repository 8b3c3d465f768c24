"""Text of others: one line, printable, cut; the same document in JSON. What Python reads and no
JSON has is refused, in the same words everywhere."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.options import _by_queue
from planning.commands import calibration_file
from qlog.messages.produce_input import parse_json_lines
from quorumlog.command_errors import CliError
from quorumlog.consume.local_offsets import LocalOffsets
from quorumlog.errors import QuorumlogError
from quorumlog.foreign_json import DEPTH_MAX, read_json
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


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1.5e309"])
def test_a_number_that_is_infinite_or_none_is_refused_wherever_it_stands(number: str) -> None:
    for text in (number, f"[{number}]", f'{{"a": {{"b": {number}}}}}'):
        with pytest.raises(ValueError, match="number"):
            read_json(text)
        with pytest.raises(ValueError, match="number"):
            read_json(text.encode())


def test_numbers_of_json_are_read() -> None:
    assert read_json("[1.5, -1e308, 1e-999, 12345678901234567890]") == [
        1.5, -1e308, 0.0, 12345678901234567890,
    ]  # fmt: skip


def test_the_depth_does_not_depend_on_the_caller() -> None:
    read_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(ValueError, match="nested"):
        read_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))


def _of_file(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    def act(data: bytes, directory: Path) -> object:
        path = directory / "in"
        path.write_bytes(data)
        return read(str(path))

    return act


READERS: dict[str, Callable[[bytes, Path], object]] = {
    "qlog produce": lambda data, _: list(parse_json_lines([data], first_line=1, name="in")),
    "qlog plan --calibration": _of_file(calibration_file.load),
    "offsets_path": _of_file(LocalOffsets),
    "startingOffsets": lambda data, _: _by_queue("startingOffsets", data.decode("latin-1"), ()),
}
FAULTS = {
    "a number of 5,000 digits": b'{"queue_id": %s, "body": ""}' % (b"1" * 5_000),
    "UTF-16": '{"body": "x"}'.encode("utf-16"),
    "not UTF-8": b'{"body": "\xff"}',
    "infinite": b'{"body": 1e999}',
    "a member twice": b'{"body": "a", "body": "b"}',
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_reader_refuses_what_only_python_reads(
    reader: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its words are what counts.
        READERS[reader](FAULTS[fault], tmp_path)
    said = f"{caught.value} {getattr(caught.value, 'why', '')}"
    assert not [name for name in ("sys.", "codec", "recursion") if name in said], said
    assert type(caught.value).__module__.split(".")[0] in ("quorumlog", "pipeline")
