"""The audit of the main job notices each planted fault."""

from pathlib import Path

import pytest

from deploy.jobs.audit import LineAudit
from deploy.jobs.job_summary import MainJobSummary
from deploy.jobs.progress import JobStep
from deploy.jobs.stdlib_source import SourceFile, find_files

Line = tuple[str, int, bytes]


@pytest.fixture
def files(tmp_path: Path) -> list[SourceFile]:
    """Two packages, an empty file, and a file without a last line end."""
    for name, content in {
        "a/one.py": b"x = 1\ny = 2\n",
        "a/empty.py": b"",
        "b/two.py": b"first\n\nno end",
        "three.py": b"\n" * 5,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return find_files(str(tmp_path))


def lines_of(files: list[SourceFile]) -> list[Line]:
    return [(file.name, n, line) for file in files for n, line in enumerate(file.lines())]


def judged(files: list[SourceFile], found: list[Line]) -> MainJobSummary:
    """Ack every line of `files`, read `found` back, once from the leader and once from node 1."""
    audit = LineAudit.of_files(files, JobStep(None, None))
    summary = MainJobSummary(".", seed=1, nodes=1)
    summary.files, summary.lines = len(files), audit.line_count
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
    summary = judged(files, lines_of(files))
    assert (summary.verdict, summary.lost, summary.duplicates) == ("passed", 0, 0)
    assert summary.files_equal == 4
    assert summary.replicas_equal == [1]


def test_a_lost_line_is_counted(files: list[SourceFile]) -> None:
    summary = judged(files, lines_of(files)[1:])
    assert (summary.verdict, summary.lost, summary.duplicates) == ("failed", 1, 0)
    assert len(summary.files_different) == 1
    assert summary.replicas_equal == []


def test_a_duplicate_is_counted(files: list[SourceFile]) -> None:
    lines = lines_of(files)
    summary = judged(files, [*lines, lines[-1]])
    assert (summary.verdict, summary.lost, summary.duplicates) == ("failed", 0, 1)


def test_a_changed_byte_is_seen(files: list[SourceFile]) -> None:
    lines = lines_of(files)
    name, number, body = lines[2]
    lines[2] = (name, number, body[::-1])
    assert judged(files, lines).verdict == "failed"


def test_swapped_lines_are_seen(files: list[SourceFile]) -> None:
    lines = lines_of(files)
    at = next(i for i, line in enumerate(lines) if line[0] == "a/one.py")
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    summary = judged(files, lines)
    assert (summary.verdict, summary.lost, summary.duplicates) == ("failed", 0, 0)


def test_a_line_that_was_never_sent_is_surplus(files: list[SourceFile]) -> None:
    summary = judged(files, [*lines_of(files), ("elsewhere.py", 0, b"")])
    assert (summary.verdict, summary.duplicates) == ("failed", 1)


def test_a_run_that_did_nothing_fails() -> None:
    summary = MainJobSummary(".", seed=1, nodes=3)
    summary.settle(0.0)
    assert summary.verdict == "failed"
