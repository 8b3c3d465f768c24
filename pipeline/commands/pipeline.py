"""`qlog pipeline`: the jobs on Spark.

Owns the list of jobs. Their options and printing are in modules beside this one, imported when one
is used; they import Spark when they run, so help needs neither it nor Java.
"""

import click

from qlog import LazyCommand, LazyGroup

JOBS = {
    "audit": LazyCommand(
        "pipeline.commands.audit:audit",
        "Check every record of every replica, and the replicas against each other.",
    ),
    "history-check": LazyCommand(
        "pipeline.commands.history_check:history_check",
        "Judge saved histories of clients: what was lost, doubled, stale or out of order.",
    ),
    "ingest": LazyCommand(
        "pipeline.commands.ingest:ingest",
        "Copy topics to Parquet files, each record once, and go on where the last run ended.",
    ),
    "latency": LazyCommand(
        "pipeline.commands.latency:latency",
        "Say how much came each minute, how large and how late, and how far consumers were behind.",
    ),
    "replay": LazyCommand(
        "pipeline.commands.replay:replay",
        "Put records of a table or of topics back into TOPIC, in the order of their queues.",
    ),
}


@click.group(cls=LazyGroup, lazy=JOBS)
def pipeline() -> None:
    """Run a job on Spark, in this process or on a cluster.

    Spark runs embedded, on all cores, unless --master names a cluster. Needs Java 17 and the extra
    `spark`: pip install 'quorumlog[spark]'.

    \b
    Examples:
      qlog pipeline audit node-1/data node-2/data node-3/data
      qlog pipeline latency --topic orders --plot latency.png
    """
