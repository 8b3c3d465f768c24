"""Tasks beside the calls that began them: held until they end; the loop gets the error of each.

Must not know what a task does.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class BackgroundTasks:
    """Tasks beside the calls, each held until it ends."""

    def __init__(self, failure: str, expected: tuple[type[Exception], ...] = ()) -> None:
        """The loop's exception handler gets errors under the text `failure`. Those that are
        `expected` are for the awaiter of a task alone."""
        self._failure, self._expected = failure, expected
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def run(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Begin work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all that has not ended."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Cancel all that has not ended, and wait for the ends."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            context = {"message": self._failure, "exception": error}
            task.get_loop().call_exception_handler(context)
