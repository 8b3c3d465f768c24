"""A toy project with a weak test: exactly the faults survive that it does not notice."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
killers = {"toy/gate.py:admits:drop:1": "checks/test_gate.py::test_all_rows_go"}
found = list(judging.with_known_killers(faults, killers))
assert found == [], "that test does not kill it"
verdicts = list(judging.with_search(faults, with_slow=False))
near = list(judging.with_near_search(faults))
near = {v.fault: v.is_killed for v in near if v.how != "not judged"}
found = {v.fault: v.is_killed for v in verdicts}
assert len(near) > len(found) // 2, "a busy machine leaves some without a verdict"
assert near.items() <= found.items(), "all import it"
known = {verdict.fault.name: verdict.killer for verdict in verdicts if verdict.is_killed}
again = list(judging.with_known_killers(faults, known))
assert {verdict.fault.name for verdict in again} == known.keys()
assert {verdict.stage for verdict in again} == {"recorded"}
beside = ["checks/test_gate.py::test_of_old", "checks/test_gate.py::test_all_rows_go"]
beside = {fault.name: beside for fault in faults}
killed = [verdict for verdict in judging.with_known_tests(faults, beside) if verdict.is_killed]
assert {verdict.fault.function for verdict in killed} == {"drain"}, killed
assert {verdict.stage for verdict in killed} == {"known"}
asked = [fault for fault in faults if fault.operator in ("never", "bound")]
anyway = dict.fromkeys((f.name for f in asked), "checks/test_gate.py::test_that_fails_anyway")
alone = list(judging.with_killers_alone(asked, anyway))
assert [verdict.how for verdict in alone] == ["not judged"] * len(asked), alone
(blind,) = judging.with_killers_alone(faults[:1], killers | dict.fromkeys(
    [faults[0].name], "checks/test_gate.py::test_all_rows_go"))
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
        "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers = slow: long\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), str(jobs)],
        cwd=THIS.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = {name.removeprefix("toy/gate.py:"): how for name, how, _ in json.loads(ran.stdout)}
    alive = {name for name, how in found.items() if how == "survived"}
    assert alive == {"admits:bound:1"}, "nobody asks at the limit"
    assert {name for name, how in found.items() if how == "not run"} == {
        "untested:arithmetic:1",
        "untested:neighbour:1",
    }
    assert found["drain:drop:1"] == "timeout", "rows that are not taken never end"
    killers = {killer for _, _, killer in json.loads(ran.stdout) if killer}
    assert killers == {
        "checks/test_gate.py::test_far_below_and_far_above",
        "checks/test_gate.py::test_all_rows_go",
    }, "a test that fails without a fault kills none"
