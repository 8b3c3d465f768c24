"""A toy project with a weak test: exactly the faults survive that it does not notice."""

import gc
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def test_no_row_goes():
    assert gate.drain([]) == 0


def test_that_fails_anyway():
    assert gate.admits(9, 5)
"""
RUN = """
import json, sys
from pathlib import Path
from tests.mutate import hunting, matrix, recording
from tests.mutate.targets import Project

hunting.CPU_LIMIT_S, hunting.CPU_FACTOR = 0.5, 1.0  # Tests of the toy take a hundredth of it.
project = Project(Path(sys.argv[1]), {"toy/gate.py": 1000}, ("toy",), ("tests/toy",))
faults, jobs = project.all_faults(), int(sys.argv[2])
assert all(project.is_standing(fault) for fault in faults)

def judged(faults, tests, files=("tests/toy",), **how):
    return list(hunting.verdicts(project, faults, tests, jobs, files, with_long=False, **how))

test_map = recording.map_of_tests(project, jobs, print)
searched = judged(faults, test_map)
whole = judged(faults, test_map, find_all=True)
killed = {row["name"] for row in matrix.matrix_of(whole)["faults"] if row["killers"]}
assert killed == {verdict.fault.name for verdict in searched if verdict.killer}, killed
(both,) = [row.killers for row in whole if row.fault.name == "toy/gate.py:drain:neighbour:1"]
assert [name.rpartition("::")[2] for name in both] == ["test_all_rows_go", "test_no_row_goes"]
spare = [(name.rpartition("::")[2], lines) for name, lines in matrix.spare_tests(project, whole)]
assert spare == [("test_no_row_goes", 2)], spare
some = [fault for fault in faults if fault.operator in ("never", "bound")]
for test in ("test_that_fails_anyway", "test_gone"):
    alone = judged(some, "tests/toy/test_gate.py::" + test, ["tests/toy/test_gate.py"])
    assert [verdict.how for verdict in alone] == ["not judged"] * len(some), alone
drained = [fault for fault in faults if fault.name == "toy/gate.py:drain:drop:1"]
(killed,) = judged(drained, "tests/toy/test_gate.py::test_all_rows_go")
assert killed.how == "timeout", killed
(blind,) = judged(drained, "tests/toy/test_gate.py::test_far_below_and_far_above")
assert blind.how == "survived", blind
print(json.dumps([[v.fault.name, v.how, v.killer] for v in searched]))
"""


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_exactly_what_the_tests_do_not_notice_survives(tmp_path: Path, jobs: int) -> None:
    for path, text in (("toy/gate.py", MODULE), ("tests/toy/test_gate.py", TESTS)):
        (tmp_path / path).parent.mkdir(parents=True)
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
    rows = json.loads(ran.stdout.splitlines()[-1])
    verdicts = {name.removeprefix("toy/gate.py:"): how for name, how, _ in rows}
    alive = {name for name, how in verdicts.items() if how == "survived"}
    assert alive == {"admits:bound:1"}, "nobody asks at the limit"
    assert {name for name, how in verdicts.items() if how == "not run"} == {
        "untested:arithmetic:1",
        "untested:neighbour:1",
    }
    assert verdicts["drain:drop:1"] == "timeout", "rows that are not taken never end"
    killers = {killer for _, _, killer in rows if killer}
    # The quicker of two is first; that one kills a fault that another test kills, too.
    assert killers - {"tests/toy/test_gate.py::test_no_row_goes"} == {
        "tests/toy/test_gate.py::test_far_below_and_far_above",
        "tests/toy/test_gate.py::test_all_rows_go",
    }, "a test that fails without a fault kills none"


def test_functions_that_were_frozen_are_found() -> None:
    """The tests of this repository are collected, and frozen, before faults are planted."""
    gc.freeze()
    names = {name for name, _ in functions_by_file()[__file__]}
    assert "test_functions_that_were_frozen_are_found" in names
