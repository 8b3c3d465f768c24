"""`bench/run`: QuorumLog and the peers with the same work in one run, in turn, and the result.

Owns the run: each session is a process with a deadline, so that a peer that fails, hangs or takes
its client with it becomes a row with a reason and never ends the run. After a session no process
and no file of it is left. Must not know the rows.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from bench import comparison_plot, comparison_table
from bench.comparison import compare
from bench.journal import OtherRunError, RunUnderWayError, SessionJournal
from bench.own_cluster import TMPFS
from bench.peers.registry import ENTRIES, OWN
from bench.plan import FULL, QUICK, SCENARIOS, PlannedSession, PlanScale, sessions
from bench.report import directory_kind, machine
from quorumlog.command_errors import take_signals

_ROOT: Final = Path(__file__).parents[1]
_REASON_SIZE_MAX: Final = 300
_MORE_ERRORS: Final = re.compile(r"\.\.\.|and \d+ more exceptions?")
_END_DEADLINE_S: Final = 20.0
_LEAST_SESSION_S: Final = 10.0
"""With less time left no session is begun."""


def main(arguments: Sequence[str]) -> int:
    """Run or continue a comparison; return 0 also when peers failed."""
    given = _parser().parse_args(arguments)
    take_signals()
    scale = QUICK if given.quick else FULL
    places = _places(given.disk, given.place)
    if given.rounds:
        scale = replace(scale, rounds=dict.fromkeys(scale.rounds, given.rounds))
    peers = [OWN, *(name for name in given.peer or ENTRIES if name != OWN)]
    scenarios = [name for name in SCENARIOS if name in (given.only or SCENARIOS)]
    missing = {name: why for name in peers if (why := ENTRIES[name].why_missing()) is not None}
    plan = {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "scale": scale.row(),
        "peers": peers,
        "scenarios": scenarios,
        "places": {name: directory_kind(path) for name, path in places.items()},
        "commit": _commit(),
    }
    try:
        journal = SessionJournal(given.output, plan)
    except (OtherRunError, RunUnderWayError) as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return 2
    planned, code = list(sessions(scale, list(places), peers, scenarios)), 130
    with contextlib.suppress(KeyboardInterrupt):
        _run_sessions(planned, journal, scale, places, missing)
        code = 0
    record = _record(journal, peers, missing, arguments)
    _write(given.output, record)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures us and other systems with the same work in one run, in turn. An "
        "interrupted run resumes when it is started again with the same words.",
    )
    parser.add_argument("--quick", action="store_true", help="within ten minutes; a first look")
    parser.add_argument(
        "-o", dest="output", metavar="DIR", type=Path, default=_ROOT / "out" / "bench",
        help="where the journal, table.md, result.json and the pictures go (default: out/bench)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", action="append", choices=list(ENTRIES), metavar="NAME",
        help=f"only this one and ours; may be given again: {', '.join(ENTRIES)}",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, metavar="SCENARIO",
        help=f"only these rows; may be given again: {', '.join(SCENARIOS)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, metavar="N", help="of the rates, in each place")
    parser.add_argument(
        "--place", choices=["tmpfs", "disk"], help="only there (default: both, if there are both)"
    )
    parser.add_argument(
        "--disk", metavar="DIR", default=tempfile.gettempdir(),
        help="a directory on a disk, for the nodes (default: the temporary directory)",
    )  # fmt: skip
    return parser


def _places(disk: str, only: str | None) -> dict[str, str]:
    places = {"tmpfs": TMPFS} if os.access(TMPFS, os.W_OK) else {}
    places["disk"] = disk
    return {name: path for name, path in places.items() if only in (None, name)}


def _commit() -> str:
    """Return the commit of this checkout, as git names it, marked if files were changed."""
    words = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    if shutil.which(words[0]) is None:
        return "unknown"
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"


def _run_sessions(
    planned: Sequence[PlannedSession],
    journal: SessionJournal,
    scale: PlanScale,
    places: Mapping[str, str],
    missing: Mapping[str, str],
) -> None:
    """Run the sessions that are not in the journal, until the time is over."""
    until = time.monotonic() + scale.run_s_max
    for number, session in enumerate(planned, 1):
        if session.key in journal.sessions:
            continue
        began = time.monotonic()
        left_s = until - began
        if left_s < _LEAST_SESSION_S:
            break
        if session.peer in missing:
            cells, failure = list[dict[str, Any]](), missing.get(session.peer)
        else:
            seconds = min(scale.session_s_max[session.scenario], left_s)
            cells, failure = _run_session(session, seconds, scale, places[session.place])
        if failure and time.monotonic() >= until:
            break  # Cut short by the end of the run: not the peer's fault.
        took_s = round(time.monotonic() - began, 1)
        journal.add(
            {
                "key": session.key,
                **asdict(session),
                "took_s": took_s,
                "cells": cells,
                "failure": failure,
            }
        )
        said = failure or f"{len(cells)} cells"
        print(
            f"bench/run: {number}/{len(planned)} {session.key}: {said} ({took_s} s)",
            file=sys.stderr,
        )
    left_count = sum(session.key not in journal.sessions for session in planned)
    if left_count:
        print(
            f"bench/run: time is over, {left_count} sessions are left; run it again to resume",
            file=sys.stderr,
        )


def _run_session(
    session: PlannedSession, seconds: float, scale: PlanScale, place: str
) -> tuple[list[dict[str, Any]], str | None]:
    """Run a session in a new directory; return its cells, and the reason if they are incomplete."""
    with tempfile.TemporaryDirectory(
        prefix="qlog-side-by-side-", dir=place, ignore_cleanup_errors=True
    ) as directory:
        spec = {**asdict(session), "directory": directory, "scale": scale.row()}
        # `-P`: a folder `bench` in the working directory is not the package.
        words = [sys.executable, "-P", "-m", "bench.session", json.dumps(spec)]
        try:
            return _run_child(words, seconds)
        finally:
            _end_all(directory)


def _run_child(words: Sequence[str], seconds: float) -> tuple[list[dict[str, Any]], str | None]:
    """Run a session's process until it ends or the time is over; return its cells and the error."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        # From the root of the checkout: the package `bench` of this very one is measured.
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, env=environment
        ) as child:
            failure = None
            try:
                code = child.wait(seconds)
                if code:
                    failure = _last_line(errors) or f"the session ended with {code}"
            except subprocess.TimeoutExpired:
                failure = f"not over after {seconds:.0f} s"
            finally:
                child.kill()
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")], failure


