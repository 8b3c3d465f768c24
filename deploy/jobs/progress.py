"""Bars for the long steps of a job on a terminal, one line a step elsewhere.

Owns the form of both. Writes to stderr: stdout is the result's.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Reached = Callable[[int], None]
"""Moves the bar of a step to a number of units."""
BeginStep = Callable[[str, int], Reached]
"""Begins a step by its text and its number of units."""


@contextmanager
def job_progress() -> Iterator[BeginStep]:
    """Show the steps of a job."""
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        "{task.description:<34}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bars:

        def begin(text: str, total: int) -> Reached:
            task = bars.add_task(text, total=total)
            return lambda done: bars.update(task, completed=done)

        yield begin


def _say(text: str, total: int) -> Reached:
    click.echo(f"{text} ({total})", err=True)
    return lambda _done: None
