"""The progress of long commands where no terminal shows a bar, and on one."""

import io
import os
import pty
import sys
import threading
from pathlib import Path

import pytest

from qlog import progress
from tests.patience import PATIENCE_S


class _Lines(io.StringIO):
    """A stderr that is no terminal, and knows when lines have come."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def write(self, text: str) -> int:
        if "\n" in text:
            self.came.set()
        return super().write(text)

    def wait(self) -> str:
        """Return the next line that begins after this call."""
        self.truncate(self.seek(0))
        self.came.clear()
        assert self.came.wait(PATIENCE_S)
        return self.getvalue()


def test_numbers_come_as_lines_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = _Lines()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.01)
    with progress.progress_bars() as show:
        assert "working, after " in stderr.wait()
        show("records", 1_200, 4_800)
        assert "records: 1,200 of 4,800 (25%), after " in stderr.wait() + stderr.wait()
        show("more", 7, None)
        assert "more: 7, after " in stderr.wait() + stderr.wait()
    with progress.progress_bars(beside_output=True) as show:
        assert show is progress.show_nothing


def test_a_bar_beside_results_needs_a_file_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reader of a pipe, such as grep, may write to the terminal that has the bar."""
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    reader, writer = os.pipe()
    terminal, other_end = pty.openpty()
    place = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    for stdout, has_bar in ((writer, False), (terminal, False), (place, True)):
        with os.fdopen(stdout, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            with progress.progress_bars(beside_output=True) as show:
                assert (show is not progress.show_nothing) == has_bar
    os.close(reader)
    os.close(other_end)


def test_a_bar_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.progress_bars() as show:
        show("records", 1_200, 4_800)
        show("more", 7, None)
    assert "1,200 of 4,800" in stderr.getvalue()
    assert [progress._numbers(*one) for one in ((0.5, 1.0), (1.2, 1.0), (7, None), (0, None))] == [
        "50%",
        "100%",
        "7",
        "",
    ]
    assert "records" in stderr.getvalue()
