"""Measures stand-stills and prints a table: `python -m bench.stalls [-o json] [NAME...]`."""

import argparse
import json
import sys
from dataclasses import asdict

from bench.stalls.measurement import BURST_COUNT, StandStill, measure

LIMIT_MS = 50
"""No input may hold the loop longer."""


def main() -> int:
    """Measure; the exit code is 1 if an input holds the loop of the node for too long."""
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument("-o", dest="output", choices=("table", "json"), default="table")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only requests with it in the name"
    )
    given = parser.parse_args()
    from quorumlog.cluster.grpc_engine import choose_engine

    choose_engine()
    import uvloop

    rows: list[StandStill] = []

    def take(row: StandStill) -> None:
        rows.append(row)
        if given.output == "table":
            print(_line(row), flush=True)

    if given.output == "table":
        print(f"| request | input, KiB | answer | alone, ms | {BURST_COUNT} at once, ms | ticks |")
        print("|---|---|---|---|---|---|")
    uvloop.run(measure(given.names, take))
    if given.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.alone["used_ms"] > LIMIT_MS for row in rows))


def _line(row: StandStill) -> str:
    alone, burst = (f"{one['longest_ms']} ({one['used_ms']})" for one in (row.alone, row.burst))
    missed = f"{row.alone['missed_tick_count']}, {row.burst['missed_tick_count']}"
    size_kib = round(row.size_bytes / 1024, 1)
    return f"| {row.name} | {size_kib} | {row.answer} | {alone} | {burst} | {missed} |"


if __name__ == "__main__":
    sys.exit(main())
