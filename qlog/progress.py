"""Progress on stderr: bars on a terminal, elsewhere a line every 10 s.

Owns the form of progress. A command reports steps by name and does not know how they are shown.
"""

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from quorumlog.foreign_text import shown
from quorumlog.standard_output import styled

Show = Callable[[str, float, float | None], None]
"""Call with the name of a step, the amount done, and the total (None: unknown)."""
_NAME_LENGTH_MAX: Final = 60
_above_bars: Final[list[Callable[[str], None]]] = []
"""Writes a line above the bars that are on the terminal now."""


def show_nothing(_what: str, _done: float, _total: float | None) -> None:
    """Show no progress."""


LINE_INTERVAL_S = 10.0


@contextmanager
def lines_shown() -> Iterator[Callable[[str], None]]:
    """Yield a function that takes what is done by now; stderr gets its last text every 10 s."""
    texts, is_over, began_s = ["working"], threading.Event(), time.monotonic()

    def write() -> None:
        while not is_over.wait(LINE_INTERVAL_S):
            click.echo(f"{texts[-1]}, after {time.monotonic() - began_s:.0f} s", err=True)

    def say(text: str) -> None:
        texts[:] = [text]

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield say
    finally:
        is_over.set()
        writer.join()


@contextmanager
def line_shown() -> Iterator[Callable[[str], None]]:
    """Yield a function that overwrites a line on stderr, a terminal; the line goes at the end.
    A line above bars stays."""

    def show(text: str) -> None:
        if not _above_bars:
            print(f"\r\033[K{text}", end="", flush=True, file=styled(sys.stderr))
        elif text:
            _above_bars[-1](text)

    try:
        yield show
    finally:
        show("")


@contextmanager
def progress_bars(*, beside_output: bool = False) -> Iterator[Show]:
    """Show a bar for each step, and remove the bars at the end; or write lines.

    `beside_output`: results are written meanwhile, and show the progress as well. There are no
    lines then, and bars only while the results go into a file: a reader of a pipe may write to the
    same terminal."""
    if beside_output and not (sys.stderr.isatty() and _goes_into_file()):
        yield show_nothing
        return
    if not sys.stderr.isatty():
        with lines_shown() as say:
            yield lambda what, done, total: say(
                ": ".join(filter(None, (shown(what, _NAME_LENGTH_MAX), _numbers(done, total))))
            )
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    # What others print meanwhile must pass the stream that escapes it, and not the bars.
    console = Console(file=styled(sys.stderr))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bars:
        tasks: dict[str, TaskID] = {}
        _above_bars.append(lambda text: console.print(text, markup=False, highlight=False))

        def show(what: str, done: float, total: float | None) -> None:
            known = total or None
            if what not in tasks:  # rich would read brackets in a name as its own markup.
                name = escape(shown(what, _NAME_LENGTH_MAX))
                tasks[what] = bars.add_task(name, total=known, numbers="")
            bars.update(tasks[what], completed=done, total=known, numbers=_numbers(done, total))

        try:
            yield show
        finally:
            _above_bars.pop()


def _goes_into_file() -> bool:
    """Return whether stdout is a file or /dev/null."""
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except OSError:  # A stdout within this process has no descriptor.
        return False
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not sys.stdout.isatty())


def _numbers(done: float, total: float | None) -> str:
    """Return how much is done, as 1,200 of 4,800 (25%); of a share alone the percentage, and
    nothing of a step that counts nothing."""
    if not total:
        return f"{done:,.0f}" if done else ""
    share = f"{min(done / total, 1):.0%}"
    return f"{done:,.0f} of {total:,.0f} ({share})" if total > 1 else share
