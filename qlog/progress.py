"""Progress bars: on a terminal's stderr, and nowhere else.

Owns the form of progress. A command reports steps by name and does not know whether bars are shown.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from quorumlog.foreign_text import shown
from quorumlog.standard_output import styled

Show = Callable[[str, float, float | None], None]
"""Call with the name of a step, the amount done, and the total (None: unknown)."""
_NAME_LENGTH_MAX: Final = 60


def show_nothing(_what: str, _done: float, _total: float | None) -> None:
    """Show no progress."""


@contextmanager
def progress_bars(*, beside_output: bool = False) -> Iterator[Show]:
    """Show a bar for each step, and remove the bars at the end.

    `beside_output`: results are written meanwhile. On a terminal they would end up in the bars, and
    show the progress as well."""
    if not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
        yield show_nothing
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, TaskID

    # What others print meanwhile must pass the stream that escapes it, and not the bars.
    console = Console(file=styled(sys.stderr))
    with Progress(
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: float, total: float | None) -> None:
            if what not in tasks:  # rich would read brackets in a name as its own markup.
                tasks[what] = bars.add_task(escape(shown(what, _NAME_LENGTH_MAX)), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
