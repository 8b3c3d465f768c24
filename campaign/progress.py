"""The progress of a campaign: a bar on a terminal, a line a unit elsewhere. Writes to stderr.

Owns what is shown; must not know how units are chosen.
"""

import time
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from campaign.state import CampaignFinding
from campaign.unit import UnitResult, WorkUnit


class CampaignProgress:
    """Shows units; used in a `with`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began_s = time.monotonic()
        self._finding_count = 0
        console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[findings]} findings"),
                console=console,
            )
            self._task = self._bar.add_task("campaign", total=seconds, findings=0)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, unit: WorkUnit) -> None:
        """Show a unit that begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=unit.title, completed=self._spent_s)

    def end(self, result: UnitResult, finding: CampaignFinding | None) -> None:
        """Show a unit that has ended, and how to repeat one that found something."""
        counts = ", ".join(f"{count:,} {name}" for name, count in result.counts.items() if count)
        line = f"{result.verdict:<8} {result.unit.title:<40} {result.took_s:7.1f} s  {counts}"
        if finding is not None:
            self._finding_count += 1
            line += f"\n{finding.output}\n  the same again: {finding.command_line}"
        if self._bar is None:
            click.echo(line, err=True)
            return
        if finding is not None:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        self._bar.update(self._task, completed=self._spent_s, findings=self._finding_count)

    @property
    def _spent_s(self) -> float:
        return min(self._seconds, time.monotonic() - self._began_s)
