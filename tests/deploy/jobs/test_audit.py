"""The audit of the main job notices each planted fault."""

from pathlib import Path

import pytest

from deploy.jobs.audit import LineAudit
from deploy.jobs.job_summary import MainJobSummary
from deploy.jobs.stdlib_source import SourceFile, find_files

Line = tuple[str, int, bytes]
CONTENTS = {
    "a/empty.py": b"",
    "a/one.py": b"x = 1\ny = 2\n",
    "b/two.py": b"first\n\nno end",
    "three.py": b"\n" * 5,
}
"""Two packages, an empty file, and a file without a last line end."""
LINES: list[Line] = [
    (name, n, line)
    for name, content in CONTENTS.items()
    for n, line in enumerate(content.splitlines(keepends=True))
]
FIRST, SECOND, THIRD, *OTHERS = LINES


@pytest.fixture
def files(tmp_path: Path) -> list[SourceFile]:
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return find_files(str(tmp_path))


def judged(files: list[SourceFile], found: list[Line]) -> MainJobSummary:
    """Ack every line of `files`, read `found` back, once from the leader and once from node 1."""
    audit = LineAudit(files, lambda _done: None)
    summary = MainJobSummary(".", seed=1, nodes=1)
    audit.describe(summary)
    for number, file in enumerate(files):
        for line_number in range(len(file.lines())):
            audit.on_acked(number, line_number)
            summary.acked += 1
    for line in found:
        audit.on_read(*line)
    audit.judge_leader(summary)
    audit.judge_replica(summary, 1)
    summary.killed_after, summary.failover_ms, summary.replicas_identical = 1, 700, True
    summary.settle(1.0)
    return summary


def test_everything_once_passes(files: list[SourceFile]) -> None:
    summary = judged(files, LINES)
    assert (summary.verdict, summary.lost, summary.duplicates) == ("passed", 0, 0)
    assert summary.files_equal == 4
    assert summary.replicas_equal == [1]


@pytest.mark.parametrize(
    ("lines", "lost", "duplicates"),
    [
        pytest.param(LINES[1:], 1, 0, id="lost"),
        pytest.param([*LINES, LINES[-1]], 0, 1, id="doubled"),
        pytest.param([FIRST, SECOND, (*THIRD[:2], b"tsrif\n"), *OTHERS], 0, 0, id="changed"),
        pytest.param([SECOND, FIRST, THIRD, *OTHERS], 0, 0, id="swapped"),
        pytest.param([*LINES, ("elsewhere.py", 0, b"")], 0, 1, id="never sent"),
    ],
)
def test_a_fault_fails_the_job(
    files: list[SourceFile], lines: list[Line], lost: int, duplicates: int
) -> None:
    summary = judged(files, lines)
    assert (summary.verdict, summary.lost, summary.duplicates) == ("failed", lost, duplicates)
    assert summary.replicas_equal == []


def test_a_run_that_did_nothing_fails() -> None:
    summary = MainJobSummary(".", seed=1, nodes=3)
    summary.settle(0.0)
    assert summary.verdict == "failed"
