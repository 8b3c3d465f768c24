"""Counts the calls of one append and prints them: `python -m bench.calls [-o json] [--top N]`."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from bench.calls.measurement import (
    BATCH_COUNT,
    BODY_SIZE_BYTES,
    MeasuredCalls,
    ProcessCalls,
    measure,
)
from bench.signalled import MeasuredNodeError
from quorumlog.cluster.transport import TRANSPORTS

_EXIT_FAILED = 3


def main() -> int:
    """Count and print a table, or with `-o json` one document."""
    given = _parser().parse_args()
    from quorumlog.cluster.grpc_engine import choose_engine
    from quorumlog.standard_output import prepare_stdout

    choose_engine()
    prepare_stdout()
    import uvloop

    try:
        measured = uvloop.run(measure(given.directory, given.transport, with_users=given.users))
    except MeasuredNodeError as error:
        print(f"bench.calls: {error}", file=sys.stderr)
        return _EXIT_FAILED
    if given.output == "json":
        print(json.dumps(record(measured, given.top), indent=1))
    else:
        print("\n".join(lines(measured, given.top)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("-o", dest="output", choices=("table", "json"), default="table")
    help_top = "list the N functions with the most calls, of each process"
    parser.add_argument("--top", type=int, default=0, metavar="N", help=help_top)
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--users", action="store_true", help="with users = on")
    parser.add_argument("--dir", dest="directory", help="where the nodes are; default: in memory")
    return parser


def record(result: MeasuredCalls, top: int) -> dict[str, Any]:
    """Return the whole result under stable keys."""

    def rows(processes: Sequence[ProcessCalls]) -> list[dict[str, Any]]:
        return [{**one.row(), **({"top": one.top(top)} if top else {})} for one in processes]

    return {
        "bench": "calls",
        "transport": result.transport,
        "directory": result.directory_kind,
        "body_size_bytes": BODY_SIZE_BYTES,
        "batch_count": BATCH_COUNT,
        "single": rows(result.single),
        "batch": rows(result.batch),
    }


def lines(result: MeasuredCalls, top: int) -> list[str]:
    """Return the lines of a table."""
    titles = {
        "one append in flight": result.single,
        f"a message of a batch of {BATCH_COUNT}, one batch in flight": result.batch,
    }
    text = []
    for title, processes in titles.items():
        text.append(f"{title}: calls (transport {result.transport}, {result.directory_kind})")
        for one in processes:
            row = one.row()
            spread = f"{min(row['windows'])} to {max(row['windows'])}"
            text.append(
                f"  {row['process']:12} {row['calls']:8.2f}: {row['python']} in Python, {row['c']}"
                f" in C; windows {spread}; {row['idle_per_s']} each idle second"
            )
        text.append("")
    for title, processes in titles.items() if top else ():
        for one in processes:
            text.append(f"{title}, {one.role}: calls, calls in C from there, function")
            for row in one.top(top):
                made = ", ".join(f"{name} {count:g}" for name, count in list(row["c"].items())[:6])
                what = f"{row['function']}  {made}"
                text.append(f"  {row['calls']:7.2f} {row['c_calls']:7.2f}  {what}")
            text.append("")
    return text[:-1]


if __name__ == "__main__":
    sys.exit(main())
