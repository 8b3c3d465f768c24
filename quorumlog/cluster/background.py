"""Tasks in the background: the next call that relies on one raises the error that ended it."""

import asyncio


def raise_ended(*tasks: "asyncio.Task[None]") -> None:
    """Raise the error that has ended a task, if one did. A task that was cancelled has none."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
