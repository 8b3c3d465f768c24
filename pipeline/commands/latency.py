"""`latency` as a command: its options, its progress, and its result.

Must not know how anything is measured.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.commands.cluster import cluster_options
from qlog.command_decorators import Printout, TableRows, printed
from qlog.connection import address_option
from qlog.parsed import PLOT
from qlog.progress import progress_bars
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@click.option("--segments", metavar="DIR", help="Read the files of a stopped node or a backup.")
@click.option("--parquet", metavar="DIR", help="Read what 'ingest' wrote; without consumer lag.")
@click.option("--topic", default="", metavar="NAME,...", help="Only these topics.")
@click.option("--plot", metavar="FILE", type=PLOT, help="Draw it, too: .png, .svg or .pdf.")
@address_option
@click.option("--master", metavar="URL", help="Of a Spark cluster.  [default: local[*]]")
@printed
def latency(
    segments: str | None,
    parquet: str | None,
    topic: str,
    plot: Path | None,
    server: str | None,
    master: str | None,
) -> Printout:
    """Say how much came each minute, how large and how late, and how far consumers were behind.

    By topic, tag and minute: counts, rates, sizes, percentiles of store time less born time. And
    by minute, group and topic the lag, from the commits in the log. Reads a cluster, for which
    --topic is needed, unless told otherwise.

    \b
    Keys of -o json:
      rates, lags

    \b
    Examples:
      qlog pipeline latency --topic orders
      qlog pipeline latency --segments node-1/data --plot latency.png
      qlog pipeline latency --parquet /tables/orders -o json | jq .rates
    """
    if segments and parquet:
        raise CliError(
            "two sources",
            "--segments and --parquet exclude each other",
            "choose one",
            ExitCode.USAGE,
        )
    if not (segments or parquet or topic):
        why = "a cluster is read topic by topic"
        raise CliError("no topic is given", why, "name it with --topic", ExitCode.USAGE)
    cluster = {} if segments or parquet else cluster_options(server)
    from pipeline.session import spark_session

    with progress_bars() as show, spark_session("latency", master) as spark:
        show("read", 0, None)
        rates, lags = _measure(spark, segments, parquet, topic, cluster)
    if plot:
        from pipeline.plot import draw

        draw(rates, lags, plot)
    from pipeline.jobs.latency import LAG_COLUMNS, RATE_COLUMNS

    table = [TableRows(RATE_COLUMNS, rates)] + [TableRows(LAG_COLUMNS, lags)] * bool(lags)
    exit_code = ExitCode.OK if rates else ExitCode.FINDINGS
    return Printout({"rates": rates, "lags": lags}, table=table, exit_code=exit_code)


def _measure(
    spark: "SparkSession",
    segments: str | None,
    parquet: str | None,
    topic: str,
    cluster: Mapping[str, str],
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    from pipeline import register
    from pipeline.jobs import latency as job

    register(spark)
    if parquet:
        return job.rows_of(job.rates(job.from_parquet(spark, parquet, topic))), []
    if segments:
        rows = job.from_segments(spark, segments, topic)
        commands = job.from_segments(spark, segments, job.COMMAND_TOPIC)
    else:
        rows = job.from_cluster(spark, cluster, topic)
        commands = job.from_cluster(spark, cluster, job.COMMAND_TOPIC)
    return job.rows_of(job.rates(rows)), job.rows_of(job.lags(rows, commands))
