"""`qlog bench`: measure this machine, the engine and the cluster.

Owns the options and the printing of the benchmarks without a cluster; the measuring lives in the
package `bench`.
"""

import os
import tempfile
from typing import Final

import click

from bench.commands import cluster as bench_cluster
from bench.commands import compare as bench_compare
from qlog import LazyCommand, LazyGroup
from qlog.output import Format, output_option, print_rows
from quorumlog.command_errors import CliError, ExitCode

_COLUMNS = (
    "what", "where", "container", "value", "unit", "spread", "target", "met",
    "limit", "ratio", "limit_is", "detail",
)  # fmt: skip

PLANNING: Final = {
    "calibrate": LazyCommand(
        "planning.commands.calibrate:calibrate",
        "Measure what qlog plan rests on, and write it to FILE: about two minutes.",
    ),
}


@click.group(cls=LazyGroup, lazy=PLANNING)
def bench() -> None:
    """Measure this machine, the engine and the cluster."""


for _command in (
    bench_cluster.produce,
    bench_cluster.consume,
    bench_cluster.failover,
    bench_compare.compare,
):
    bench.add_command(_command)


@bench.command()
@click.option("--dir", "directory", help="Measure in this directory only.")
@click.option("--only", multiple=True, help="Run only this measurement; may be given again.")
@click.option("--quick", is_flag=True, help="Little work: shows that it runs, not how fast.")
@output_option
def engine(directory: str | None, only: tuple[str, ...], quick: bool, output: Format) -> int:
    """Measure the storage engine, with the limit of the machine beside each figure.

    Takes about three minutes, and up to 3 GiB in each place: /dev/shm and the temporary directory.
    Compare ratios of one run only; these figures depend on the machine and its neighbours.

    \b
    Examples:
      qlog bench engine
      qlog bench engine --only recovery -o json
      qlog bench engine --dir . --quick
    """
    from bench.engine import MEASURES, QUICK, EngineScale, measure

    unknown = sorted(set(only) - set(MEASURES))
    if unknown:
        raise CliError(
            what=f"there is no measurement {unknown[0]!r}",
            why=f"known are {', '.join(MEASURES)}",
            do="name one of these with --only",
        )
    memory = {"tmpfs": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    places = {directory: directory} if directory else {**memory, "disk": tempfile.gettempdir()}
    figures = measure(
        places,
        QUICK if quick else EngineScale(),
        list(only) or list(MEASURES),
        lambda step: click.echo(f"measuring {step}", err=True),
    )
    rows = [figure.row() for figure in figures]
    print_rows(rows, output, columns=_COLUMNS)
    return ExitCode.OK
