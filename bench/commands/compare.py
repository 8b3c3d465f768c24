"""`qlog bench compare`: the ways to replicate, side by side.

Owns the options and the printing; the measuring is in `bench.compare`.
"""

from pathlib import Path
from typing import Any

import click

from qlog.connection import run
from qlog.output import Format, output_option, print_record, print_rows
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
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How long to measure the speed of each mode.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Leaders that die in each mode.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the pauses between them."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a plot too.")
@click.option(
    "--dir",
    "directory",
    help="Start the clusters in this directory.  [default: a new one on /dev/shm if there is one, "
    "else in the temporary directory; gone afterwards]",
)
@output_option
def compare(
    names: tuple[str, ...],
    seconds: float,
    kills: int,
    seed: int,
    plot: Path | None,
    directory: str | None,
    output: Format,
) -> int:
    """Compare Raft with master-slave replication: speed, and what a dead leader costs.

    Starts three nodes in each mode in turn. First the speed, as `bench produce` measures it. Then
    links between the nodes get 50 ms slower, and the leader dies with its network under load:
    counted is what was acked and is missing afterwards (RPO), and how long it took until the next
    message was acked (RTO). Takes two to three minutes.

    \b
    Keys of -o json:
      bench, modes, published, link_delay_ms, kills, seed, load,
      machine, directory, directory_kind, node_count, limits
      modes: mode, acked_msgs_per_s, acked_mb_per_s, durability, batch_latency, serial_latency,
        acked_count, failed_count, unknown_count, read_count, lost_count, duplicate_count,
        out_of_order_count, reported_lost_count, rto
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

    if plot is not None:
        compare_plot.check_available()
    chosen = tuple(mode for mode in MODES if not names or mode.name in names)
    load = ClusterLoad(seconds=seconds, serial_seconds=min(3.0, seconds))
    with progress_bars() as show:
        record = run(measure(directory, chosen, load, kills=kills, seed=seed, show=show))
    if plot is not None:
        compare_plot.draw(record, plot)
        click.echo(f"drew {plot}", err=True)
    if output is Format.TABLE:
        print_rows([_table_row(row) for row in record["modes"]], output, columns=_COLUMNS)
        click.echo()
        print_rows(record["published"], output, columns=tuple(record["published"][0]))
    else:
        print_record(record, output)
    return ExitCode.FINDINGS if any(map(is_wrong, record["modes"])) else ExitCode.OK


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    batch, single, rto = row["batch_latency"], row["serial_latency"], row["rto"]
    values = (
        row["mode"], row["acked_msgs_per_s"], batch["p50_ms"], batch["p99_ms"], single["p50_ms"],
        single["p99_ms"], ", ".join(row["durability"]), row["acked_count"], row["lost_count"],
        row["reported_lost_count"], rto["p50_ms"], rto["max_ms"],
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))
