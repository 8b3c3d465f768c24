"""A unit of work: one command of this repository that runs for minutes, and its result.

Owns the types and the process: its time limit, its output, and its end. Must not know which sources
of work there are.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[1]
END_S_MAX: Final = 20.0
"""Time for the processes of a unit that were asked to end, before they are killed."""
OUTPUT_SIZE_BYTES_MAX: Final = 1 << 20
LOG_SIZE_BYTES_MAX: Final = 256 << 20
"""Size of the log of a unit; one that says more is ended. It grows a little beyond, since it is
looked at in intervals."""
_LOOK_S: Final = 0.5
_END_LOOK_S: Final = 0.05


class UnitVerdict(StrEnum):
    """The end of a unit."""

    PASSED = "passed"
    FAILED = "failed"
    """Its exit code says that something was found."""
    HUNG = "hung"
    """The campaign ended it after its time limit."""
    FLOODED = "flooded"
    """The campaign ended it since it said more than LOG_SIZE_BYTES_MAX."""
    NOT_RUN = "not run"
    """This machine lacks something that it needs, and it says so."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A command to run, with the root of the repository as its directory."""

    source: str
    """Name of the source that made it."""
    title: str
    """Its work in a few words, for the progress."""
    module: str
    """The module that `python -m` runs."""
    arguments: tuple[str, ...]
    limit_s: float
    """Time after which it is ended."""
    path: str = ""
    """A folder of the repository that has the module, where that is not the root."""
    not_run_code: int = -1
    """The exit code by which it says that it cannot run here."""

    @property
    def command_line(self) -> str:
        """The command as a person types it."""
        path = f"PYTHONPATH={self.path} " if self.path else ""
        return f"{path}python -m {self.module} {' '.join(self.arguments)}"


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The end of a unit, and what it counted."""

    unit: WorkUnit
    verdict: UnitVerdict
    exit_code: int
    took_s: float
    output: str
    """The last megabyte of what it said."""
    counts: Counter[str] = field(default_factory=Counter)


class RunningUnit:
    """A unit's process, and all processes of its session. Use it in a `with`: at the end none of
    them is left."""

    def __init__(self, unit: WorkUnit) -> None:
        self.unit = unit
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__.
        environment = dict(os.environ)
        if unit.path:
            known = environment.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (unit.path, known)))
        self._began_s = time.monotonic()
        # A session of its own: Ctrl-C is for the campaign, which ends its unit itself.
        self._process = subprocess.Popen(
            [sys.executable, "-m", unit.module, *unit.arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> "RunningUnit":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._log.close()

    @property
    def pid(self) -> int:
        """Id of its process, and of its session."""
        return self._process.pid

    def wait(self) -> UnitResult:
        """Wait for its end, or end it after its time limit or at the limit of its log."""
        ended = self._wait_for_end()
        code = self._process.returncode
        if ended is not None:
            verdict = ended
        elif code == 0:
            verdict = UnitVerdict.PASSED
        else:
            is_not_run = code == self.unit.not_run_code
            verdict = UnitVerdict.NOT_RUN if is_not_run else UnitVerdict.FAILED
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - OUTPUT_SIZE_BYTES_MAX))
        output = self._log.read().decode("utf-8", "replace")
        return UnitResult(self.unit, verdict, code, time.monotonic() - self._began_s, output)

    def _wait_for_end(self) -> UnitVerdict | None:
        """Return why the campaign ended it; None if it ended on its own."""
        end_s = self._began_s + self.unit.limit_s
        while True:
            left_s = end_s - time.monotonic()
            try:
                self._process.wait(max(0.0, min(_LOOK_S, left_s)))
            except subprocess.TimeoutExpired:
                pass
            else:
                return None
            is_flooded = os.fstat(self._log.fileno()).st_size > LOG_SIZE_BYTES_MAX
            if is_flooded or left_s <= 0:
                self._end()
                return UnitVerdict.FLOODED if is_flooded else UnitVerdict.HUNG

    def _end(self) -> None:
        """End all processes of the session: send SIGTERM, wait, kill the remaining ones.

        A child may have to undo its changes on SIGTERM, as the children of a chaos suite do. So it
        has the same time as the unit, also after the end of the unit itself."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._left():
                try:
                    process.send_signal(number)
                except psutil.NoSuchProcess:
                    continue  # It ended on its own.
            end_s = time.monotonic() + END_S_MAX
            while any(self._left()) and time.monotonic() < end_s:
                time.sleep(_END_LOOK_S)
        self._process.wait()

    def _left(self) -> Iterator[psutil.Process]:
        """Yield the processes of its session that run."""
        self._process.poll()  # Its own is no zombie from here on.
        for pid in psutil.pids():
            try:
                if os.getsid(pid) == self._process.pid:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        yield process
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue  # It has just ended.
