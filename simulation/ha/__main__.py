"""The command line of the simulator: run, replay, mutants.

Owns arguments and what is printed. Must not know what a run is made of.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from simulation.ha.world import HaWorld

FAILURES_SHOWN_MAX = 5


def main(arguments: Sequence[str], tell: Callable[[str], None]) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation.ha", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds; ends with 'N passed, M failed'")
    run.add_argument("--seeds", required=True, help="A..B, both included")
    run.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    replay = commands.add_parser("replay", help="print the events of a seed")
    replay.add_argument("seed", type=int)
    mutants = commands.add_parser("mutants", help="switch each planted fault on and hunt it")
    mutants.add_argument("names", nargs="*", help="only these")
    parsed = parser.parse_args(arguments)
    if parsed.command == "run":
        return _run(parsed.seeds, parsed.seconds, tell)
    if parsed.command == "mutants":
        from simulation.ha.mutants import MUTANTS, run_seed
        from simulation.mutants import run_table

        return run_table(MUTANTS, run_seed, parsed.names, tell=tell)
    world = HaWorld(parsed.seed, tell)
    tell(str(world.options))
    report = world.run()
    tell(f"{report}")
    return 1 if report.code else 0


def _run(seeds: str, seconds: float, tell: Callable[[str], None]) -> int:
    first, _, last = seeds.partition("..")
    began = time.perf_counter()
    codes, totals, passed = Counter[str](), Counter[str](), 0
    for seed in range(int(first), int(last or first) + 1):
        if time.perf_counter() - began > seconds:
            break
        report = HaWorld(seed).run()
        for name in ("events", "acked", "promotions", "cuts", "lost"):
            totals[name] += getattr(report, name)
        if not report.code:
            passed += 1
            continue
        codes[report.code] += 1
        if codes.total() <= FAILURES_SHOWN_MAX:
            tell(f"seed {seed}: {report.code}: {report.detail}")
            tell(f"replay with: python -m simulation.ha replay {seed}")
    tell(", ".join(f"{count} {name}" for name, count in totals.items()))
    for code, count in codes.most_common():
        tell(f"{code}: {count}")
    tell(f"{passed} passed, {codes.total()} failed")
    return 1 if codes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], print))
