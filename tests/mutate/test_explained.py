"""The file of explanations: what it refuses, and which faults it explains."""

from pathlib import Path

import pytest

from tests.mutate.explained import Mark, explained_faults, read_explained
from tests.mutate.targets import Project


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('"no time" = ["it is as it is", "1"]', "is none of equivalent"),
        ('speed = ["so", "1"]', "say why in a sentence"),
        ('speed = ["it is as it is"]', "give marks"),
    ],
)
def test_an_unfit_explanation_is_refused(tmp_path: Path, row: str, complaint: str) -> None:
    path = tmp_path / "explained.toml"
    path.write_text(f'["gate.py:f"]\n{row}\n')
    with pytest.raises(ValueError, match=complaint):
        read_explained(path)


def test_changes_are_explained_by_function_and_reason_and_others_of_it_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "gate.py").write_text("def f(a):\n    f(a)\n    f(a + 1)\n")
    project = Project(tmp_path, {"gate.py": 1000}, (), ())
    faults = project.all_faults()
    mark = project.changes_of(["gate.py:f:drop:1"])["gate.py:f:drop:1"].mark
    path = tmp_path / "explained.toml"
    path.write_text(f'["gate.py:f"]\nspeed = ["one look more", "{mark}", "gone"]\n')
    marks = read_explained(path)
    assert marks == {Mark("gate.py:f", mark), Mark("gate.py:f", "gone")}
    assert explained_faults(project, marks, faults) == {"gate.py:f:drop:1": Mark("gate.py:f", mark)}
