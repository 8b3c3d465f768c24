"""The file of explanations, and what a run concludes from it."""

from pathlib import Path

import pytest

from tests.mutate.campaign import Verdict
from tests.mutate.explained import Explained, current, read_explained
from tests.mutate.faults import Change, Fault
from tests.mutate.report import Findings, document_of, lines_of
from tests.mutate.targets import Project


def fault(name: str) -> Fault:
    return Fault(name, "gate.py", "f", "drop", 2)


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


def test_explanations_of_faults_gone_or_changed_are_stale_and_no_complaint(tmp_path: Path) -> None:
    rows = {name: Explained(name, "1", "speed", "one look more") for name in ("gone", "moved")}
    kept = Change("kept", "pass")
    rows["kept"] = Explained("kept", kept.mark, "speed", "one look more")
    valid = current(rows, {"kept": kept, "moved": Change("moved", "pass")})
    assert valid.keys() == {"kept"}
    findings = Findings(valid, stale=sorted(rows.keys() - valid.keys()))
    assert findings.is_good()
    text = "\n".join(lines_of(Project(tmp_path, {}, (), ()), findings))
    assert "gone\n  is explained, and gone or changed by now" in text
    assert "moved\n  is explained, and gone or changed by now" in text
