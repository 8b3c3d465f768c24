"""The two files of what was judged, and what a run concludes from them."""

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.mutate import __main__ as command
from tests.mutate import judged
from tests.mutate.campaign import Verdict
from tests.mutate.faults import Change, Fault
from tests.mutate.judged import (
    Explained,
    Killed,
    read_explained,
    read_killed,
    write_killed,
)
from tests.mutate.report import Findings, document_of, lines_of
from tests.mutate.targets import THIS, Project


def fault(name: str) -> Fault:
    return Fault(name, "gate.py", "f", "drop", 2)


def test_killed_faults_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "killed.txt"
    assert read_killed(path) == {}
    rows = [Killed("b", "1", "tests/x.py::test[a b]", "failed"), Killed("a", "2", "y", "timeout")]
    write_killed(rows, path)
    assert read_killed(path) == {row.name: row for row in rows}
    assert [row.is_quick for row in rows] == [True, False]


def test_killed_faults_follow_the_verdicts() -> None:
    """A fault that is another one under the same name was never judged, and is not forgotten."""
    changes = {name: Change(name, "pass") for name in ("kept", "alive", "new", "moved")}
    known = {
        name: Killed(name, Change(name, "pass").mark, "t", "timeout")
        for name in ("kept", "alive", "gone")
    }
    known["moved"] = Killed("moved", "another", "t", "failed")
    verdicts = [
        Verdict(fault("new"), "u", "ended"),
        Verdict(fault("alive"), tests=("t",)),
        Verdict(fault("kept"), "t", "failed", "recorded"),
    ]
    assert judged.current(known, changes).keys() == {"kept", "alive"}
    rows = {row.name: row for row in judged.after(known, verdicts, changes)}
    assert rows == {
        "kept": known["kept"],
        "gone": known["gone"],
        "moved": known["moved"],
        "new": Killed("new", changes["new"].mark, "u", "ended"),
    }
    assert judged.current(rows, changes).keys() == {"kept", "new"}


def test_a_killer_that_was_asked_by_name_is_noted_with_what_it_is() -> None:
    changes = {"f": Change("f", "pass")}
    before = {"f": Killed("f", changes["f"].mark, "t", "slow")}
    again = Verdict(fault("f"), "t", "failed", "recorded")
    assert judged.after(before, [again], changes) == [before["f"]], "the same one is as slow"
    another = Verdict(fault("f"), "u", "failed", "recorded")
    assert judged.after(before, [another], changes)[0].is_quick
    slow = Verdict(fault("f"), "v", "failed", "slow")
    assert not judged.after(before, [slow], changes)[0].is_quick


