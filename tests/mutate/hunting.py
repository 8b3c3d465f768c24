"""Runs tests against one fault at a time, each in a process forked from one that collected them.

Owns the processes, their time limits and what a run means; must not know how faults are made, nor
which are excused. A test that fails kills the fault, and so does one that does not end, or ends the
process. Whatever a killer says is asked again: it must fail with the fault and pass without.
"""

import gc
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutate.faults import Fault, planted
from tests.mutate.planting import (
    Functions,
    NotLoadedError,
    NotPlantableError,
    functions_by_file,
    plant,
)
from tests.mutate.recording import Run, steady_settings, write_below
from tests.mutate.targets import Project

CPU_LIMIT_S, CPU_FACTOR = 4.0, 10.0
WALL_LIMIT_S, WALL_FACTOR = 60.0, 30.0
"""A test may take so much longer than it took when nothing was planted. The machine may be busy
with other work, hence the second pair; what a fault makes loop ends with the first."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process: these tests, with this fault or with none."""

    fault: Fault | None
    tests: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task."""

    task: Task
    killer: str | None
    """The test that noticed it."""
    how: str
    """failed, timeout or ended; without a killer: passed, not plantable or not loaded."""
    seconds: float


@dataclass(slots=True)
class _Child:
    task: Task
    pid: int
    fd: int
    ended_fd: int
    """Becomes readable when the process has ended."""
    directory: Path
    began_s: float
    said: bytes = b""

    def hear(self) -> None:
        """Read what it has said; never wait."""
        try:
            while said := os.read(self.fd, 1 << 16):
                self.said += said
        except BlockingIOError:
            return


@dataclass(slots=True, eq=False)
class Hunter:
    """A pytest plugin that calls `campaign` instead of running what was collected."""

    campaign: Callable[["Hunter"], None]
    project: Project
    jobs: int
    directory: str
    """Where tests may write; whoever made it removes it."""
    _session: pytest.Session | None = None
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _functions: Functions = field(default_factory=dict)
    _channel: int = -1
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
        self.campaign(self)
        return True

    def knows(self, node_id: str) -> bool:
        """Whether this test was collected."""
        return node_id in self._items

    def outcomes(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        """Run the tasks, several at a time; yield what came of each as it ends."""
        children: list[_Child] = []
        tasks_left = True
        while tasks_left or children:
            while tasks_left and len(children) < self.jobs:
                task = next(tasks, None)
                if task is None:
                    tasks_left = False
                else:
                    children.append(self._begin(task))
            if not children:
                return  # The last task may have ended before it was known to be the last.
            fds = [fd for child in children for fd in (child.fd, child.ended_fd)]
            ready, _, _ = select.select(fds, [], [])
            for child in [child for child in children if child.fd in ready]:
                child.hear()
            # Not the end of what it says: a process that it left behind may hold the pipe, too.
            for child in [child for child in children if child.ended_fd in ready]:
                children.remove(child)
                child.hear()
                yield _outcome(child)

    def _begin(self, task: Task) -> _Child:
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._channel = writer
            self._run(task, directory)
        os.close(writer)
        os.set_blocking(reader, False)
        return _Child(task, pid, reader, os.pidfd_open(pid), directory, time.monotonic())

    # In the child.

    def _run(self, task: Task, directory: Path) -> NoReturn:
        try:
            os.setsid()
            with open(os.devnull, "w") as nothing:
                for fd in (1, 2):
                    os.dup2(nothing.fileno(), fd)
            self._run_tests(task, directory)
        except BaseException as error:  # noqa: BLE001 - it is told, and then the process ends.
            self._say("error", repr(error))
        finally:
            os._exit(0)

    def _run_tests(self, task: Task, directory: Path) -> None:
        session, fault = self._session, task.fault
        assert session is not None, "no session was begun"
        write_below(session, directory)
        if fault is not None:
            tree = planted(fault.name, fault.path, self.project.source_of(fault.path))
            try:
                plant(tree, str(self.project.root / fault.path), self._functions)
            except NotPlantableError as error:
                self._say("not plantable", str(error))
                return
            except NotLoadedError as error:
                self._say("not loaded", str(error))
                return
        items = [self._items[run.node_id] for run in task.tests]
        for at, (run, item) in enumerate(zip(task.tests, items, strict=True)):
            self._test = run.node_id
            self._say("begins", run.node_id)
            _limit(run)
            following = items[at + 1] if at + 1 < len(items) else None
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._say("passed", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._channel >= 0:
            self._say("failed", self._test)
            os._exit(0)

    def _say(self, what: str, detail: str) -> None:
        os.write(self._channel, json.dumps([what, detail]).encode() + b"\n")


def _limit(run: Run) -> None:
    """Let the kernel end this process when the test takes far too long."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S + CPU_FACTOR * run.cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT_S + WALL_FACTOR * run.seconds)


def _outcome(child: _Child) -> Outcome:
    """Fetch the end of a child, and end whatever it left behind."""
    os.close(child.fd)
    os.close(child.ended_fd)
    _, status = os.waitpid(child.pid, 0)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    shutil.rmtree(child.directory, ignore_errors=True)
    lines = [json.loads(line) for line in child.said.splitlines() if line.endswith(b"]")]
    what, detail = lines[-1] if lines else ("error", "it said nothing")
    seconds = time.monotonic() - child.began_s
    if what == "error":
        raise RuntimeError(f"{child.task.fault}: {detail}")
    if what == "begins":
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
        return Outcome(child.task, detail, "timeout" if is_late else "ended", seconds)
    return Outcome(child.task, detail if what == "failed" else None, what, seconds)
