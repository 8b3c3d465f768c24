"""An end of a process that nobody asked for is found, and a dump that should not be there."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.ends import EXIT_BAD_DATA, EXIT_BROKEN, KILLED, STOPPED, ProcessEnds

from deploy.local_process import NodeProcess, spawn

TIMEOUT_MS = 30_000
DOER = """
import sys, time
words = sys.argv[1:]
if words == ["wait"]:
    time.sleep(600)
sys.exit(int(words[0]))
"""


class Processes:
    """Nodes that do nothing, or end with a status."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "doer.py").write_text(DOER, "utf-8")
        self._last: dict[int, NodeProcess] = {}
        self.all: list[NodeProcess] = []
        self.ends = ProcessEnds(self)  # type: ignore[arg-type]

    def process(self, node_id: int) -> NodeProcess | None:
        return self._last.get(node_id)

    def node_directory(self, node_id: int) -> Path:
        return self._directory / f"node-{node_id}"

    def start(self, node: int, word: str = "wait") -> NodeProcess:
        environment = {**os.environ, "PYTHONPATH": str(self._directory)}
        made = spawn("doer", [word], log=self._directory / "log", environment=environment)
        self._last[node] = made
        self.all.append(made)
        self.ends.watch(node)
        return made


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    for one in processes.all:
        one.send(signal.SIGKILL)
        assert one.wait_end(TIMEOUT_MS)


def end(process: NodeProcess, number: signal.Signals) -> None:
    os.kill(process.pid, number)
    assert process.wait_end(TIMEOUT_MS)


def dump(nodes: Processes, node: int, process: NodeProcess) -> None:
    data = nodes.node_directory(node) / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / f"dump-17-{process.pid}.txt").touch()


def test_an_end_is_allowed_for_a_single_scenario_and_else_found_once(nodes: Processes) -> None:
    killed, lives = nodes.start(1), nodes.start(2)
    nodes.ends.allow(1, KILLED)
    nodes.ends.allow(2, KILLED)
    end(killed, signal.SIGKILL)
    assert nodes.ends.take() == []
    end(lives, signal.SIGKILL)
    assert nodes.ends.take() == ["I17: node 2 ended with -9, which was not expected"]
    assert nodes.ends.take() == []


def test_an_unplanned_end_is_found_after_the_node_runs_again(nodes: Processes) -> None:
    end(nodes.start(2), signal.SIGBUS)
    nodes.start(2)
    nodes.ends.allow(2, KILLED)
    assert nodes.ends.take() == ["I17: node 2 ended with -7, which was not expected"]


def test_another_status_than_the_one_expected_is_found(nodes: Processes) -> None:
    process = nodes.start(3, str(EXIT_BROKEN))
    nodes.ends.allow(3, EXIT_BAD_DATA)
    assert process.wait_end(TIMEOUT_MS)
    assert nodes.ends.take() == ["I17: node 3 ended with 70, expected [65]"]


def test_an_end_may_be_allowed_after_it_came(nodes: Processes) -> None:
    assert nodes.start(3, str(EXIT_BAD_DATA)).wait_end(TIMEOUT_MS)
    nodes.ends.look()
    nodes.ends.allow(3, EXIT_BAD_DATA)
    assert nodes.ends.take() == []


def test_only_an_end_that_says_so_leaves_a_dump(nodes: Processes) -> None:
    broken, killed = nodes.start(1, str(EXIT_BROKEN)), nodes.start(2)
    dump(nodes, 1, broken)
    dump(nodes, 2, killed)
    nodes.ends.allow(1, EXIT_BROKEN)
    nodes.ends.allow(2, KILLED, STOPPED)
    assert broken.wait_end(TIMEOUT_MS)
    end(killed, signal.SIGKILL)
    left = f"dump-17-{killed.pid}.txt"
    assert nodes.ends.take() == [f"I17: node 2 ended with -9 as expected, and left {left}"]
