"""Bars for the long steps of a job on a terminal, one line a step elsewhere. Writes to stderr."""

import sys
from dataclasses import dataclass
from typing import Any

import click


class JobProgress:
    """Bars on a terminal, one line a step elsewhere. Writes to stderr: stdout is the result's."""

    def __init__(self) -> None:
        self._bars: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            self._bars = Progress(
                "{task.description:<34}",
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> "JobProgress":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def step(self, text: str, total: int) -> "JobStep":
        """Begin a step of `total` units."""
        if not self._bars:
            click.echo(f"{text} ({total})", err=True)
            return JobStep(None, None)
        return JobStep(self._bars, self._bars.add_task(text, total=total))


@dataclass(slots=True)
class JobStep:
    """One bar."""

    bars: Any
    task: Any

    def reached(self, done: int) -> None:
        """Move the bar to `done` units."""
        if self.bars:
            self.bars.update(self.task, completed=done)
