"""`ingest` as a command: its options, its progress, and its result.

Must not know how rows get into the table.
"""

import signal
import threading
from typing import Any

import click

from pipeline.commands.cluster import cluster_options
from qlog.command_decorators import printed
from qlog.connection import address_option
from qlog.progress import progress_bars


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to", "path", metavar="PATH", required=True, help="The table: a directory.")
@click.option(
    "--from",
    "starting",
    metavar="PLACE",
    default="first",
    show_default=True,
    help="Where a new table begins: first, end, an offset, @TIME, or JSON by queue.",
)
@click.option("--follow", is_flag=True, help="Go on as the topics grow, until Ctrl-C.")
@click.option(
    "--batch",
    "batch_count",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Records of a micro-batch.",
)
@click.option("--lossy", is_flag=True, help="Go on behind records that expired; else an error.")
@click.option("--master", metavar="URL", help="Of a Spark cluster.  [default: local[*]]")
@address_option
@printed
def ingest(
    topics: tuple[str, ...],
    path: str,
    starting: str,
    follow: bool,
    batch_count: int,
    lossy: bool,
    master: str | None,
    server: str | None,
) -> object:
    """Copy topics to Parquet files, each record once, and go on where the last run ended.

    PATH becomes a table that is partitioned by topic and by the date (UTC) on which a record was
    stored. It knows how far it is: a run that was killed is simply started again. Small files of
    earlier runs are merged. PATH is read by Spark, so on a cluster it is where all of it can write.

    \b
    Keys of -o json:
      path, batch_count, row_count, merged_file_count, duration_s

    \b
    Examples:
      qlog pipeline ingest orders --to /data/orders
      qlog pipeline ingest orders --to hdfs:///logs --master spark://host:7077
    """
    from pipeline.checks import check_source
    from pipeline.jobs.ingest import ingest as run
    from pipeline.session import spark_session

    given = {
        **cluster_options(server),
        "topic": ",".join(topics),
        "startingOffsets": starting,
        "maxRecordsPerTrigger": str(batch_count),
        "failOnDataLoss": "false" if lossy else "true",
    }
    check_source(given)  # Before Spark, which takes seconds to start.
    stop = threading.Event()
    with progress_bars() as show, spark_session("ingest", master) as spark:
        before = _on_signals(stop) if follow else {}
        try:
            done = run(spark, given, path, follow=follow, show=show, should_stop=stop.is_set)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return done


def _on_signals(stop: threading.Event) -> dict[signal.Signals, Any]:
    """Let Ctrl-C and SIGTERM end the stream in order; return the handlers of before."""
    return {
        number: signal.signal(number, lambda _number, _frame: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
