"""`qlog bench delay`: how many delayed messages a cluster holds, and how late they come.

Owns the options and the columns beside the figures; the measuring is in `bench.delay`.
"""

from typing import Any

import click

from qlog.bench.cluster import (
    Flush,
    cluster_of,
    pids_of,
    place_of,
    place_options,
    printout_of,
    running_option,
)
from qlog.command_decorators import Printout, printed
from qlog.connection import run
from qlog.progress import progress_bars


@click.command()
@click.option(
    "--messages",
    "message_count",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Number of messages to hold.",
)
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Messages that are due in a second.",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(min=1),
    help="Until the first is due.  [default: 5 s, and 1 s for each 10,000 messages]",
)
@click.option(
    "--body-size",
    "body_size_bytes",
    type=click.IntRange(min=8),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Size of each body.",
)
@place_options
@running_option
@printed
def delay(
    message_count: int,
    rate: int,
    hold_seconds: float | None,
    body_size_bytes: int,
    directory: str | None,
    flush: Flush,
    server: str | None,
) -> Printout:
    """Measure delayed messages: hold many, due in no order, then consume them as received.

    lateness is from the time at which a message is due until the consumer has it; store_lateness
    until the leader wrote it, of one message of each pull. seconds_to_spare below 0 says that the
    first ones were due while others were still being sent.

    \b
    Keys of -o json:
      bench, held_count, held_msgs_per_s, seconds_to_spare, held_bytes_per_msg (of the leader's
      memory), delivered_count, delivered_msgs_per_s, lateness, store_lateness, early_count, cpu,
      targets, load, machine, directory, directory_kind, node_count, flush, limits

    \b
    Examples:
      qlog bench delay
      qlog bench delay --messages 100000 --rate 10000 -o json | jq .lateness
    """
    from bench.delay import DelayLoad

    load = DelayLoad(
        message_count=message_count,
        rate=rate,
        hold_seconds=hold_seconds or 5 + message_count / 10_000,
        body_size_bytes=body_size_bytes,
    )
    return printout_of(run(_delay(load, directory, flush, server)))


async def _delay(
    load: Any, directory: str | None, flush: Flush, server: str | None
) -> dict[str, Any]:
    from bench import delay
    from bench.cluster import target

    with progress_bars() as show:
        async with cluster_of(server, directory, flush) as (client, own):
            leader_pid = None
            if own is not None:
                leader_pid = own.pids.get(f"node {own.nodes.leader_id()}")
            result = await delay.measure(
                client, load, show, pids=pids_of(own), leader_pid=leader_pid
            )
            place = place_of(own, flush)
    targets = [
        target("delivered msg/s", result["delivered_msgs_per_s"], 0.95 * load.rate),
        target(
            "lateness p50, ms",
            result["lateness"]["p50_ms"],
            delay.TARGET_LATENESS_P50_MS,
            less_is_better=True,
        ),
    ]
    return {"bench": "delay", **result, "targets": targets, "load": load.row(), **place}
