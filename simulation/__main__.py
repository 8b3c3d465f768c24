"""The command line of the simulation: run, replay, shrink.

Owns arguments and printing. Must not know what a run is made of.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "chaos-tests"))

from rich.console import Console
from rich.progress import track

from simulation import arguments
from simulation.coverage import SOMETIMES
from simulation.plan import MODES, Case, draw
from simulation.raft.coverage import Coverage
from simulation.runner import failing_as, kind_of, run_many, shrink
from simulation.trial import Report, run_case

DURATION_S: float = 60.0
FRESH_COUNT = 100
COVERED_SEED_COUNT = 100
"""Number of seeds that together have to reach every state of interest."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = _parser()
    given = parser.parse_args(words)
    if given.command == "run":
        return _run(given)
    try:
        case = _case_of(given)
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{given.case} is no case that shrink wrote: {error!r}")
    report = run_case(case, is_traced=True)
    if given.command == "replay":
        print("\n".join((*report.log_tail, *report.trace_tail)))
        print(_summary(report))
        return 0 if report.passed else 1
    if report.passed:
        parser.error("it passes, so there is nothing to shrink")
    print(_summary(report), file=sys.stderr)
    with failing_as(kind_of(report.problem)) as fails:
        small = shrink(case, fails, partial(print, file=sys.stderr))
    text = json.dumps(small.to_json(), indent=1)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds; ends with 'N passed, M failed'")
    run.add_argument(
        "--seeds",
        type=arguments.seeds,
        help="A..B, both included; without it fresh seeds are drawn",
    )
    run.add_argument("--seconds", type=arguments.seconds, help="begin no seed after this time")
    run.add_argument("--jobs", type=arguments.count, default=1, help="processes to use")
    run.add_argument("--coverage", action="store_true", help="print how often each state was seen")
    help_replay = "run a seed again, with the end of its log and of its trace"
    replay = commands.add_parser("replay", help=help_replay)
    smaller = commands.add_parser("shrink", help="find a small case that fails as a seed does")
    smaller.add_argument("--out", type=Path, help="write the small case here")
    for one in (replay, smaller):
        which = one.add_mutually_exclusive_group(required=True)
        which.add_argument("seed", nargs="?", type=arguments.seed)
        which.add_argument("--case", type=Path, help="a case written by shrink, instead of a seed")
    for one in (run, replay, smaller):
        help_long = "of the time with faults, in simulated s; a seed is another run with another "
        help_long += "(default: %(default)g)"
        one.add_argument("--long", type=arguments.seconds, default=DURATION_S, help=help_long)
        help_mode = "how all groups replicate; without it each seed draws one"
        one.add_argument("--replication", choices=MODES, help=help_mode)
    return parser


def _case_of(given: argparse.Namespace) -> Case:
    if given.case is not None:
        return Case.from_json(json.loads(given.case.read_text()))
    return draw(given.seed, int(given.long * 1000), given.replication)


def _run(given: argparse.Namespace) -> int:
    seeds = given.seeds
    if seeds is None:
        base = int.from_bytes(os.urandom(5), "big")
        seeds = range(base, base + (FRESH_COUNT if given.seconds is None else 1 << 32))
    options = f"--long {given.long:g}"
    if given.replication is not None:
        options += f" --replication {given.replication}"
    print(f"python -m simulation run --seeds {seeds[0]}..{seeds[-1]} {options}")
    began = time.monotonic()
    coverage, reports = Coverage(SOMETIMES), []
    case_of = partial(draw, duration_ms=int(given.long * 1000), replication=given.replication)
    running = run_many(case_of, seeds, jobs=given.jobs, seconds=given.seconds)
    console = Console(stderr=True)
    total = len(seeds) if given.seconds is None else None
    for report in track(running, "seeds", total, console=console, disable=not console.is_terminal):
        coverage.counts.update(report.coverage.counts)
        reports.append(report)
        if not report.passed:
            print("\n".join(report.log_tail), file=sys.stderr)
            print(_summary(report))
            print(f"  python -m simulation replay {report.seed} {options}", flush=True)
    failed_count = sum(not report.passed for report in reports)
    print(
        f"{len(reports) - failed_count} passed, {failed_count} failed; "
        f"{sum(report.simulated_ns for report in reports) / 1e9:.0f} simulated s, "
        f"{sum(report.fault_count for report in reports)} faults, "
        f"{sum(report.operation_count for report in reports)} operations "
        f"in {time.monotonic() - began:.0f} s"
    )
    if given.coverage:
        print("\n".join(coverage.lines()))
    missing = coverage.missing() if len(reports) >= COVERED_SEED_COUNT else []
    if missing:
        print(f"never reached: {', '.join(missing)}")
    return 1 if failed_count or missing else 0


def _summary(report: Report) -> str:
    state = report.problem or "passed"
    return (
        f"seed {report.seed}: {state}\n  {report.simulated_ns / 1e9:.1f} simulated s, "
        f"{report.event_count} events, {report.fault_count} faults, {report.acked_count} acked, "
        f"trace {report.trace_hash:016x}"
    )


if __name__ == "__main__":
    sys.exit(main())
