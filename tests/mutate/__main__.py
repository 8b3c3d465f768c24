"""Plants faults in the product's own code, runs the tests that cover them, lists what survives.

Owns arguments, the progress that is shown and the exit code, which is 1 when a fault survives that
tests/mutate/explained.toml does not explain, or when one that it explains is killed.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from tests.mutate.explained import explained_faults, read_explained
from tests.mutate.faults import OPERATORS, Change, Fault
from tests.mutate.hunting import Verdict, verdicts
from tests.mutate.matrix import matrix_of, spare_tests
from tests.mutate.recording import TestMap, files_importing, map_of_tests
from tests.mutate.targets import THIS

EXAMPLES = """\b
Examples:
  python -m tests.mutate --sample 30              some of those that are not explained
  python -m tests.mutate --sample 30 --seed 7     the sample that a run printed
  python -m tests.mutate --module raft/           the standing faults of raft
  python -m tests.mutate --fault raft/rules/read_index.py:_echoed:first:1
  python -m tests.mutate --module store/record/stamp.py --all --long
  python -m tests.mutate --fault NAME --test tests/raft/rules/test_reads.py::test_x
  python -m tests.mutate --module raft/ --all --sample 300 --matrix killers.json
"""
_REPORTED_COUNT = 40
"""A line says how far the run is after so many verdicts."""
_MATRIX_HELP = "Run all quick tests of each fault; write the killers there, list tests to spare."


@click.command(epilog=EXAMPLES)
@click.option("--sample", type=click.IntRange(1), help="Judge so many of those not explained.")
@click.option("--seed", type=int, help="Which sample. Without it one is drawn.")
@click.option("--module", "modules", multiple=True, help="Only files whose path begins so.")
@click.option("--fault", "names", multiple=True, help="Only this fault.")
@click.option("--test", help="Ask only this test (a node id of pytest), without a search.")
@click.option("--all", "everything", is_flag=True, help="Not only the standing faults.")
@click.option("--long", is_flag=True, help="Try the tests marked long against what survives.")
@click.option("--matrix", type=click.Path(dir_okay=False, path_type=Path), help=_MATRIX_HELP)
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
    matrix: Path | None,
    listing: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Plant faults in the product's own code and list those that no test notices.

    A fault is named by file, function, operator and its place among those of the function. A test
    that fails kills it. What survives either wants a test, or is explained in
    tests/mutate/explained.toml by function and reason.
    """
    faults, marks = THIS.all_faults(), read_explained()
    explained = explained_faults(THIS, marks, faults)
    chosen = _chosen(faults, modules, names, everything=everything)
    if sample is not None:
        seed = random.randrange(1 << 32) if seed is None else seed
        _say(f"--sample {sample} --seed {seed}")
        unexplained = [fault for fault in chosen if fault.name not in explained]
        chosen = random.Random(seed).sample(unexplained, min(sample, len(unexplained)))
    if listing:
        for name, change in THIS.changes_of(fault.name for fault in chosen).items():
            click.echo(f"{name}  {change.mark}  {change.before} -> {change.after}")
        return
    if matrix is not None:
        if test is not None or long:
            raise click.UsageError("--matrix runs all quick tests: leave out --test and --long")
        rows = list(_judged(chosen, explained, jobs, None, find_all=True))
        matrix.write_text(json.dumps(matrix_of(rows), indent=1) + "\n")
        spare = spare_tests(THIS, rows)
        for name, count in spare:
            click.echo(f"{count:5}  {name}")
        click.echo(
            f"{len(rows)} faults planted, {sum(bool(row.killers) for row in rows)} killed; "
            f"without these {len(spare)} tests ({sum(count for _, count in spare)} lines) as many"
        )
        return
    began_s = time.monotonic()
    judged = list(_judged(chosen, explained, jobs, test))
    survivors = [v for v in judged if v.is_alive and v.fault.name not in explained]
    if long and test is None and survivors:
        judged = [verdict for verdict in judged if verdict not in survivors]
        judged += _judged([v.fault for v in survivors], explained, jobs, None, with_long=True)
        survivors = [v for v in judged if v.is_alive and v.fault.name not in explained]
    killed = [v for v in judged if v.killer and v.fault.name in explained]
    # A change that the function has twice may be explained, and noticed at the other place.
    left = Counter(explained.values()) - Counter(explained[v.fault.name] for v in killed)
    wrong = [v for v in killed if not left[explained[v.fault.name]]]
    stale = sorted(marks - set(explained.values()))
    seconds = time.monotonic() - began_s
    if as_json:
        lists = {"verdicts": judged, "survivors": survivors, "wrongly_explained": wrong}
        document = {name: [asdict(verdict) for verdict in rows] for name, rows in lists.items()}
        click.echo(json.dumps({"seconds": seconds, **document, "stale": stale}, indent=2))
    else:
        changes = THIS.changes_of(verdict.fault.name for verdict in survivors)
        for verdict in survivors:
            click.echo("\n".join(_survivor_lines(verdict, changes[verdict.fault.name])))
        for verdict in wrong:
            mark = explained[verdict.fault.name].mark
            click.echo(
                f"\n{verdict.fault.name}\n  is explained, and yet {verdict.killer} kills it:"
            )
            click.echo(f"  take {mark} out of tests/mutate/explained.toml")
        for function, mark in stale:
            click.echo(f"\n{function}\n  has no change {mark} by now: explained.toml may lose it")
        counts = Counter(verdict.how for verdict in judged).most_common()
        said = ", ".join(f"{how} {count}" for how, count in counts)
        explained_count = sum(v.is_alive and v.fault.name in explained for v in judged)
        click.echo(
            f"{len(judged)} faults planted: {said or 'none'}; {explained_count} explained, "
            f"{len(survivors)} to look at; {seconds:.1f} s"
        )
    sys.exit(1 if survivors or wrong else 0)


