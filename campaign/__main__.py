"""The command line of campaigns: run, fuzz, ledger.

Owns options and exit codes: 0 no finding, 1 findings, 2 wrong options. Must not know what a unit is
made of.
"""

import importlib
import importlib.util
import signal
import sys
from pathlib import Path

import click

from campaign.fuzz import regressions
from campaign.fuzz.process import run_apart
from campaign.ledger import FINDINGS, PAGE, RECORDED, page_of, record
from campaign.progress import CampaignProgress
from campaign.runner import CampaignRun, chosen_sources, commit_of
from campaign.sources import FUZZ_INPUTS, SOURCES
from campaign.state import DEFAULT, StateDamagedError, StateTakenError, load_state, taken


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attack everything for hours: simulators, chaos suites, planted faults, fuzzers."""


@main.command()
@click.option(
    "--hours", type=click.FloatRange(0), required=True, help="Duration of the run in hours."
)
@click.option("--only", help=f"Sources to run, of {','.join(SOURCES)}.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT,
    help="State file to resume from.  [default: var/campaign/state.json]",
)
def run(hours: float, only: str | None, state: Path) -> None:
    """Run units of work in turn, and resume where the last run stopped.

    The exit code is 1 if there are findings. Ctrl-C ends the run cleanly; the interrupted unit
    runs again in the next run.
    """
    try:
        sources = chosen_sources(SOURCES, only, lambda line: click.echo(line, err=True))
        click.get_current_context().with_resource(taken(state))
        known = load_state(state)
    except (ValueError, StateDamagedError, StateTakenError) as error:
        raise click.UsageError(str(error)) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: the unit is ended, too.
    with CampaignProgress(hours * 3_600) as progress:
        campaign = CampaignRun(sources, known, state, commit_of, progress)
        campaign.run(hours * 3_600)
    ended = "interrupted after" if campaign.is_interrupted else "ran"
    found = len(campaign.findings)
    at = f" at {', '.join(campaign.commits)}" if campaign.commits else ""
    click.echo(f"campaign: {ended} {campaign.unit_count} units{at}, {found} findings")
    for finding in campaign.findings:
        click.echo(f"  {finding.verdict}: {finding.command_line}")
    sys.exit(1 if campaign.findings else 0)


@main.command()
@click.argument("target", required=False)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=FUZZ_INPUTS,
    show_default=True,
    help="Number of inputs.",
)
@click.option("--atheris", "with_atheris", is_flag=True, help="Search with atheris (extra `fuzz`).")
@click.option("--list", "is_list", is_flag=True, help="Show the targets and their claims.")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path, file_okay=False),
    default=regressions.CORPUS,
    help="Directory for the inputs of crashes.  [default: tests/campaign/corpus]",
)
@click.option("--registry", default="campaign.fuzz.targets", hidden=True)
def fuzz(
    target: str | None,
    seed: int,
    count: int,
    with_atheris: bool,
    is_list: bool,
    corpus: Path,
    registry: str,
) -> None:
    """Search for an input that breaks the claim of TARGET, in a process with bounded memory.

    An input that does is reduced and written into the corpus, which the tests replay.
    """
    targets = importlib.import_module(registry).TARGETS
    if is_list:
        for one in targets.values():
            click.echo(f"{one.name:<22} {one.states}")
        return
    if target is None or target not in targets:
        raise click.UsageError(f"no target {target}; see --list")
    if with_atheris and importlib.util.find_spec("atheris") is None:
        raise click.UsageError("atheris is not installed; install quorumlog[fuzz], or leave it out")
    report = run_apart(target, seed, count, registry=registry, with_atheris=with_atheris)
    click.echo(
        f"{target}: {report.input_count} inputs, {report.accepted_count} accepted, "
        f"{report.corpus_count} kept, {report.edge_count} edges, {len(report.crashes)} crashes"
    )
    for crash in report.crashes:
        path = regressions.save(crash, corpus)
        click.echo(f"\n{crash.kind}\n{crash.detail}\n  input {crash.number}: {path}")
    if report.crashes:
        again = f"{target} --seed {seed} --count {count}{' --atheris' if with_atheris else ''}"
        click.echo(f"\n  the same again: python -m campaign fuzz {again}")
    sys.exit(1 if report.crashes else 0)


@main.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT,
    help="State file whose totals are recorded.  [default: var/campaign/state.json]",
)
def ledger(state: Path) -> None:
    """Record the totals of a state, and write docs/campaigns.md."""
    try:
        recorded = record(load_state(state), RECORDED)
    except StateDamagedError as error:
        raise click.UsageError(str(error)) from error
    PAGE.write_text(page_of(recorded, FINDINGS.read_text("utf-8")), "utf-8")
    click.echo(f"{PAGE.name}: {len(recorded)} states recorded")


if __name__ == "__main__":
    main()