def _end_all(directory: str) -> None:
    """Kill every process that was started for a session: each has its directory, whose name is
    unique, in its command line or as its working directory."""
    errors = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(directory in word for word in [process.cwd(), *process.cmdline()]):
                process.kill()
                errors.append(process)
    psutil.wait_procs(errors, _END_DEADLINE_S)


def _last_line(errors: Any) -> str:
    """Return the last line of a traceback, which is the error; lines of a group are framed, and
    counts of further errors skipped."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").splitlines()
    said = [line.strip(" |+-") for line in lines]
    last_lines = (line for line in reversed(said) if line and not _MORE_ERRORS.fullmatch(line))
    return next(last_lines, "")[:_REASON_SIZE_MAX]


def _record(
    journal: SessionJournal,
    peers: Sequence[str],
    missing: Mapping[str, str],
    arguments: Sequence[str],
) -> dict[str, Any]:
    def line(name: str) -> dict[str, str]:
        facts = ENTRIES[name].make().facts
        return {
            "name": name,
            "version": missing.get(name) or ENTRIES[name].version(),
            "durability": facts.durability,
            "client": facts.client,
            "settings": facts.settings,
        }

    return {
        "bench": "side_by_side",
        "command": shlex.join(["bench/run", *arguments]),
        **journal.plan,
        "machine": machine(),
        "peers": list(map(line, peers)),
        "rows": compare(journal.sessions.values(), peers),
        "sessions": list(journal.sessions.values()),
    }


def _write(directory: Path, record: Mapping[str, Any]) -> None:
    (directory / "result.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (directory / "table.md").write_text(comparison_table.markdown(record), "utf-8")
    written = ["result.json", "table.md"]
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        print("bench/run: no pictures: matplotlib is not installed", file=sys.stderr)
    else:
        for place in record["places"]:
            if comparison_plot.draw(record, place, directory / f"{place}.svg"):
                written.append(f"{place}.svg")
    print(f"bench/run: wrote {', '.join(written)} in {directory}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
