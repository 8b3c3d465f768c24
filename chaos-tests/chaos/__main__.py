"""The command `chaos-tests/run`: choice of scenarios and of their clusters, duration, and results.

Owns the options, the exit code (0 all well, 1 something failed, 3 nothing could be run) and the
files of a report.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import click
import hosts.scenarios  # noqa: F401  Registers them.
from hosts.abilities import abilities_table, demand_abilities, find_abilities
from hosts.campaign import HostCampaign
from hosts.namespaces import enter
from hosts.registry import ALWAYS, HOST_SCENARIOS

import chaos.scenarios  # noqa: F401  Registers them.
from chaos.campaign import FEATURES, SHORT, SLICE, Campaign, drawn, possible
from chaos.errors import ChaosError, NotPossibleHereError
from chaos.page import page
from chaos.profile import ClusterMode, ScenarioOptions
from chaos.scenario import SCENARIOS, Scenario
from chaos.summary import CampaignSummary
from quorumlog.cluster.transport import TRANSPORTS, Transport
from quorumlog.run_guard import guard_this_process

ROOT: Final = Path(__file__).resolve().parents[2]
HISTORY_KEPT_COUNT: Final = 60
"""Passed scenarios whose operations are kept for the report; further ones keep their events
only."""
GROWN_MIN: Final = 6
"""Processes that must have lived through several scenarios before their growth is judged."""
GROWTH_MIB_MAX: Final = 16.0
"""Growth per scenario: topics, producers and groups of each are remembered on purpose."""
Plan = Iterable[tuple[Scenario, int]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--mode", type=click.Choice([mode.value for mode in ClusterMode]), default="raft",
              show_default=True, help="How the nodes replicate.")  # fmt: skip
@click.option("--transport", type=click.Choice(TRANSPORTS),
              help="How the clients reach the nodes; else drawn for each scenario.")  # fmt: skip
@click.option("--seed", type=int, help="Draw everything from this number; else from a new one.")
@click.option("--slice", "is_slice", is_flag=True, help="Four scenarios, about two minutes.")
@click.option("--features", "is_features", is_flag=True,
              help="Transactions, retry, delay and pop, about three minutes.")  # fmt: skip
@click.option("--all", "is_all", is_flag=True, help="Every scenario once.")
@click.option("--long", "hours", type=float, help="Draw scenarios for this number of hours.")
@click.option("--judge-times", "judges_times", is_flag=True,
              help="Fail where times exceed the gates: on a quiet machine only.")  # fmt: skip
@click.option("--list", "is_list", is_flag=True, help="Show the scenarios, and end.")
@click.option("--hosts", "is_hosts", is_flag=True,
              help="Run the scenarios whose nodes have hosts of their own (network namespaces). "
              "Needs root; touches nothing of the machine's own network.")  # fmt: skip
@click.option("--abilities", "is_abilities", is_flag=True,
              help="Show what this machine can do of what those need, and end.")  # fmt: skip
@click.option("--inside", is_flag=True, hidden=True)
@click.option("--artifacts", type=click.Path(path_type=Path),
              help="Where reports and what is left of failures go.  "
              "[default: out/chaos, out/hosts]")  # fmt: skip
def main(
    names: tuple[str, ...],
    mode: str,
    transport: Transport | None,
    seed: int | None,
    is_slice: bool,
    is_features: bool,
    is_all: bool,
    hours: float | None,
    judges_times: bool,
    is_list: bool,
    is_hosts: bool,
    is_abilities: bool,
    inside: bool,
    artifacts: Path | None,
) -> None:
    """Attack clusters of real nodes, and check every answer they give.

    Without names or options: the short tier, twelve kinds of fault in at most eight minutes; with
    --hosts every scenario of these.
    """
    table = HOST_SCENARIOS if is_hosts else SCENARIOS
    if unknown := [name for name in names if name not in table]:
        raise click.UsageError(f"no scenario {', '.join(unknown)}; see --list")
    chosen = ClusterMode(mode)
    if is_list:
        for scenario in possible(chosen, table=table):
            click.echo(f"{scenario.name:<20} {' '.join(scenario.rows):<14} {scenario.title}")
        return
    if is_abilities:
        click.echo(abilities_table(find_abilities()))
        return
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    random = Random(seed)
    plan: Plan
    if hours is not None:
        plan = _for_hours(drawn(possible(chosen, table=table), random), hours)
    else:
        short = SLICE if is_slice else FEATURES if is_features else SHORT
        tier = names or (() if is_all or is_hosts else short)
        # A scenario named alone has the seed itself, so that a failure can be repeated.
        plan = [
            (one, seed if len(names) == 1 else random.randrange(1 << 31))
            for one in possible(chosen, tier, table)
        ]
    # Clients' messages about nodes that do not answer are in the history.
    logging.getLogger("quorumlog").setLevel(logging.ERROR)
    try:
        if is_hosts and not inside:
            demand_abilities(ALWAYS)
            enter(sys.argv[1:])
        click.echo(f"chaos-tests: seed {seed}, mode {mode}, transport {transport or 'drawn'}")
        guard_this_process()
        options = ScenarioOptions(seed, chosen, judges_times, transport)
        place = (artifacts or ROOT / "out" / ("hosts" if is_hosts else "chaos")) / str(seed)
        kind = HostCampaign if is_hosts else Campaign
        sys.exit(asyncio.run(_run(plan, kind(options, place, click.echo))))
    except (ChaosError, NotPossibleHereError) as error:
        click.echo(f"chaos-tests: cannot run: {error}", err=True)
        sys.exit(3)


def _for_hours(
    plan: Iterator[tuple[Scenario, int]], hours: float
) -> Iterator[tuple[Scenario, int]]:
    deadline = time.monotonic() + hours * 3600
    for found in plan:
        if time.monotonic() >= deadline:
            return
        yield found


def grows(summary: CampaignSummary) -> bool:
    """Whether most long-lived processes grew steadily, which is the purpose of --long (I16)."""
    growth = summary.growth_mib
    return growth is not None and growth.count >= GROWN_MIN and growth.p50 > GROWTH_MIB_MAX


async def _run(plan: Plan, made: Campaign) -> int:
    began, options, artifacts = time.monotonic(), made.options, made.artifacts
    async with made as campaign:
        click.echo(f"chaos-tests: toxiproxy {campaign.toxiproxy_version}")
        for scenario, seed in plan:
            result = await campaign.run(scenario, seed)
            faults = sum(result.fault_counts.values())
            memory = max(result.memory_size_bytes.values(), default=0) >> 20
            click.echo(
                f"{result.verdict:<8} {scenario.name:<20} {result.transport:<6} "
                f"{result.took_s:6.1f} s  {faults:3} faults  "
                f"{result.operation_count:7,} operations  {memory:4} MiB"
            )
            if len(campaign.results) > HISTORY_KEPT_COUNT and result.verdict == "passed":
                result.recorder.operations.clear()
        if campaign.results:
            await asyncio.to_thread(campaign.close_cluster, campaign.results[-1:])
    summary = CampaignSummary(
        campaign.results,
        seed=options.seed,
        mode=options.mode.value,
        version=campaign.toxiproxy_version,
        took_s=time.monotonic() - began,
        judges_times=options.judges_times,
    )
    (artifacts / "report.html").write_text(page(summary, campaign.results), "utf-8")
    (artifacts / "summary.json").write_text(json.dumps(summary.to_json(), indent=2), "utf-8")
    click.echo(summary.table())
    click.echo(f"  report    {artifacts / 'report.html'}")
    if not any(result.verdict == "passed" for result in campaign.results):
        return 3 if not summary.failed else 1
    if grows(summary):
        click.echo("  FAILED   I16: nodes grow from scenario to scenario")
        return 1
    return 1 if summary.failed or (summary.judges_times and summary.late) else 0


if __name__ == "__main__":
    main(prog_name="chaos-tests/run")