def _say(text: str) -> None:
    click.echo(f"mutate: {text}", err=True)


def _judged(
    faults: Sequence[Fault],
    explained: Container[str],
    jobs: int,
    test: str | None,
    *,
    with_long: bool = False,
    find_all: bool = False,
) -> Iterator[Verdict]:
    """Yield a verdict for each fault: by one test, or by those that run its line.

    Tests marked long only of the files that name the modules: the others have many."""
    if not faults:
        return
    if test is None:
        files = files_importing(THIS, {fault.path for fault in faults}) if with_long else []
        tests: TestMap | str = map_of_tests(THIS, jobs, _say, files, with_long=with_long)
        files = files or [*THIS.test_folders]
    else:
        tests, files = test, [test.partition("::")[0]]
        if not (THIS.root / files[0]).exists():
            raise click.UsageError(f"there is no file {files[0]}; name a test as pytest does")
    judged = verdicts(THIS, faults, tests, jobs, files, with_long=with_long, find_all=find_all)
    for count, verdict in enumerate(judged, 1):
        if verdict.is_alive and verdict.fault.name not in explained:
            _say(f"{verdict.how}: {verdict.fault.name}")
        if count % _REPORTED_COUNT == 0:
            _say(f"{count} of {len(faults)} judged")
        yield verdict


def _survivor_lines(verdict: Verdict, change: Change) -> Iterator[str]:
    fault = verdict.fault
    yield f"\n{fault.name}  (line {fault.line}: {OPERATORS[fault.operator]})"
    yield f"  - {change.before}\n  + {change.after}\n  mark {change.mark}"
    match verdict.how:
        case "not loaded":
            yield "  not loaded: the session holds no function of this name and line"
        case "not run":
            yield "  no test of a moderate length runs it"
        case "not judged":
            yield f"  {verdict.tests[0]} is not there, or does not pass without the fault"
        case _:
            yield from ("  no test noticed it; the nearest ones that ran it:",
                        *(f"    {node_id}" for node_id in verdict.tests))  # fmt: skip


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
