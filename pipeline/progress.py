"""The progress of Spark with a job, for a bar.

Owns the way from Spark's task counts to a bar's; must not know how a bar looks.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Show = Callable[[str, float, float | None], None]
"""Call with the name of a step, the amount done, and the total (None: unknown)."""
_POLL_S: Final = 0.2


def show_nothing(_what: str, _done: float, _total: float | None) -> None:
    """Show no progress."""


@contextmanager
def tasks_shown(
    spark: "SparkSession", what: str, total: int, show: Show = show_nothing
) -> Iterator[None]:
    """Show how many of `total` tasks are done while Spark works inside of the block."""
    if show is show_nothing:
        yield
        return
    context, group, is_over = spark.sparkContext, uuid4().hex, threading.Event()
    context.setJobGroup(group, what)

    def look() -> None:
        tracker = context.statusTracker()
        while not is_over.wait(_POLL_S):
            done = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
                done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            show(what, min(done, total), total)

    watcher = threading.Thread(target=look, name="pipeline-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        show(what, total, total)
