"""One test is asked about one fault: what follows from each way that it ends, without a search."""

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from tests.mutate import __main__ as command
from tests.mutate import judged, sessions
from tests.mutate.campaign import Campaign, Verdict
from tests.mutate.faults import Fault
from tests.mutate.hunting import Hunter, Outcome, Task
from tests.mutate.judged import Killed
from tests.mutate.report import Findings, lines_of
from tests.mutate.targets import THIS, Project

TEST = "tests/test_a.py::test_a"
MODULE = "def admits(count: int, limit: int) -> bool:\n    return count < limit\n"


def fault(name: str) -> Fault:
    return Fault(name, "a.py", "f", "drop", 1)


@dataclass(slots=True)
class Scripted:
    """Ends each run as it was told to; the last ending of a list stays."""

    with_fault: str
    without_fault: list[str] = field(default_factory=lambda: ["passed"])
    asked: list[str | None] = field(default_factory=list)
    slow: bool = False

    def knows(self, node_id: str) -> bool:
        return node_id == TEST

    def is_slow(self, node_id: str) -> bool:
        return self.slow

    def outcomes(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        for task in tasks:
            self.asked.append(None if task.fault is None else task.fault.name)
            how = self.with_fault
            if task.fault is None:
                many = len(self.without_fault) > 1
                how = self.without_fault.pop(0) if many else self.without_fault[0]
            is_killed = how in ("failed", "timeout", "ended")
            yield Outcome(task, TEST if is_killed else None, how, 0.0)


def asked(hunter: Scripted, names: tuple[str, ...] = ("f",), test: str = TEST) -> list[Verdict]:
    found: list[Verdict] = []
    campaign = Campaign(THIS, hunter, found.append)
    campaign.asked([fault(name) for name in names], dict.fromkeys(names, test))
    return found


@pytest.mark.parametrize("how", ["failed", "timeout", "ended"])
def test_a_test_that_passes_without_the_fault_kills_it(how: str) -> None:
    (verdict,) = asked(Scripted(how))
    assert (verdict.killer, verdict.how, verdict.stage) == (TEST, how, "recorded")


@pytest.mark.parametrize("with_fault", ["failed", "timeout", "ended"])
@pytest.mark.parametrize("without", ["failed", "timeout", "ended"])
def test_a_test_that_does_not_pass_alone_judges_nothing(with_fault: str, without: str) -> None:
    (verdict,) = asked(Scripted(with_fault, [without]))
    assert verdict.is_unjudged
    assert not verdict.is_killed
    assert not verdict.is_alive
    findings = Findings({}, [verdict])
    assert findings.is_good(), "the run of all tests judges that test"
    said = "\n".join(lines_of(THIS, findings))
    assert f"not judged: this test does not pass alone here:\n    {TEST}" in said
    assert "1 faults planted: not judged 1; 0 explained, 0 to look at" in said


def test_a_time_out_is_no_kill_once_the_machine_is_too_slow_for_the_test() -> None:
    hunter = Scripted("timeout", ["passed", "timeout"])
    verdicts = asked(hunter, ("before", "after"))
    assert [verdict.how for verdict in verdicts] == ["timeout", "not judged"]
    assert hunter.asked == ["before", None, "after", None], "an earlier answer says nothing"


def test_a_fault_that_its_test_does_not_notice_is_a_complaint() -> None:
    (verdict,) = asked(Scripted("passed", ["failed"]))
    assert verdict.how == "survived"
    assert verdict.tests == (TEST,)
    assert not Findings({}, [verdict]).is_good()


@pytest.mark.parametrize(
    ("hunter", "test", "expected"),
    [
        (Scripted("failed"), TEST, (TEST, "failed", "known")),
        (Scripted("failed", slow=True), TEST, (TEST, "failed", "slow")),
        (Scripted("passed"), TEST, (None, "survived", "")),
        (Scripted("failed", ["failed"]), TEST, (None, "survived", "")),
        (Scripted("failed"), "tests/test_a.py::test_of_old", (None, "not run", "")),
    ],
    ids=["kills", "is-slow", "passes", "fails-anyway", "is-gone"],
)
def test_known_tests_alone_decide(
    hunter: Scripted, test: str, expected: tuple[str | None, str, str]
) -> None:
    found: list[Verdict] = []
    Campaign(THIS, hunter, found.append).known([fault("f")], {"f": [test]})
    (verdict,) = found
    assert (verdict.killer, verdict.how, verdict.stage) == expected


def test_a_fault_whose_test_is_gone_is_a_complaint() -> None:
    hunter = Scripted("failed")
    (verdict,) = asked(hunter, test="tests/test_a.py::test_of_old")
    assert verdict.how == "test gone"
    assert hunter.asked == []
    assert not Findings({}, [verdict]).is_good()


def test_a_fault_that_cannot_be_planted_any_more_is_a_complaint() -> None:
    """Else a run that plants nothing at all would pass."""
    hunter = Scripted("not plantable")
    path = "store/record/stamp.py"
    name, *_ = THIS.changes_of([f"{path}:Stamper._find_parts:never:1"])
    found: list[Verdict] = []
    Campaign(THIS, hunter, found.append).asked([Fault(name, path, "f", "never", 1)], {name: TEST})
    findings = Findings({}, found)
    assert not findings.is_good()
    assert "cannot be planted here" in "\n".join(lines_of(THIS, findings))


def test_a_fault_not_judged_stays_known_as_killed() -> None:
    changes = THIS.changes_of(["store/record/stamp.py:Stamper._find_parts:never:1"])
    ((name, change),) = changes.items()
    before = Killed(name, change.mark, TEST, "failed")
    verdict = Verdict(fault(name), how="not judged", tests=(TEST,))
    assert judged.after({name: before}, [verdict], changes) == [before]


@pytest.mark.parametrize(
    ("how", "code"), [("not judged", 0), ("survived", 1), ("test gone", 1), ("not planted", 1)]
)
def test_a_sample_makes_no_map_and_searches_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, code: int
) -> None:
    (tmp_path / "gate.py").write_text(MODULE)
    project = Project(tmp_path, {"gate.py": 1000}, (".",), (".",))
    (name, change), *_ = project.changes_of(f.name for f in project.all_faults()).items()
    (tmp_path / "test_gate.py").touch()
    test = "test_gate.py::test_far" if how != "test gone" else "test_no_more.py::test_far"
    found = Verdict(fault(name), how=how, tests=(test,))
    known = Killed(name, change.mark, test, "failed")
    monkeypatch.setattr(command, "THIS", project)
    monkeypatch.setattr(judged, "read_killed", lambda: {name: known})
    monkeypatch.setattr(judged, "read_explained", dict)
    monkeypatch.setattr(sessions, "verdicts", lambda *args, **options: iter([found]))
    monkeypatch.setattr(sessions, "map_of_tests", lambda *args, **options: pytest.fail("a map"))
    ran = CliRunner().invoke(command.main, ["--sample", "5", "--seed", "1"])
    assert ran.exit_code == code, ran.output
    assert f"{how} 1" in ran.output


