"""`qlog fleet`: how hosts with hundreds of groups fare as hosts and zones fail.

Owns the options, the printing and the plot; the simulation is `planning.capacity.fleet`'s.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from planning.commands import calibration_file
from planning.commands.load_options import demand_of, load_options, usage_error
from planning.commands.quantities import SPAN
from qlog.output import Format, output_option, print_record, print_rows
from qlog.parsed import PLOT
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from planning.capacity.fleet.scenario import FleetFault, FleetScenario
    from planning.capacity.fleet.simulation import FleetSimulation

_COLUMNS: Final = (
    "at_s", "event", "acked_share", "leaderless_count", "no_quorum_count", "behind_count",
    "down_count", "hot_ratio", "repair_bytes_per_s",
)  # fmt: skip


@click.command()
@load_options
@click.option("--broker-groups", "groups", type=click.IntRange(1), help="[default: of the plan]")
@click.option("--hosts", type=click.IntRange(min=1), help="Hosts.  [default: those of the plan]")
@click.option(
    "--fault",
    "fault_texts",
    multiple=True,
    metavar="FAULT",
    help="host:NAME@AT+FOR, zone:NAME@AT+FOR or lost:NAME@AT, in seconds; may be given again. "
    "Hosts are z0-h0, z1-h0, ...  [default: one of each kind]",
)
@click.option(
    "--random-faults",
    "random_count",
    type=click.IntRange(min=0),
    help="Number of faults of single hosts, drawn by --seed, instead of --fault.",
)
@click.option(
    "--duration", type=SPAN, default="1h", show_default=True, metavar="TIME", help="Time simulated."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of elections and faults.")
@click.option("--plot", metavar="FILE", type=PLOT, help="Draw it, too: .png, .svg or .pdf.")
@click.option(
    "--placement",
    "is_placed_only",
    is_flag=True,
    help="Simulate nothing: print the hosts of each broker group, and which should lead it.",
)
@output_option
def fleet(
    groups: int | None,
    hosts: int | None,
    fault_texts: tuple[str, ...],
    random_count: int | None,
    duration: float,
    seed: int,
    plot: Path | None,
    is_placed_only: bool,
    calibration: str | None,
    output: Format,
    **load: Any,
) -> int:
    """Simulate hosts with many broker groups as hosts and zones fail: numbers only, no nodes.

    Copies are placed with spread over zones, leaders rebalanced once a minute, copies of a lost
    host placed on others after 5 minutes (a twentieth of --duration if that is less). Times and
    rates are those of the plan. acked_share is of what clients offer; hot_ratio is most leaders of
    a host over the mean. The table has the moments at which something happened; -o json has samples
    between as well. The same seed gives the same result.

    \b
    Keys of -o json:
      host_count, broker_group_count, seed, faults, acked_share, acked_share_min,
      failover_count, failover_p50_s, failover_p99_s, failover_max_s,
      repair_size_bytes, repair_bytes_per_s_max, hand_over_count, replaced_count,
      unplaced_count, lost_count, no_quorum_count_max, hot_ratio_max,
      hot_ratio_end, samples
      samples: at_s, event, acked_share, leaderless_count, no_quorum_count,
        behind_count, down_count, hot_ratio, repair_bytes_per_s
    With --placement an array of: broker_group, leader, hosts

    \b
    Examples:
      qlog fleet --rate 300kmsg/s --size 1KiB --batch 50 --broker-groups 300
      qlog fleet --rate 100kmsg/s --size 1KiB --zones 3 --fault zone:z0@60+600
      qlog fleet --rate 1Mmsg/s --size 512 --batch 50 --random-faults 20

    Ends with 0, or with 1 when a broker group lost its quorum or its log.
    """
    from planning.capacity.demand import DemandError
    from planning.capacity.fleet.simulation import FleetSimulation

    try:
        scenario = _scenario(load, calibration, groups, hosts, duration, seed)
        scenario = _with_faults(scenario, fault_texts, random_count)
        simulation = FleetSimulation(scenario)
        if is_placed_only and plot is not None:
            raise click.UsageError("--placement simulates nothing that --plot could draw")
        if is_placed_only:
            print_rows(_placement(simulation), output, columns=("broker_group", "leader", "hosts"))
            return ExitCode.OK
        with progress_bars() as show:
            report = simulation.run(show)
    except DemandError as error:
        raise usage_error(error) from None
    if plot is not None:
        from planning.commands.fleet_plot import draw

        draw(report, plot)
        click.echo(f"drew {plot}", err=True)
    sums = report.row()
    record = {
        "host_count": len(scenario.hosts),
        "broker_group_count": scenario.group_count,
        "seed": scenario.seed,
        "faults": [str(fault) for fault in scenario.faults],
        **sums,
    }
    rows = [sample.row() for sample in report.samples]
    if output is Format.TABLE:
        print_record(record, output)
        click.echo()
        print_rows([row for row in rows if row["event"]], output, columns=_COLUMNS)
    else:
        print_record({**record, "samples": rows}, output)
    is_bad = sums["lost_count"] or sums["no_quorum_count_max"]
    return ExitCode.FINDINGS if is_bad else ExitCode.OK


def _placement(simulation: "FleetSimulation") -> list[dict[str, Any]]:
    return [
        {
            "broker_group": group.name,
            "leader": group.leader,
            "hosts": [copy.host for copy in group.copies],
        }
        for group in simulation.state.groups
    ]


def _scenario(
    load: dict[str, Any],
    calibration: str | None,
    groups: int | None,
    hosts: int | None,
    duration: float,
    seed: int,
) -> "FleetScenario":
    from planning.capacity.fleet.scenario import scenario_of
    from planning.capacity.plan import plan
    from planning.commands.formats import format_sizes

    calibrated = calibration_file.load(calibration)
    planned = plan(demand_of(load), calibrated, format_sizes())
    calibration_file.tell_origin(calibrated)
    return scenario_of(
        planned,
        calibrated,
        host_count=hosts,
        group_count=groups,
        duration_s=duration,
        seed=seed,
    )


def _with_faults(
    scenario: "FleetScenario", texts: tuple[str, ...], random_count: int | None
) -> "FleetScenario":
    from dataclasses import replace

    from planning.capacity.fleet.scenario import parse_fault, random_faults, usual_faults

    faults: tuple[FleetFault, ...]
    if texts and random_count is not None:
        raise click.UsageError("--fault and --random-faults: give one of them")
    if texts:
        try:
            faults = tuple(map(parse_fault, texts))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    elif random_count is not None:
        faults = random_faults(scenario.hosts, random_count, scenario.duration_s, scenario.seed)
    else:
        faults = usual_faults(scenario.hosts, scenario.duration_s)
    return replace(scenario, faults=faults)
