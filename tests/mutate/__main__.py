"""Plants faults in the product's own code, runs the tests that cover them, lists what survives.

Owns arguments, the progress that is shown and the exit code, which is 1 when a fault survives that
tests/mutate/explained.toml does not explain, or when one that it explains is killed. A sample is
never searched for: a fault whose known test does not pass here without it is named and not judged.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutate import judged
from tests.mutate.campaign import Verdict
from tests.mutate.faults import Change, Fault
from tests.mutate.judged import Explained, Killed
from tests.mutate.judging import Judging
from tests.mutate.report import Findings, document_of, lines_of
from tests.mutate.targets import THIS

EXAMPLES = """\b
Examples:
  python -m tests.mutate --sample 30              what tests/run does: half a minute
  python -m tests.mutate --sample 30 --seed 7     the sample that a run printed
  python -m tests.mutate --module raft/           the standing faults of raft
  python -m tests.mutate --new --record           those that nobody judged yet
  python -m tests.mutate --new --near --record    the same in minutes, by the nearest tests
  python -m tests.mutate --prune                  forget what is about faults that are gone
  python -m tests.mutate --fault raft/rules/read_index.py:_echoed:first:1
  python -m tests.mutate --module store/record/stamp.py --all --slow
  python -m tests.mutate --fault NAME --test tests/raft/rules/test_reads.py::test_x
