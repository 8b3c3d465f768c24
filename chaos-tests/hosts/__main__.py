"""The command `chaos-tests/run --hosts`: choice of scenarios, and results.

Owns the options and the exit code: 0 all well, 1 something failed, 3 nothing could be run.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Final

import click
from chaos.errors import ChaosError
from chaos.page import page
from chaos.profile import ScenarioOptions
from chaos.summary import CampaignSummary

import hosts.scenarios  # noqa: F401  Registers them.
from deploy.run_guard import guard_this_process
from hosts.abilities import abilities_table, find_abilities
from hosts.limits import remove_stale
from hosts.namespaces import RunPlace, enter
from hosts.registry import ALWAYS, HOST_SCENARIOS, HostScenario
from hosts.results import results_json, results_table, verdict_of
from hosts.suite import HostSuite
from quorumlog.cluster.transport import TRANSPORTS, Transport

ROOT: Final = Path(__file__).resolve().parents[2]
Plan = Sequence[tuple[HostScenario, int]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scenario", "names", multiple=True, metavar="NAME",
              help="Run this one; may be given several times. Default: all.")  # fmt: skip
@click.option("--seed", type=int, help="Draw everything from this number; else from a new one.")
@click.option("--transport", type=click.Choice(TRANSPORTS),
              help="How the clients reach the nodes; else drawn for each scenario.")  # fmt: skip
@click.option("--list", "is_list", is_flag=True, help="Show the scenarios, and end.")
@click.option("--abilities", "is_abilities", is_flag=True,
              help="Show what this machine can do of what they need, and end.")  # fmt: skip
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="For people or for programs.")  # fmt: skip
@click.option("--inside", is_flag=True, hidden=True)
@click.option(
    "--artifacts",
    type=click.Path(path_type=Path),
    default=ROOT / "out" / "hosts",
    help="Where reports and what is left of failures go.  [default: out/hosts]",
)
def main(
    names: tuple[str, ...],
    seed: int | None,
    transport: Transport | None,
    is_list: bool,
    is_abilities: bool,
    output: str,
    inside: bool,
    artifacts: Path,
) -> None:
    """Attack clusters whose nodes run on hosts of their own (network namespaces), and check every
    answer they give. Needs root; touches nothing of the machine's own network."""
    if unknown := [name for name in names if name not in HOST_SCENARIOS]:
        raise click.UsageError(f"no scenario {', '.join(unknown)}; see --list")
    if is_list:
        for one in HOST_SCENARIOS.values():
            click.echo(f"{one.name:<20} {' '.join(one.rows):<10} {one.title}")
        return
    if is_abilities:
        abilities = find_abilities()
        as_json = json.dumps([asdict(one) for one in abilities.values()], indent=2)
        click.echo(as_json if output == "json" else abilities_table(abilities))
        return
    if not inside and all(one.is_there for one in find_abilities(*ALWAYS).values()):
        enter(sys.argv[1:])
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    random = Random(seed)
    chosen = [HOST_SCENARIOS[name] for name in names or HOST_SCENARIOS]
    # A scenario named alone has the seed itself, so that a failure can be repeated.
    plan = [(one, seed if len(chosen) == 1 else random.randrange(1 << 31)) for one in chosen]
    # Clients' messages about nodes that do not answer are in the history.
    logging.getLogger("quorumlog").setLevel(logging.ERROR)
    guard_this_process()
    options = ScenarioOptions(seed, transport=transport)
    try:
        sys.exit(_run(plan, options, artifacts / str(seed), output, is_inside=inside))
    except ChaosError as error:
        click.echo(f"chaos-tests: cannot run: {error}", err=True)
        sys.exit(3)


def _run(
    plan: Plan, options: ScenarioOptions, artifacts: Path, output: str, *, is_inside: bool
) -> int:
    def show(text: str) -> None:
        click.echo(text, err=True)

    for left in remove_stale():
        show(f"chaos-tests: of an ended run: {left}")
    place, began = RunPlace(_parent()), time.monotonic()
    suite = HostSuite(place, options, artifacts, find_abilities(), show)
    if is_inside:
        with place:
            asyncio.run(_run_all(suite, plan))
    else:
        asyncio.run(_run_all(suite, plan))
    artifacts.mkdir(parents=True, exist_ok=True)
    results = json.dumps(results_json(suite.runs), indent=2)
    (artifacts / "results.json").write_text(results, "utf-8")
    (artifacts / "report.html").write_text(_report(suite, time.monotonic() - began), "utf-8")
    click.echo(results if output == "json" else results_table(suite.runs))
    verdicts = {run.result.verdict for run in suite.runs}
    if "failed" in verdicts:
        return 1
    return 0 if "passed" in verdicts else 3


async def _run_all(suite: HostSuite, plan: Plan) -> None:
    for number, (scenario, seed) in enumerate(plan, 1):
        run = await suite.run(scenario, seed)
        verdict = f"{scenario.name} {verdict_of(run)}, {run.result.took_s:.0f} s"
        suite.show(f"{number} of {len(plan)}: {verdict}")


def _report(suite: HostSuite, took_s: float) -> str:
    """Return the time lines of all scenarios as a page."""
    results = [run.result for run in suite.runs]
    summary = CampaignSummary(
        results,
        seed=suite.options.seed,
        mode=suite.options.mode.value,
        version="not used",
        took_s=took_s,
    )
    return page(summary, results)


def _parent() -> Path:
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path("/tmp")


if __name__ == "__main__":
    main()
