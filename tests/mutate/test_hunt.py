"""A toy project with a weak test: exactly the faults survive that it does not notice."""

import gc
import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutate.hunting import Hunter, Task
from tests.mutate.planting import functions_by_file
from tests.mutate.targets import THIS

MODULE = '''
"""A toy."""


def admits(count, limit):
    if count < limit:
        return True
    return False


def drain(rows):
    done = 0
    while rows:
        rows.pop()
        done += 1
    return done


def untested(count):
    return count + 1
'''
TESTS = """
from toy import gate


def test_far_below_and_far_above():
    assert gate.admits(1, 5)
    assert not gate.admits(9, 5)


def test_all_rows_go():
    assert gate.drain([1, 2]) == 2


def test_that_fails_anyway():
    assert gate.admits(9, 5)
"""
RUN = """
import json, sys
from pathlib import Path
from tests.mutate import hunting
from tests.mutate.judging import Judging
from tests.mutate.targets import Project

hunting.CPU_LIMIT_S, hunting.CPU_FACTOR = 0.5, 1.0  # Tests of the toy take a hundredth of it.
project = Project(Path(sys.argv[1]), {"toy/gate.py": 1000}, ("toy",), ("checks",))
faults = project.all_faults()
assert all(project.is_standing(fault) for fault in faults)
judging = Judging(project, int(sys.argv[2]), lambda text: None)
verdicts = list(judging.with_search(faults, with_long=False))
asked = [fault for fault in faults if fault.operator in ("never", "bound")]
for test in ("test_that_fails_anyway", "test_gone"):
    alone = list(judging.with_test(asked, "checks/test_gate.py::" + test))
    assert [verdict.how for verdict in alone] == ["not judged"] * len(asked), alone
drained = [fault for fault in faults if fault.name == "toy/gate.py:drain:drop:1"]
(killed,) = judging.with_test(drained, "checks/test_gate.py::test_all_rows_go")
assert (killed.how, killed.stage) == ("timeout", "asked"), killed
(blind,) = judging.with_test(drained, "checks/test_gate.py::test_far_below_and_far_above")
assert blind.how == "survived", blind
print(json.dumps([[v.fault.name, v.how, v.killer] for v in verdicts]))
"""


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_exactly_what_the_tests_do_not_notice_survives(tmp_path: Path, jobs: int) -> None:
    for path, text in (("toy/gate.py", MODULE), ("checks/test_gate.py", TESTS)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers = long: long\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), str(jobs)],
        cwd=THIS.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    verdicts = {name.removeprefix("toy/gate.py:"): how for name, how, _ in json.loads(ran.stdout)}
    alive = {name for name, how in verdicts.items() if how == "survived"}
    assert alive == {"admits:bound:1"}, "nobody asks at the limit"
    assert {name for name, how in verdicts.items() if how == "not run"} == {
        "untested:arithmetic:1",
        "untested:neighbour:1",
    }
    assert verdicts["drain:drop:1"] == "timeout", "rows that are not taken never end"
    killers = {killer for _, _, killer in json.loads(ran.stdout) if killer}
    assert killers == {
        "checks/test_gate.py::test_far_below_and_far_above",
        "checks/test_gate.py::test_all_rows_go",
    }, "a test that fails without a fault kills none"


def test_functions_that_were_frozen_are_found() -> None:
    """The tests of this repository are collected, and frozen, before faults are planted."""
    gc.freeze()
    names = {name for name, _ in functions_by_file()[__file__]}
    assert "test_functions_that_were_frozen_are_found" in names


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_hunt_ends_with_its_last_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Also when all that runs ends at the same moment, as one process always does."""

    def run(self: Hunter, task: Task, directory: Path) -> NoReturn:
        self._say("passed", "")
        os._exit(0)

    def wait(fds: list[int], *others: list[int]) -> tuple[list[int], list[int], list[int]]:
        assert fds, "a select without files never ends"
        for fd in fds[1::2]:  # Until each process has ended.
            select_of_all([fd], [], [])
        return fds, [], []

    select_of_all = select.select
    monkeypatch.setattr(Hunter, "_run", run)
    monkeypatch.setattr(select, "select", wait)
    hunter = Hunter(lambda hunter: None, THIS, jobs, str(tmp_path))
    tasks = [Task(None, ()) for _ in range(2 * jobs)]
    assert [outcome.how for outcome in hunter.outcomes(iter(tasks))] == ["passed"] * 2 * jobs
