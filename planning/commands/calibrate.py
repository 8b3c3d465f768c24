"""`qlog bench calibrate`: what this machine does, as a file for `qlog plan`.

Owns the options and the printing; the measuring is in `bench.calibration`.
"""

import click

from qlog.command_decorators import Printout, printed
from qlog.connection import run
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode


@click.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--dir",
    "directory",
    help="Run the nodes in this directory: name the kind of disk that they will have.  [default: "
    "/dev/shm if there is one, else the temporary directory]",
)
@click.option(
    "--check",
    "is_checked",
    is_flag=True,
    help="Predict other loads from the figures, measure them, and compare.",
)
@click.option("--quick", is_flag=True, help="Little work: shows that it runs, not how fast.")
@printed
def calibrate(file: str, directory: str | None, is_checked: bool, quick: bool) -> Printout:
    """Measure what qlog plan rests on, and write it to FILE: about two minutes.

    Starts three nodes on this machine: appends of six kinds, reading, a follower that was away,
    dead leaders; then the disk alone, and a start after a crash. Nodes and client share the
    machine, so the rate of a group on hosts of its own is higher. The check states for each figure
    how far it may be off: a fifth for appends, a fiftieth for bytes of log, a half for times.

    \b
    Keys of -o json:
      file, calibration, checks
      checks: what, predicted, measured, error, bound, met

    \b
    Examples:
      qlog bench calibrate here.json
      qlog bench calibrate here.json --dir /var/lib/quorumlog --check
      qlog plan --rate 50kmsg/s --size 1KiB --calibration here.json

    Ends with 0, or with 1 when a prediction is off by more than its bound.
    """
    from bench.calibration import QUICK, CalibrationScale, check, measure
    from bench.own_cluster import FILE_SIZE_BYTES
    from planning.commands import calibration_file
    from planning.commands.formats import format_sizes

    calibration_file.check_place(file)
    scale = QUICK if quick else CalibrationScale()
    checks = []
    with progress_bars() as show:
        calibration, checked = run(measure(directory, scale, show, is_checked=is_checked))
        calibration_file.save(calibration, file)
        if is_checked:
            formats = format_sizes(FILE_SIZE_BYTES)
            checks = run(check(directory, calibration, checked, formats, scale, show))
    values = calibration.to_json()
    shown = {key: value for key, value in values.items() if key != "machine"}
    return Printout(
        {"file": file, "calibration": values, "checks": checks},
        table=[{"file": file, **shown, "checks": checks}],
        exit_code=ExitCode.OK if all(row["met"] for row in checks) else ExitCode.FINDINGS,
    )
