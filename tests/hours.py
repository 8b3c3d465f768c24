"""`tests/run --all --hours H`: everything that has seeds in turns, each turn with fresh ones.

Owns the list of commands, their time limit, and the log with a line for each. Must not know what a
command does: its exit code says whether it found something. Ctrl-C ends the command and the run.
"""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT_S: Final = 3_600.0
END_S_MAX: Final = 20.0
"""Time for a command that is asked to end, before it is killed: a chaos suite puts back what it
did to the machine."""
CHAOS_NOT_RUN: Final = 3
"""Exit code of a chaos suite that lacks something on this machine, and says what."""


def commands(seed: int) -> list[list[str]]:
    """Return the commands of one turn, as arguments of this interpreter."""
    seeds = f"{seed * 1_000 + 1}..{(seed + 1) * 1_000}"
    suites = [["--mode", mode, *suite] for suite in (["--slice"], ["--features"], [])
              for mode in ("raft", "sync_master", "async_master")]  # fmt: skip
    fuzz = ["-m", "tests.fuzz", "--seed", str(seed), "--count"]
    turn = [
        ["-m", "simulation.raft", "run", "--seconds", "300", "--seeds", seeds],
        ["-m", "simulation", "run", "--seconds", "300", "--seeds", seeds],
        ["-m", "chaos", "--seed", str(seed), *suites[seed % len(suites)]],
        ["-m", "tests.mutate", "--sample", "10", "--seed", str(seed), "--jobs", "1"],
        [*fuzz, "1000"],
    ]
    if importlib.util.find_spec("atheris") is not None:
        turn.append([*fuzz, "5000", "--atheris"])
    return turn


def run(
    seconds: float,
    seed: int,
    directory: Path,
    turn_of: Callable[[int], Sequence[Sequence[str]]] = commands,
    limit_s: float = LIMIT_S,
) -> int:
    """Run turns for so long, the last command to its end; return how many commands failed.

    At KeyboardInterrupt the command is ended, and the error goes on."""
    directory.mkdir(parents=True, exist_ok=True)
    failed_count, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        for command in turn_of(seed):
            if time.monotonic() >= end_s:
                break
            verdict = _run_one(command, directory, limit_s)
            failed_count += verdict not in ("passed", "not run")
        seed += 1
    return failed_count


def _run_one(command: Sequence[str], directory: Path, limit_s: float) -> str:
    """Run a command in a session of its own; log its end, and return the verdict."""
    began_s = time.monotonic()
    output = directory / f"hours-{time.time_ns()}.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": f".{os.pathsep}chaos-tests"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        verdict = "interrupted"
        try:
            code = process.wait(limit_s)
            is_not_run = code == CHAOS_NOT_RUN and "chaos" in command
            verdict = "not run" if is_not_run else f"failed: {code}" if code else "passed"
        except subprocess.TimeoutExpired:
            verdict = f"ended after {limit_s:.0f} s"
        finally:
            _end(process)
            if verdict == "passed":
                output.unlink()
            kept = "" if verdict == "passed" else f"  {output}"
            line = f"{verdict:<12} {time.monotonic() - began_s:7.1f} s  {shlex.join(command)}{kept}"
            print(line, flush=True)
            with (directory / "hours.log").open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n")
    return verdict


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End all processes of the session: ask, wait, kill the remaining ones."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        end_s = time.monotonic() + END_S_MAX
        while time.monotonic() < end_s:
            process.poll()  # Its own is no zombie from here on.
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Run for the hours, from the seed and into the directory of the arguments."""
    hours, seed, directory = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C.
    try:
        failed_count = run(float(hours) * 3_600, int(seed), Path(directory))
    except KeyboardInterrupt:
        return 130
    print(f"tests/run: {failed_count} failed; {directory}/hours.log has all")
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