"""
RECORDED_EVERY = 50
"""A long run that is ended loses so many verdicts at most."""


@click.command(epilog=EXAMPLES)
@click.option("--sample", type=click.IntRange(1), help="Judge so many of those known as killed.")
@click.option("--seed", type=int, help="Which sample. Without it the commit decides.")
@click.option("--module", "modules", multiple=True, help="Only files whose path begins so.")
@click.option("--fault", "names", multiple=True, help="Only this fault.")
@click.option("--test", help="Ask only this test (a node id of pytest), without a search.")
@click.option("--near", is_flag=True, help="Ask only tests that are near; without the whole map.")
@click.option("--all", "everything", is_flag=True, help="Not only the standing faults.")
@click.option("--slow", is_flag=True, help="Try the tests marked slow against what survives.")
@click.option("--new", is_flag=True, help="Only faults that are neither killed nor explained.")
@click.option("--record", is_flag=True, help="Note in killed.txt what is killed.")
@click.option("--prune", is_flag=True, help="Only forget what is about faults that are gone.")
@click.option("--list", "listing", is_flag=True, help="Only list the faults.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print a document instead of a table.")
def main(
    sample: int | None,
    seed: int | None,
    modules: tuple[str, ...],
    names: tuple[str, ...],
    test: str | None,
    near: bool,
    everything: bool,
    slow: bool,
    new: bool,
    record: bool,
    prune: bool,
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
    faults, all_killed, all_explained = (
        THIS.all_faults(),
        judged.read_killed(),
        judged.read_explained(),
    )
    known_names = all_killed.keys() | all_explained.keys()
    changes = THIS.changes_of(known_names)
    if prune:
        standing = {fault.name for fault in faults if THIS.is_standing(fault)}
        _prune(all_killed, all_explained, changes, standing)
        return
    killed = judged.current(all_killed, changes)
    explained = judged.current(all_explained, changes)
    chosen = _chosen(faults, modules, names, everything=everything)
    if new:
        chosen = [f for f in chosen if f.name not in killed and f.name not in explained]
    if sample is not None:
        seed = _seed() if seed is None else seed
        new_count = len({fault.name for fault in chosen} - killed.keys() - explained.keys())
        gone_count = len(known_names) - len(killed) - len(explained)
        console.print(f"mutate: --sample {sample} --seed {seed}", soft_wrap=True)
        console.print(
            f"mutate: of {len(chosen)} standing faults {new_count} are not judged yet, "
            f"{gone_count} that were are gone or changed (--new --record judges, --prune forgets)",
            soft_wrap=True,
        )
        quick = [f for f in chosen if f.name in killed and killed[f.name].is_quick]
        chosen = random.Random(seed).sample(quick, min(sample, len(quick)))
    if listing:
        shown = THIS.changes_of(fault.name for fault in chosen)
        for name, change in shown.items():
            click.echo(f"{name}  {change.mark}  {change.before} -> {change.after}")
        return
    rows = all_killed if record else None
    run = _Run(console, Findings(explained), killed, len(chosen), jobs, rows)
    if test is not None:
        run.ask(chosen, dict.fromkeys((fault.name for fault in chosen), test))
    elif sample is not None:
        run.ask(chosen, run.killers())
    elif near:
        run.judge_near(chosen, judged.tests_beside(chosen, all_killed, with_slow=slow))
    else:
        run.judge(chosen, slow=slow)
    _show(run.findings, as_json=as_json)


def _show(findings: Findings, *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps(document_of(THIS, findings), indent=2))
    else:
        for line in lines_of(THIS, findings):
            click.echo(line)
    sys.exit(0 if findings.is_good() else 1)


def _prune(
    killed: Mapping[str, Killed],
    explained: Mapping[str, Explained],
    changes: Mapping[str, Change],
    standing: Collection[str],
) -> None:
    """Forget what is about faults that are gone; list explanations that are to be looked at."""
    kept, unchanged = judged.current(killed, changes), judged.current(explained, changes)
    judged.write_killed(kept.values())
    # One that is another fault by now is looked at if somebody would judge it.
    changed = (explained.keys() - unchanged.keys()) & changes.keys() & set(standing)
    gone = (explained.keys() - unchanged.keys() - changed) | (explained.keys() & kept.keys())
    judged.drop_explained(gone)
    click.echo(f"killed.txt: {len(killed) - len(kept)} of {len(killed)} are gone")
    click.echo(f"explained.toml: {len(gone)} of {len(explained)} are gone, or killed by now")
    for name in sorted(changed - gone):
        change, row = changes[name], explained[name]
        click.echo(f"\n{name}\n  - {change.before}\n  + {change.after}")
        click.echo(f"  mark {change.mark}, and {row.mark} was explained: {row.why}")


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


def _seed() -> int:
    """Return a number that is another one for each commit."""
    words = ["git", "-C", str(THIS.root), "rev-parse", "--short=8", "HEAD"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(ran.stdout, 16) if ran.returncode == 0 else 0


class _Run:
    """One run, its progress, and what it writes down on its way."""

    def __init__(
        self,
        console: Console,
        findings: Findings,
        killed: dict[str, Killed],
        count: int,
        jobs: int,
        rows: Mapping[str, Killed] | None,
    ) -> None:
        """`rows` are those of the file where verdicts are written down; None: nowhere."""
        self.findings, self._killed, self._count = findings, killed, count
        self._rows, self._is_searched = rows, False
        columns = (TextColumn("mutate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        say = lambda text: console.print(f"mutate: {text}")  # noqa: E731 - as short as it is.
        self._judging = Judging(THIS, jobs, say)

    def ask(self, faults: list[Fault], killers: Mapping[str, str]) -> None:
        """Judge each fault by one test, without a search."""
        began_s = time.monotonic()
        with self._progress:
            bar = self._progress.add_task("", total=self._count)
            self._note(self._judging.with_killers_alone(faults, killers), bar)
        self._write()
        self.findings.seconds = time.monotonic() - began_s

    def judge_near(self, faults: list[Fault], tests: Mapping[str, Sequence[str]]) -> None:
        """Judge each fault by these tests, and by those of the files that import its module."""
        began_s, judging = time.monotonic(), self._judging
        alive: dict[str, Verdict] = {}

        def killed() -> Iterator[Verdict]:
            for verdict in judging.with_known_tests(faults, tests):
                if verdict.is_killed:
                    yield verdict
                else:
                    alive[verdict.fault.name] = verdict

        def searched() -> Iterator[Verdict]:
            for verdict in judging.with_near_search([verdict.fault for verdict in alive.values()]):
                # Where no near test runs it, those that were asked before say more.
                yield alive[verdict.fault.name] if verdict.how == "not run" else verdict

        with self._progress:
            bar = self._progress.add_task("", total=self._count)
            self._note(killed(), bar)
            self._note(searched(), bar)
        self._write()
        self.findings.seconds = time.monotonic() - began_s

    def judge(self, faults: list[Fault], *, slow: bool) -> None:
        """Judge faults by the test that is known, and search where that one does not kill."""
        began_s, self._is_searched = time.monotonic(), True
        judging = self._judging
        with self._progress:
            bar = self._progress.add_task("", total=self._count)
            self._note(judging.with_known_killers(faults, self.killers()), bar)
            done = {verdict.fault.name for verdict in self.findings.verdicts}
            left = [fault for fault in faults if fault.name not in done]
            self._note(judging.with_search(left, with_slow=False), bar)
            if slow:
                again = [verdict.fault for verdict in self.findings.survivors()]
                names = {fault.name for fault in again}
                self.findings.verdicts = [
                    verdict for verdict in self.findings.verdicts if verdict.fault.name not in names
                ]
                self._note(judging.with_search(again, with_slow=True), bar)
        self._write()
        self.findings.seconds = time.monotonic() - began_s

    def killers(self) -> dict[str, str]:
        """Return what is known to kill each fault."""
        return {row.name: row.killer for row in self._killed.values()}

    def _note(self, verdicts: Iterable[Verdict], bar: object) -> None:
        found = self.findings.verdicts
        for verdict in verdicts:
            found.append(verdict)
            self._progress.update(bar, completed=len(found))  # type: ignore[arg-type]
            if len(found) % RECORDED_EVERY == 0:
                self._write()

    def _write(self) -> None:
        if self._rows is None:
            return
        # Another test than those that were asked may kill what these did not notice.
        verdicts = [v for v in self.findings.verdicts if v.is_killed or self._is_searched]
        changes = THIS.changes_of(verdict.fault.name for verdict in verdicts)
        judged.write_killed(judged.after(self._rows, verdicts, changes))


if __name__ == "__main__":
    main(prog_name="python -m tests.mutate")
