"""The command line of the simulator: run, replay, shrink, mutants.

Owns arguments and printing. Must not know what a run is made of.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from simulation import arguments
from simulation.mutants import read, run_table
from simulation.raft import shrink
from simulation.raft.coverage import Coverage
from simulation.raft.runner import (
    EVENT_COUNT_DEFAULT,
    Case,
    Report,
    case_of,
    last_events,
    run_case,
    run_many,
    run_seed,
)

FAILURES_SHOWN_MAX = 5
MUTANTS = read(Path(__file__).with_name("mutants.txt"))


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = _parser()
    parsed = parser.parse_args(words)
    command: str = parsed.command
    if command == "run":
        if parsed.seeds is None and parsed.seconds is None:
            parser.error("give --seeds A..B or --seconds S")
        return _run(parsed)
    if command == "replay":
        try:
            case = _case(parsed)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{parsed.case} is no case that shrink wrote: {error!r}")
        return _replay(case)
    if command == "shrink":
        try:
            shrinker = shrink.Shrinker(case_of(parsed.seed, parsed.events), print)
        except ValueError as error:
            parser.error(str(error))
        return _shrink(shrinker, parsed.out)
    return run_table(
        MUTANTS, lambda seed: run_seed(seed).code, parsed.names, directed=not parsed.no_directed
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation.raft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    help_seeds = "A..B, both included; without it fresh seeds are drawn"
    run = commands.add_parser("run", help="run seeds; ends with 'N passed, M failed'")
    run.add_argument("--seeds", type=arguments.seeds, help=help_seeds)
    run.add_argument("--seconds", type=arguments.seconds, help="stop after this time")
    run.add_argument("--jobs", type=arguments.count, default=1, help="processes to use")
    run.add_argument("--coverage", action="store_true", help="print how often each state was seen")

    replay = commands.add_parser("replay", help="print the event trace of a seed")
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument("seed", nargs="?", type=arguments.seed)
    which.add_argument("--case", type=Path, help="a case written by shrink, instead of a seed")

    smaller = commands.add_parser("shrink", help="make a failing seed small")
    smaller.add_argument("seed", type=arguments.seed)
    smaller.add_argument("--out", type=Path, help="write the small case here")
    for one in (run, replay, smaller):
        help_events = "at most this number per seed (default: %(default)s)"
        default = EVENT_COUNT_DEFAULT
        one.add_argument("--events", type=arguments.count, default=default, help=help_events)

    hunt = commands.add_parser("mutants", help="switch each planted fault on and hunt it")
    hunt.add_argument("names", nargs="*", help="only these")
    hunt.add_argument(
        "--no-directed", action="store_true", help="leave out those that a directed test kills"
    )
    return parser


def _commit() -> str:
    """Return the commit of this source, since a seed is reproducible only together with it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def _run(parsed: argparse.Namespace) -> int:
    base = int.from_bytes(os.urandom(5), "big")
    seeds = parsed.seeds or range(base, base + (1 << 40))
    print(f"seeds from {seeds[0]}, commit {_commit()}")
    began = time.perf_counter()
    coverage, codes = Coverage(), Counter[str]()
    passed = events = operations = faults = simulated_us = 0
    for report in run_many(
        seeds, event_count_max=parsed.events, jobs=parsed.jobs, seconds=parsed.seconds
    ):
        events += report.event_count
        operations += report.operation_count
        faults += report.fault_count
        simulated_us += report.simulated_us
        coverage.counts.update(report.coverage.counts)
        if report.passed:
            passed += 1
            continue
        codes[report.code] += 1
        if codes.total() <= FAILURES_SHOWN_MAX:
            show_failure(report, parsed.events)
    seconds = time.perf_counter() - began
    if parsed.coverage:
        print("\n".join(coverage.lines()))
    elif coverage.missing():
        print(f"states never seen: {', '.join(coverage.missing())}")
    print(
        f"{events} events in {seconds:.1f} s, {events / seconds:.0f}/s; "
        f"{simulated_us / 1e6:.0f} simulated s, {faults} faults, {operations} operations"
    )
    for code, count in codes.most_common():
        print(f"{code}: {count}")
    print(f"{passed} passed, {codes.total()} failed")
    return 1 if codes else 0


def show_failure(report: Report, event_count_max: int) -> None:
    """Print everything that is needed to examine a failing seed."""
    print(f"--- seed {report.seed} failed: {report.code}: {report.detail}")
    case = case_of(report.seed, event_count_max)
    print(f"options: {case.options}")
    for line in last_events(case):
        print(f"    {line}")
    suffix = "" if event_count_max == EVENT_COUNT_DEFAULT else f" --events {event_count_max}"
    print(f"replay with: python -m simulation.raft replay {report.seed}{suffix}", flush=True)


def _case(parsed: argparse.Namespace) -> Case:
    if parsed.case is not None:
        return shrink.from_json(parsed.case.read_text())
    return case_of(parsed.seed, parsed.events)


def _replay(case: Case) -> int:
    print(f"options: {case.options}")
    report = run_case(case, print)
    print(f"{report.event_count} events, digest {report.digest & (1 << 64) - 1:016x}")
    print(f"{report.code}: {report.detail}" if report.code else "passed")
    return 0 if report.passed else 1


def _shrink(shrinker: shrink.Shrinker, out: Path | None) -> int:
    case = shrinker.shrink()
    print(f"{shrinker.run_count} runs; {len(case.plan)} faults are left, still {shrinker.code}:")
    for fault in case.plan:
        print(f"    {fault}")
    print(f"options: {case.options}")
    if out is not None:
        out.write_text(shrink.to_json(case))
        print(f"replay with: python -m simulation.raft replay --case {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
