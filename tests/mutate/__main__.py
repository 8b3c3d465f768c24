"""Plants faults in the product's own code, runs the tests that cover them, lists what survives.

Owns arguments, the progress that is shown and the exit code, which is 1 when a fault survives that
tests/mutate/explained.toml does not explain, or when one that it explains is killed.
"""

import json
import random
import sys
import time
from collections.abc import Iterable
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutate import explained
from tests.mutate.campaign import Verdict
from tests.mutate.faults import Fault
from tests.mutate.judging import Judging
from tests.mutate.report import Findings, document_of, lines_of
from tests.mutate.targets import THIS

EXAMPLES = """\b
Examples:
  python -m tests.mutate --sample 30              some of those that are not explained
  python -m tests.mutate --sample 30 --seed 7     the sample that a run printed
  python -m tests.mutate --module raft/           the standing faults of raft
  python -m tests.mutate --fault raft/rules/read_index.py:_echoed:first:1
  python -m tests.mutate --module store/record/stamp.py --all --long
  python -m tests.mutate --fault NAME --test tests/raft/rules/test_reads.py::test_x
"""


_REPORTED_COUNT: Final = 40
"""Without a terminal a line says how far the run is after so many verdicts."""


@click.command(epilog=EXAMPLES)
@click.option("--sample", type=click.IntRange(1), help="Judge so many of those not explained.")
@click.option("--seed", type=int, help="Which sample. Without it one is drawn.")
@click.option("--module", "modules", multiple=True, help="Only files whose path begins so.")
@click.option("--fault", "names", multiple=True, help="Only this fault.")
@click.option("--test", help="Ask only this test (a node id of pytest), without a search.")
@click.option("--all", "everything", is_flag=True, help="Not only the standing faults.")
@click.option("--long", is_flag=True, help="Try the tests marked long against what survives.")
@click.option("--list", "listing", is_flag=True, help="Only list the faults.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print a document instead of a table.")
def main(
    sample: int | None,
    seed: int | None,
    modules: tuple[str, ...],
    names: tuple[str, ...],
    test: str | None,
    everything: bool,
    long: bool,
    listing: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Plant faults in the product's own code and list those that no test notices.

    A fault is named by file, function, operator and its place among those of the function. A test
    that fails kills it. What survives either wants a test, or is explained by name in
    tests/mutate/explained.toml.
    """
    console = Console(stderr=True, highlight=False)
    faults, rows = THIS.all_faults(), explained.read_explained()
    explanations = explained.current(rows, THIS.changes_of(rows))
    chosen = _chosen(faults, modules, names, everything=everything)
    if sample is not None:
        seed = random.randrange(1 << 32) if seed is None else seed
        console.print(f"mutate: --sample {sample} --seed {seed}", soft_wrap=True)
        open_ones = [fault for fault in chosen if fault.name not in explanations]
        chosen = random.Random(seed).sample(open_ones, min(sample, len(open_ones)))
    if listing:
        shown = THIS.changes_of(fault.name for fault in chosen)
        for name, change in shown.items():
            click.echo(f"{name}  {change.mark}  {change.before} -> {change.after}")
        return
    findings = Findings(explanations, stale=sorted(rows.keys() - explanations.keys()))

    def say(text: str) -> None:
        console.print(f"mutate: {text}", soft_wrap=True)

    judging = Judging(THIS, jobs, say)
    columns = (TextColumn("mutate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began_s = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(chosen))

        def note(verdicts: Iterable[Verdict]) -> None:
            for verdict in verdicts:
                findings.verdicts.append(verdict)
                count = len(findings.verdicts)
                progress.update(bar, completed=count)
                if verdict.is_alive and verdict.fault.name not in explanations:
                    say(f"{verdict.how}: {verdict.fault.name}")
                if count % _REPORTED_COUNT == 0 and not console.is_terminal:
                    say(f"{count} of {len(chosen)} judged")

        if test is not None:
            note(judging.with_test(chosen, test))
        else:
            note(judging.with_search(chosen, with_long=False))
        if long and test is None:
            again = findings.survivors()
            findings.verdicts = [v for v in findings.verdicts if v not in again]
            note(judging.with_search([verdict.fault for verdict in again], with_long=True))
    findings.seconds = time.monotonic() - began_s
    if as_json:
        click.echo(json.dumps(document_of(THIS, findings), indent=2))
    else:
        for line in lines_of(THIS, findings):
            click.echo(line)
    sys.exit(0 if findings.is_good() else 1)


def _chosen(
    faults: list[Fault], modules: tuple[str, ...], names: tuple[str, ...], *, everything: bool
) -> list[Fault]:
    existing = {fault.name for fault in faults}
    for name in names:
        if name not in existing:
            raise click.UsageError(f"there is no fault {name}; --all --list shows what there is")
    if names:
        return [fault for fault in faults if fault.name in names]
    return [
        fault
        for fault in faults
        if (everything or THIS.is_standing(fault))
        and (not modules or fault.path.startswith(modules))
    ]


if __name__ == "__main__":
    main(prog_name="python -m tests.mutate")