def test_tests_that_kill_beside_a_fault_are_asked_from_near_to_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever has become of the faults that they killed."""
    rows = {
        "a/x.py:g:drop:1": "of its file",
        "a/x.py:f:drop:9": "of its function",
        "a/x.py:f:drop:8": "slow",
        "a/y.py:f:drop:1": "rare, of its folder",
        "a/y.py:f:drop:2": "of its folder",
        "a/y.py:f:drop:3": "of its folder",
        "a/x.py:ff:drop:1": "of its file",
        "ab/x.py:f:drop:1": "of another folder",
    }
    killed = {
        name: Killed(name, "1", test, "slow" if test == "slow" else "failed")
        for name, test in rows.items()
    }
    one = Fault("a/x.py:f:drop:1", "a/x.py", "f", "drop", 2)
    ((name, found),) = judged.tests_beside([one], killed, with_slow=False).items()
    assert name == one.name
    assert found == ("of its function", "of its file", "of its folder", "rare, of its folder")
    assert "slow" in judged.tests_beside([one], killed, with_slow=True)[one.name][:2]
    monkeypatch.setattr(judged, "BESIDE_COUNT_MAX", 1)
    assert judged.tests_beside([one], killed, with_slow=False) == {name: ("of its function",)}


def test_faults_that_are_gone_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gate.py").write_text("def f(a):\n    f(a)\n    f(a + 1)\n    f(a + 2)\n")
    (tmp_path / "seldom.py").write_text("def f(a):\n    f(a)\n")
    project = Project(tmp_path, {"gate.py": 1000, "seldom.py": 0}, (), ())
    first, second, third = (f"gate.py:f:drop:{number}" for number in (1, 2, 3))
    marks = {name: change.mark for name, change in project.changes_of([first, third]).items()}
    killed, explained = tmp_path / "killed.txt", tmp_path / "explained.toml"
    gone = [Killed(second, "old", "t", "failed"), Killed("gate.py:g:drop:1", "1", "t", "failed")]
    write_killed([Killed(first, marks[first], "t", "failed"), *gone], killed)
    rows = [(first, "old"), (second, "old"), (third, marks[third]), ("gate.py:g:drop:2", "1")]
    rows.append(("seldom.py:f:drop:1", "old"))
    text = '[[fault]]\nname = "{}"\nmark = "{}"\nreason = "speed"\nwhy = "one look more"\n'
    blocks = [text.format(*row) for row in rows]
    explained.write_text("# Why.\n\n" + "\n".join(blocks))
    monkeypatch.setattr(command, "THIS", project)
    for name, path in (
        ("read_killed", killed),
        ("write_killed", killed),
        ("read_explained", explained),
        ("drop_explained", explained),
    ):
        monkeypatch.setattr(judged, name, partial(getattr(judged, name), path=path))
    ran = CliRunner().invoke(command.main, ["--prune"])
    assert ran.exit_code == 0, ran.output
    assert list(read_killed(killed)) == [first]
    assert explained.read_text() == "# Why.\n\n" + "\n".join(blocks[1:3]), (
        "the last one is not judged"
    )
    assert "killed.txt: 2 of 3 are gone" in ran.output
    assert "explained.toml: 3 of 5 are gone, or killed by now" in ran.output
    assert f"\n{second}\n  - f(a + 1)\n  + pass\n" in ran.output, "that one is to be looked at"
    assert "and old was explained: one look more" in ran.output
    assert third not in ran.output


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('reason = "no time"\nwhy = "it is as it is"', "is none of equivalent"),
        ('reason = "speed"\nwhy = "so"', "say why in a sentence"),
    ],
)
def test_an_unfit_explanation_is_refused(tmp_path: Path, row: str, complaint: str) -> None:
    path = tmp_path / "explained.toml"
    path.write_text(f'[[fault]]\nname = "a"\nmark = "1"\n{row}\n')
    with pytest.raises(ValueError, match=complaint):
        read_explained(path)


def test_a_fault_is_explained_once(tmp_path: Path) -> None:
    path = tmp_path / "explained.toml"
    row = '[[fault]]\nname = "a"\nmark = "1"\nreason = "speed"\nwhy = "one look more"\n'
    path.write_text(row)
    assert read_explained(path) == {"a": Explained("a", "1", "speed", "one look more")}
    path.write_text(row + row)
    with pytest.raises(ValueError, match="twice"):
        read_explained(path)


def test_a_survivor_and_a_wrong_explanation_are_complaints(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text("def f(a):\n    f(a)\n")
    project = Project(tmp_path, {"gate.py": 1000}, (), ())
    alive = "gate.py:f:drop:1"
    explained = {name: Explained(name, "", "speed", "one look more") for name in ("slow", "wrong")}
    verdicts = [
        Verdict(fault("killed"), "t", "failed", "near"),
        Verdict(fault("slow"), tests=("t",)),
        Verdict(fault("odd"), how="not plantable"),
    ]
    assert Findings(explained, verdicts).is_good()
    bad = Findings(
        explained,
        [*verdicts, Verdict(fault(alive), tests=("t",)), Verdict(fault("wrong"), "t", "failed")],
    )
    assert not bad.is_good()
    assert [verdict.fault.name for verdict in bad.survivors()] == [alive]
    assert [verdict.fault.name for verdict in bad.wrongly_explained()] == ["wrong"]
    document, text = document_of(project, bad), "\n".join(lines_of(project, bad))
    assert (document["planted"], document["by_stage"]["near"]) == (5, 1)
    assert "  - f(a)\n  + pass\n  mark " in text
    assert "1 explained, 1 to look at" in text


def test_known_faults_are_of_the_current_code() -> None:
    """A fault is gone with its line. When many are, `--new --record` judges what is new."""
    explained, killed = read_explained(), read_killed()
    assert explained.keys() & killed.keys() == set()
    known = explained.keys() | killed.keys()
    changes = THIS.changes_of(known)
    count = len(judged.current(explained, changes)) + len(judged.current(killed, changes))
    assert count >= 800
    assert count >= len(known) * 4 // 5
