"""The two files of what was judged, and what a run concludes from them."""

from pathlib import Path

import pytest

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
    """A fault that is another one under the same name was never judged."""
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
        "new": Killed("new", changes["new"].mark, "u", "ended"),
    }


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
