"""A node that a test starts as a fork is like one that is started by name."""

import os
from pathlib import Path

import psutil
import pytest

from deploy.local_process import NodeProcess, spawn
from tests.fork_server import MODULES
from tests.forks import FORK_SERVERS, SERVER_COUNT, started_by_name
from tests.node.processes import SingleNode

pytestmark = pytest.mark.long
END_TIMEOUT_MS = 30_000


def started(log: Path, *words: str, **variables: str) -> NodeProcess:
    return spawn("node", words, log=log, environment={**os.environ, **variables})


def said(log: Path, *words: str, **variables: str) -> tuple[int | None, str]:
    """Let a node end by itself; return its exit code and what it said."""
    process = started(log, *words, **variables)
    assert process.wait_end(END_TIMEOUT_MS)
    return process.exit_code, log.read_text()


def parent_of(process: NodeProcess) -> int:
    return psutil.Process(process.pid).ppid()


@pytest.mark.parametrize("words", ["--help", "--nonsense", "--node-id 1 --flush never"])
def test_a_fork_says_and_returns_what_a_process_does(words: str, tmp_path: Path) -> None:
    forked = said(tmp_path / "a", *words.split(), QUORUMLOG_LOG_FORMAT="console")
    with started_by_name():
        assert said(tmp_path / "b", *words.split(), QUORUMLOG_LOG_FORMAT="console") == forked
    assert forked[1]


def test_neighbours_are_forks_of_different_servers(tmp_path: Path) -> None:
    """Servers differ in the order of sets, so replicas do."""
    nodes = [SingleNode(tmp_path / f"{n}", node_id=f"{n + 1}") for n in range(SERVER_COUNT)]
    try:
        for node in nodes:
            node.start()
        processes = [node.process for node in nodes if node.process is not None]
        parents = {parent_of(process) for process in processes}
        assert parents == FORK_SERVERS.pids
        assert len(parents) == SERVER_COUNT
        assert [os.getsid(process.pid) for process in processes] == [p.pid for p in processes]
    finally:
        for node in nodes:
            node.__exit__()


def test_directory_and_variables_are_those_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = SingleNode(Path("data"))
    node.start({"QUORUMLOG_CLUSTER_ID": "of-the-variable"})
    try:
        assert node.process is not None
        assert psutil.Process(node.process.pid).cwd() == str(tmp_path)
        assert node.node_json()["cluster_id"] == "of-the-variable"
    finally:
        assert node.stop() == 0


@pytest.mark.parametrize("name", ["PYTHONOPTIMIZE", "LD_PRELOAD", "GRPC_TRACE", "TZ"])
def test_variables_that_act_before_a_fork_are_given_to_a_process_by_name(
    name: str, tmp_path: Path
) -> None:
    process = started(tmp_path / "log", "--help", **{name: ""})
    assert parent_of(process) == os.getpid()
    assert process.wait_end(END_TIMEOUT_MS)


def test_other_modules_and_tests_that_want_it_start_by_name(
    tmp_path: Path, nodes_started_by_name: None
) -> None:
    for module in ("node", "http.server"):
        process = spawn(module, ["--help"], log=tmp_path / "log", environment=os.environ)
        assert parent_of(process) == os.getpid()
        assert process.wait_end(END_TIMEOUT_MS)


def test_no_fork_finds_the_main_module_loaded() -> None:
    """Python would warn of it in the log of each node."""
    assert "node.__main__" not in MODULES
