"""A run that is killed leaves no process behind, whoever started it and however deep it is."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from deploy.local_process import NodeProcess, spawn
from quorumlog.local_cluster import started_at
from quorumlog.run_guard import VARIABLE
from tests.patience import PATIENCE_S
from tests.tidy.repository import ROOT

END_TIMEOUT_MS = 1000 * PATIENCE_S
TEST_WITH_A_NODE = """
    import signal, sys
    from deploy.local import LocalCluster

    def test_it(tmp_path):
        with LocalCluster.create(tmp_path / "c", nodes=1) as cluster:
            print("\\npid", cluster.process(1).pid, file=sys.stderr)
            signal.pause()
"""
"""To stderr, since a worker of pytest-xdist has no stdout."""
RUN_WITH_A_THREAD = """
    import subprocess, sys, threading
    from quorumlog.run_guard import guard_this_process

    guard_this_process()
    guard_this_process()
    inner = "import subprocess; print('pid', subprocess.Popen(['sleep', '600']).pid, flush=True)"
    words = [sys.executable, "-c", inner]
    start = lambda: subprocess.run(words, check=True, start_new_session=True)
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    sys.stdin.read()
"""
"""What started the process has ended, thread and parent."""


TEST_THAT_WAITS = """
    import os, signal, sys

    def test_it():
        print("\\npid", os.getpid(), file=sys.stderr)
        signal.pause()
"""


@contextmanager
def run(*words: str) -> Iterator[tuple["subprocess.Popen[str]", NodeProcess]]:
    """Start a process that starts another and tells its number; both are gone at the end."""
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            line_of_pid = next((line for line in process.stdout if line.startswith("pid ")), None)
            assert line_of_pid is not None, "it ended before it had started something"
            pid = int(line_of_pid.split()[1])
            started = NodeProcess(pid, started_at(pid))
            try:
                yield process, started
            finally:
                started.send(signal.SIGKILL)
        finally:
            process.kill()


@contextmanager
def run_tests_with_a_node(
    directory: Path, *options: str
) -> Iterator[tuple["subprocess.Popen[str]", NodeProcess]]:
    """Run pytest on a test that starts a node, up to the moment when the node runs."""
    file = directory / "test_node.py"
    file.write_text(textwrap.dedent(TEST_WITH_A_NODE))
    usual = ["-q", "-s", "-c", os.devnull, f"--basetemp={directory / 'run'}"]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.conftest"]
    words = [sys.executable, "-m", "pytest", *usual, *plugins, *options, str(file)]
    with run(*words) as (tests, node):
        assert node.is_alive
        yield tests, node


@pytest.mark.parametrize(
    ("options", "number"),
    [
        pytest.param((), signal.SIGKILL, id="alone-kill"),
        pytest.param((), signal.SIGTERM, id="alone-term", marks=pytest.mark.long),
        pytest.param(("-n1",), signal.SIGKILL, id="worker-kill", marks=pytest.mark.long),
        pytest.param(("-n1",), signal.SIGTERM, id="worker-term", marks=pytest.mark.long),
    ],
)
def test_a_node_of_a_test_run_that_is_killed_is_ended(
    options: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    with run_tests_with_a_node(tmp_path, *options) as (tests, node):
        tests.send_signal(number)
        assert node.wait_end(END_TIMEOUT_MS), "the node outlived the tests"


@pytest.mark.long
def test_a_node_of_a_worker_that_is_killed_is_ended(tmp_path: Path) -> None:
    with run_tests_with_a_node(tmp_path, "-n1") as (tests, node):
        workers = psutil.Process(tests.pid).children()
        (worker,) = (w for w in workers if node.pid in [p.pid for p in w.children(recursive=True)])
        worker.kill()
        assert node.wait_end(END_TIMEOUT_MS), "the node outlived the worker"


def test_a_run_that_ends_by_itself_leaves_nothing_either() -> None:
    with run(sys.executable, "-c", textwrap.dedent(RUN_WITH_A_THREAD)) as (process, sleeper):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(END_TIMEOUT_MS / 1000) == 0
        assert sleeper.wait_end(END_TIMEOUT_MS), "the process outlived the run"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one test, whose other checks do nothing."""
    for name in ("tests/run", "quorumlog/run_guard.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "test_waits.py").write_text(textwrap.dedent(TEST_THAT_WAITS))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -s -p no:cacheprovider\n")
    scripts = {"deploy/venv": "true", ".venv/bin/python": f'exec {sys.executable} "$@"'}
    scripts |= {f".venv/bin/{name}": "true" for name in ("ruff", "mypy", "lint-imports")}
    for name, body in scripts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_script_leaves_no_tests_running(number: signal.Signals, checkout: Path) -> None:
    with run(str(checkout / "tests" / "run"), "tests") as (script, tests):
        assert tests.is_alive
        script.send_signal(number)
        assert tests.wait_end(END_TIMEOUT_MS), "the tests outlived the script"


def test_processes_of_a_killed_run_end_and_those_of_another_stay(tmp_path: Path) -> None:
    # This one has the mark of the tests that run here, as any process that a test starts.
    ours = spawn(
        "http.server", ["--bind", "127.0.0.1", "0"], log=tmp_path / "log", environment=os.environ
    )
    try:
        with run(sys.executable, "-c", textwrap.dedent(RUN_WITH_A_THREAD)) as (process, sleeper):
            process.kill()
            assert sleeper.wait_end(END_TIMEOUT_MS)
        assert ours.is_alive
    finally:
        ours.send(signal.SIGKILL)
        ours.wait_end(END_TIMEOUT_MS)


def test_processes_of_tests_carry_the_mark_of_the_run() -> None:
    words = [sys.executable, "-c", f"import os; print(os.environ[{VARIABLE!r}])"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"{os.getpid()}-")
