"""Judges faults: plants each in a process forked from one that has collected the tests, and runs
the tests of its line there, near and quick ones first.

Owns the order of tests, the processes, their time limits and what is concluded; must not know how
faults are made, nor which are excused. A test that fails kills the fault, and so does one that does
not end, or ends the process. A killer counts when it alone fails with the fault and passes without.
"""

import gc
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.mutate.faults import Fault, planted
from tests.mutate.planting import (
    Functions,
    NotLoadedError,
    NotPlantableError,
    functions_by_file,
    plant,
)
from tests.mutate.recording import Run, TestMap, imports, steady_settings, write_below
from tests.mutate.sessions import lines_of
from tests.mutate.targets import Project

CPU_LIMIT_S, CPU_FACTOR = 4.0, 10.0
WALL_LIMIT_S, WALL_FACTOR = 60.0, 30.0
"""A test may take so much longer than it took when nothing was planted. The machine may be busy
with other work, hence the second pair; what a fault makes loop ends with the first."""
BUDGETS_S: Final = (3.0, 12.0, 90.0)
"""Seconds that tests of a fault may take by the map, first of the best ones, then of others."""
LONG_BUDGETS_S: Final = (60.0,)
LONG_TEST_S: Final = 6.0
"""What a test may take to be chosen at all."""
QUICK_TEST_S: Final = 0.05
"""The same where all tests of a fault are run."""
_LOST_COUNT_MAX: Final = 2
"""Where all are run, so many may time out or end the process: the rest is not tried then."""
_SHOWN_COUNT: Final = 3
_UNKNOWN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one fault."""

    fault: Fault
    how: str
    """failed, timeout, ended: killed so. survived, not run, not plantable, not loaded. Of a named
    test also not judged: it is not there, or does not pass without the fault."""
    killer: str = ""
    tests: Sequence[str] = ()
    """Of a survivor: the nearest ones of the tests that ran its line. All that were chosen where
    all are run."""
    killers: Sequence[str] = ()
    """All that fail, where all are run."""

    @property
    def is_alive(self) -> bool:
        """Whether nothing noticed it."""
        return self.how in ("survived", "not run", "not loaded", "not judged")


def verdicts(
    project: Project,
    faults: Sequence[Fault],
    tests: TestMap | str,
    jobs: int,
    files: Sequence[str],
    *,
    with_long: bool,
    find_all: bool = False,
) -> Iterator[Verdict]:
    """Judge faults in a session with these files of tests, by the map or by one named test.

    `find_all` runs all quick tests of a fault, not only those up to the first killer."""
    budgets_s = LONG_BUDGETS_S if with_long else BUDGETS_S
    hunt = partial(Hunt, project, faults, tests, jobs, budgets_s, find_all)
    for line in lines_of(project, hunt, files, with_long=with_long or isinstance(tests, str)):
        row = json.loads(line)
        yield Verdict(Fault(**row.pop("fault")), **row)


@dataclass(slots=True, eq=False)
class Hunt:
    """A pytest plugin that judges faults in several processes instead of running what was
    collected."""

    project: Project
    faults: Sequence[Fault]
    tests: TestMap | str
    jobs: int
    budgets_s: Sequence[float]
    find_all: bool
    channel: int
    directory: Path
    _session: pytest.Session | None = None
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _functions: Functions = field(default_factory=dict)
    _turn: Lock = field(default_factory=multiprocessing.Lock)
    """Of the processes that write lines: a pipe keeps only short ones whole."""
    _sound: dict[str, bool] = field(default_factory=dict)
    """Whether a test passes alone when nothing is planted."""
    _report: int = -1
    _test: str = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let every run draw the same examples, and keep none of them."""
        steady_settings()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        resource_tracker.ensure_running()
        self._functions = functions_by_file()
        gc.collect()
        gc.freeze()
        workers = []
        for job in range(self.jobs):
            pid = os.fork()
            if pid == 0:
                self._work(self.faults[job :: self.jobs])
            workers.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in workers]
        if any(statuses):
            raise RuntimeError("a process that judges faults failed")
        return True

    def _work(self, faults: Sequence[Fault]) -> NoReturn:
        code = 1
        try:
            for fault in faults:
                verdict = self.all_killers(fault) if self.find_all else self.verdict(fault)
                line = json.dumps(asdict(verdict)) + "\n"
                with self._turn, open(self.channel, "w", closefd=False) as channel:
                    channel.write(line)
            code = 0
        except BaseException as error:  # noqa: BLE001 - the caller of the session shows it.
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(code)

    def verdict(self, fault: Fault) -> Verdict:
        """Run the tests of a fault until one kills it."""
        runs = self._runs(fault)
        is_named = isinstance(self.tests, str)
        if is_named and not (runs and self._is_sound(runs[0])):
            return Verdict(fault, "not judged", tests=(str(self.tests),))
        tests = tuple(run.node_id for run in runs[:_SHOWN_COUNT])
        how = "survived" if runs else "not run"
        while runs:
            how, killers = self._tried(fault, runs)
            if not killers:
                break
            run = next(run for run in runs if run.node_id == killers[0])
            # Behind a time-out a test is tried once more: the machine may have become slow.
            if self._is_sound(run, again=how == "timeout") and (
                how == "timeout" or len(runs) == 1 or self._tried(fault, [run])[1]
            ):
                return Verdict(fault, how, run.node_id)
            runs.remove(run)  # This test says nothing about the fault; the others may.
            how = "survived"
        return Verdict(fault, how, tests=tests)

    def all_killers(self, fault: Fault) -> Verdict:
        """Run all quick tests of a fault."""
        runs = self._runs(fault)
        tests = [run.node_id for run in runs]
        how, killers, left = "not run", [], tests
        for _ in range(_LOST_COUNT_MAX if runs else 0):
            how, failed = self._tried(fault, runs[-len(left) :])
            killers += failed
            left = tests[tests.index(failed[-1]) + 1 :] if how in ("timeout", "ended") else []
            if not left:
                break
        by_name = {run.node_id: run for run in runs}
        killers = [name for name in killers if self._is_sound(by_name[name])]
        if killers:
            return Verdict(fault, how, killers[0], tests, killers)
        return Verdict(fault, how if how.startswith("not") else "survived", tests=tests)

    def _is_sound(self, run: Run, *, again: bool = False) -> bool:
        if again or run.node_id not in self._sound:
            self._sound[run.node_id] = not self._tried(None, [run])[1]
        return self._sound[run.node_id]

    def _runs(self, fault: Fault) -> list[Run]:
        """Return the tests of a fault: by budget, in each budget those of a file together."""
        if isinstance(self.tests, str):
            is_there = self.tests in self._items
            return [Run(self.tests, _UNKNOWN_S, _UNKNOWN_S)] if is_there else []
        limit_s = QUICK_TEST_S if self.find_all else LONG_TEST_S
        runs = [
            run
            for run in self.tests.tests_of(fault.path, fault.line)
            if run.seconds <= limit_s and run.node_id in self._items
        ]
        if self.find_all:
            return sorted(runs, key=lambda run: run.file)
        texts = {file: self.project.source_of(file) for file in {run.file for run in runs}}
        near = {file for file, text in texts.items() if imports(text, fault.path)}
        runs.sort(key=lambda run: run.seconds * (1 if run.file in near else 4))
        chosen: list[Run] = []
        for budget_s in self.budgets_s:
            files: dict[str, list[Run]] = {}
            left_s = budget_s
            while runs and (left_s >= runs[0].seconds or not files):
                left_s -= runs[0].seconds + 0.01
                files.setdefault(runs[0].file, []).append(runs.pop(0))
            chosen += [run for of_file in files.values() for run in of_file]
        return chosen

    def _tried(self, fault: Fault | None, runs: Sequence[Run]) -> tuple[str, list[str]]:
        """Run tests in a process of their own, until one fails unless all are wanted; return how
        it ended, and the killers."""
        with tempfile.TemporaryDirectory(dir=self.directory, ignore_cleanup_errors=True) as name:
            report = Path(name) / "report"
            pid = os.fork()
            if pid == 0:
                self._report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._run(fault, runs, Path(name))
            _, status = os.waitpid(pid, 0)
            try:
                os.killpg(pid, signal.SIGKILL)  # What the tests left behind.
            except ProcessLookupError:
                pass
            lines = report.read_text().splitlines() if report.exists() else []
        rows = [json.loads(line) for line in lines] or [("error", "no report")]
        # A test may fail and its fixture, too.
        failed = list(dict.fromkeys(detail for what, detail in rows if what == "failed"))
        what, detail = rows[-1]
        if what == "error":
            raise RuntimeError(f"{fault}: {detail}")
        if what == "begins":
            is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _LIMITS
            return "timeout" if is_late else "ended", [*failed, detail]
        return "failed" if failed else what, failed

    # In the process of one fault.

    def _run(self, fault: Fault | None, runs: Sequence[Run], directory: Path) -> NoReturn:
        try:
            os.setsid()
            with open(os.devnull, "w") as nothing:
                for fd in (1, 2):
                    os.dup2(nothing.fileno(), fd)
            self._run_tests(fault, runs, directory)
        except NotPlantableError:
            self._say("not plantable")
        except NotLoadedError:
            self._say("not loaded")
        except BaseException as error:  # noqa: BLE001 - the worker raises it.
            self._say("error", repr(error))
        finally:
            os._exit(0)

    def _run_tests(self, fault: Fault | None, runs: Sequence[Run], directory: Path) -> None:
        session = self._session
        assert session is not None, "no session was begun"
        write_below(session, directory)
        if fault is not None:
            tree = planted(fault.name, fault.path, self.project.source_of(fault.path))
            plant(tree, str(self.project.root / fault.path), self._functions)
        items = [self._items[run.node_id] for run in runs]
        for run, item, following in zip(runs, items, [*items[1:], None], strict=True):
            self._test = run.node_id
            self._say("begins", run.node_id)
            _limit(run)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._say("survived")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._say("failed", self._test)
            if not self.find_all:
                os._exit(0)

    def _say(self, what: str, detail: str = "") -> None:
        os.write(self._report, json.dumps([what, detail]).encode() + b"\n")


_LIMITS: Final = {signal.SIGALRM, signal.SIGPROF}


def _limit(run: Run) -> None:
    """Let the kernel end this process when the test takes far too long."""
    for number in _LIMITS:
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S + CPU_FACTOR * run.cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT_S + WALL_FACTOR * run.seconds)
