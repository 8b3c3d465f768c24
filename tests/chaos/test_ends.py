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

    def process(self, node_id: int) -> NodeProcess | None:
        return self._last.get(node_id)

    def node_directory(self, node_id: int) -> Path:
        return self._directory / f"node-{node_id}"

    def start(self, ends: ProcessEnds, node: int, word: str = "wait") -> NodeProcess:
        environment = {**os.environ, "PYTHONPATH": str(self._directory)}
        made = spawn("doer", [word], log=self._directory / "log", environment=environment)
        self._last[node] = made
        self.all.append(made)
        ends.watch(node)
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
    ends = ProcessEnds(nodes)
    killed, lives = nodes.start(ends, 1), nodes.start(ends, 2)
    ends.allow(1, KILLED)
    ends.allow(2, KILLED)
    end(killed, signal.SIGKILL)
    assert ends.take() == []
    end(lives, signal.SIGKILL)
    assert ends.take() == ["I17: node 2 ended with -9, which was not expected"]
    assert ends.take() == []


def test_an_unplanned_end_is_found_after_the_node_runs_again(nodes: Processes) -> None:
    ends = ProcessEnds(nodes)
    end(nodes.start(ends, 2), signal.SIGBUS)
    nodes.start(ends, 2)
    ends.allow(2, KILLED)
    assert ends.take() == ["I17: node 2 ended with -7, which was not expected"]


def test_another_status_than_the_one_expected_is_found(nodes: Processes) -> None:
    ends = ProcessEnds(nodes)
    process = nodes.start(ends, 3, str(EXIT_BROKEN))
    ends.allow(3, EXIT_BAD_DATA)
    assert process.wait_end(TIMEOUT_MS)
    assert ends.take() == ["I17: node 3 ended with 70, expected [65]"]


def test_an_end_may_be_allowed_after_it_came(nodes: Processes) -> None:
    ends = ProcessEnds(nodes)
    assert nodes.start(ends, 3, str(EXIT_BAD_DATA)).wait_end(TIMEOUT_MS)
    ends.look()
    ends.allow(3, EXIT_BAD_DATA)
    assert ends.take() == []


def test_only_an_end_that_says_so_leaves_a_dump(nodes: Processes) -> None:
    ends = ProcessEnds(nodes)
    broken, killed = nodes.start(ends, 1, str(EXIT_BROKEN)), nodes.start(ends, 2)
    dump(nodes, 1, broken)
    dump(nodes, 2, killed)
    ends.allow(1, EXIT_BROKEN)
    ends.allow(2, KILLED, STOPPED)
    assert broken.wait_end(TIMEOUT_MS)
    end(killed, signal.SIGKILL)
    left = f"dump-17-{killed.pid}.txt"
    assert ends.take() == [f"I17: node 2 ended with -9 as expected, and left {left}"]
