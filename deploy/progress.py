"""Bars for the long steps of a job on a terminal, one line a step elsewhere. Writes to stderr."""

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import click


class Progress:
    """Bars on a terminal, one line a step elsewhere. Writes to stderr: stdout is the result's."""

    def __init__(self) -> None:
        self._bars: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                "{task.description:<34}",
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> "Progress":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars:
            self._bars.stop()

    def step(self, text: str, total: int) -> "Step":
        """Begin a step of `total` units."""
        if not self._bars:
            click.echo(f"{text} ({total})", err=True)
            return Step(None, None)
        return Step(self._bars, self._bars.add_task(text, total=total))


@dataclass(slots=True)
class Step:
    """One bar."""

    bars: Any
    task: Any

    def reached(self, done: int) -> None:
        """Move the bar to `done` units."""
        if self.bars:
            self.bars.update(self.task, completed=done)
