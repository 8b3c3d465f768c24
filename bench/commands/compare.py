"""`qlog bench compare`: the ways to replicate, side by side.

Owns the options and the printing; the measuring is in `bench.compare`.
"""

from pathlib import Path
from typing import Any

import click

from bench.commands.cluster import count_option, dir_option, seconds_option, seed_option
from qlog.command_decorators import Printout, TableRows, printed
from qlog.connection import run
from qlog.parsed import PLOT
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode

_MODES = ("raft_sync", "raft_async", "sync_master", "async_master")
_COLUMNS = (
    "mode", "msgs/s", "batch p50 ms", "batch p99 ms", "single p50 ms", "single p99 ms",
    "durability", "acked", "lost", "reported lost", "next ack p50 ms", "next ack max ms",
)  # fmt: skip


@click.command()
@click.option(
    "--mode",
    "names",
    type=click.Choice(_MODES),
    multiple=True,
    help="Only this one; may be given again.  [default: all]",
)
@seconds_option
@count_option("--kills", "kills", 3, "Leaders that die in each mode.")
@seed_option
@click.option("--plot", metavar="FILE", type=PLOT, help="Draw it, too: .png, .svg or .pdf.")
@dir_option
@printed
def compare(
    names: tuple[str, ...],
    seconds: float,
    kills: int,
    seed: int,
    plot: Path | None,
    directory: str | None,
) -> Printout:
    """Compare Raft with master-slave replication: speed, and what a dead leader costs.

    Starts three nodes in each mode in turn. First the speed, as `bench produce` measures it. Then
    links between the nodes get 50 ms slower, and the leader dies with its network under load:
    counted is what was acked and is missing afterwards (RPO), and how long it took until the next
    message was acked (RTO). Takes two to three minutes.

    \b
    Keys of -o json:
      bench, modes, published, link_delay_ms, kills, seed, load,
      machine, directory, directory_kind, node_count, limits
      modes: mode, acked_msgs_per_s, acked_mb_per_s, durability, batch_latency,
        serial_latency, acked_count, failed_count, unknown_count, read_count,
        lost_count, duplicate_count, out_of_order_count, reported_lost_count, rto
      published: what, acked_msgs_per_s, rpo, rto

    \b
    Examples:
      qlog bench compare
      qlog bench compare --plot compare.png
      qlog bench compare --mode raft_sync --mode async_master --kills 5 -o json

    Ends with 0, or with 1 when a mode lost what it promises to keep, or hid a loss.
    """
    from bench import compare_plot
    from bench.cluster import ClusterLoad
    from bench.compare import MODES, is_wrong
    from bench.compare import compare as measure

    chosen = tuple(mode for mode in MODES if not names or mode.name in names)
    load = ClusterLoad(seconds=seconds, serial_seconds=min(3.0, seconds))
    with progress_bars() as show:
        record = run(measure(directory, chosen, load, kills=kills, seed=seed, show=show))
    if plot is not None:
        compare_plot.draw(record, plot)
        click.echo(f"drew {plot}", err=True)
    published = record["published"]
    return Printout(
        record,
        table=[
            TableRows(_COLUMNS, [_table_row(row) for row in record["modes"]]),
            TableRows(tuple(published[0]), published),
        ],
        exit_code=ExitCode.FINDINGS if any(map(is_wrong, record["modes"])) else ExitCode.OK,
    )


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    batch, single, rto = row["batch_latency"], row["serial_latency"], row["rto"]
    values = (
        row["mode"], row["acked_msgs_per_s"], batch["p50_ms"], batch["p99_ms"], single["p50_ms"],
        single["p99_ms"], ", ".join(row["durability"]), row["acked_count"], row["lost_count"],
        row["reported_lost_count"], rto["p50_ms"], rto["max_ms"],
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))
