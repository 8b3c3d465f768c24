"""`qlog plan`: what a load needs.

Owns the command and the printing; the figures are `planning.capacity`'s.
"""

from typing import Any

import click

from planning.commands import calibration_file
from planning.commands.load_options import demand_of, load_options, usage_error
from qlog.command_decorators import Printout, TableRows, printed
from quorumlog.command_errors import ExitCode

_COLUMNS = ("part", "figure", "value", "formula")


@click.command()
@load_options
@printed
def plan(calibration: str | None, **load: Any) -> Printout:
    """Say what a load needs: disks, network, memory, broker groups, hosts, and times after a fault.

    The answer comes first, in a sentence. Each figure stands beside its formula with the numbers
    put in. Sizes follow from the formats of the files; rates and times from a calibration, which
    qlog bench calibrate writes. A broker group is the nodes of one log; a host runs several nodes.
    docs/planning.md explains the figures.

    \b
    Keys of -o json:
      answer, calibration, broker_group_bottleneck, host_bottleneck, warnings,
      figures
      figures: part, figure, value, unit, formula

    \b
    Examples:
      qlog plan --rate 50000msg/s --size 1KiB --retention 7d
      qlog plan --rate 200MB/s --size 4KiB --batch 50 --zones 3 --zone-failures 1
      qlog plan --rate 50kmsg/s --size 1KiB --calibration here.json -o json

    Ends with 0, or with 1 when there are warnings.
    """
    from planning.capacity.demand import DemandError
    from planning.capacity.plan import plan as make_plan
    from planning.commands.formats import format_sizes

    demand = demand_of(load)
    calibrated = calibration_file.load(calibration)
    try:
        plan_made = make_plan(demand, calibrated, format_sizes())
    except DemandError as error:
        raise usage_error(error) from None
    calibration_file.tell_origin(calibrated)
    record = {
        "answer": plan_made.answer,
        "calibration": calibrated.source,
        **plan_made.row(),
    }
    names = "answer", "calibration", "broker_group_bottleneck", "host_bottleneck"
    head = {name: record[name] for name in names}
    rows = [
        {"part": figure.part, "figure": figure.name, "value": figure.text,
         "formula": figure.formula}
        for figure in plan_made.figures
    ]  # fmt: skip
    return Printout(
        record,
        table=[head, TableRows(_COLUMNS, rows)],
        lines=[f"warning: {warning}" for warning in plan_made.warnings],
        exit_code=ExitCode.FINDINGS if plan_made.warnings else ExitCode.OK,
    )
