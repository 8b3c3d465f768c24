"""`replay` as a command: its options, its progress, and its result.

Must not know how rows become records.
"""

import click

from pipeline.commands.cluster import cluster_options
from pipeline.errors import OptionError
from qlog.command_decorators import printed
from qlog.connection import address_option
from qlog.progress import progress_bars


@click.command()
@click.argument("to", metavar="TOPIC")
@click.option("--path", metavar="PATH", help="Take the rows of this table of Parquet.")
@click.option("--topic", metavar="TOPIC,...", help="Take the records of these topics.")
@click.option(
    "--from",
    "startingOffsets",
    metavar="PLACE",
    help="Where to begin in a topic: first, end, an offset, @TIME, or JSON by queue.",
)
@click.option("--until", "endingOffsets", metavar="PLACE", help="Where to end, in the same way.")
@click.option("--where", default="", metavar="SQL", help="A condition on the columns.")
@click.option("--any-queue", is_flag=True, help="Let the key choose the queue, not the record.")
@click.option("--id", "replay_id", default="", metavar="ID", help="Go on with that replay.")
@click.option("--master", metavar="URL", help="Of a Spark cluster.  [default: local[*]]")
@address_option
@printed
def replay(
    to: str,
    path: str | None,
    where: str,
    any_queue: bool,
    replay_id: str,
    master: str | None,
    server: str | None,
    **places: str | None,
) -> object:
    """Put records of a table or of topics back into TOPIC, in the order of their queues.

    What comes out is new records: with body, keys, tag and properties as they were, and with an
    offset, a position and times of their own. A replay has a name, which stderr tells when it
    begins. When one breaks off, run it again with that name and the same rows: what is there
    already is not added again.

    \b
    Keys of -o json:
      replay_id, row_count, duration_s

    \b
    Examples:
      qlog pipeline replay orders --path data --where "date = '2026-01-31'"
      qlog pipeline replay orders-test --topic orders --from @2026-01-31T12:00:00Z
    """
    from pipeline.checks import check_source, check_target
    from pipeline.jobs.replay import replay as run
    from pipeline.options import sink_options
    from pipeline.session import spark_session

    if (path is None) == (places["topic"] is None):
        raise OptionError("a replay has one source", "give --path or --topic")
    cluster, source = cluster_options(server), None
    if path is None:
        source = cluster | {name: place for name, place in places.items() if place}
    # Before Spark, which takes seconds to start.
    if source is not None:
        check_source(source)
    target = {**cluster, "topic": to}
    check_target(sink_options(target).cluster, [to])
    with progress_bars() as show, spark_session("replay", master) as spark:
        return run(
            spark,
            target,
            path=path,
            source=source,
            where=where,
            keeps_queues=not any_queue,
            replay_id=replay_id,
            show=show,
            announce=lambda name: click.echo(f"replay {name}; to go on: --id {name}", err=True),
        )