@pytest.mark.parametrize(("option", "stage"), [("--test", "recorded"), ("--near", "known")])
def test_kills_of_a_named_test_are_noted_and_nothing_else_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, stage: str
) -> None:
    (tmp_path / "gate.py").write_text(MODULE + "def note(count):\n    note(count)\n")
    (tmp_path / "test_gate.py").touch()
    project = Project(tmp_path, {"gate.py": 1000}, (".",), (".",))
    changes = project.changes_of(f.name for f in project.all_faults())
    (one, change), (other, _), *_ = changes.items()
    test = "test_gate.py::test_far"
    rows = [Killed(other, changes[other].mark, test, "failed"), Killed("gone", "1", "t", "failed")]
    found = [
        Verdict(fault(one), test, "failed", stage),
        Verdict(fault(other), how="survived", tests=(test,)),
    ]
    written: list[Killed] = []
    monkeypatch.setattr(command, "THIS", project)
    monkeypatch.setattr(judged, "read_killed", lambda: {row.name: row for row in rows})
    monkeypatch.setattr(judged, "read_explained", dict)
    monkeypatch.setattr(judged, "write_killed", written.extend)
    monkeypatch.setattr(sessions, "verdicts", lambda *args, **options: iter(found))
    monkeypatch.setattr(sessions, "map_of_tests", lambda *args, **options: pytest.fail("a map"))
    asked = [option, test] if option == "--test" else [option]
    ran = CliRunner().invoke(command.main, [*asked, "--new", "--record"])
    assert ran.exit_code == 1, "one survives"
    assert "failed 1, survived 1;" in ran.output, "also where no test imports the module"
    assert {row.name: row for row in written} == {
        **{row.name: row for row in rows},
        one: Killed(one, change.mark, test, "failed"),
    }


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
