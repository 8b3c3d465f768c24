"""The job of the engine on a small input: what it proves, and that it would notice if not so."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.jobs.audit import LineAudit
from deploy.jobs.engine_job import judge
from deploy.jobs.job_summary import EngineJobSummary
from deploy.jobs.stdlib_source import encoded_lines, find_files
from store.record.message import decode_message
from tests.two_processes import run_module


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages and modules with odd content: empty files, no last line end, other line ends."""
    root = tmp_path_factory.mktemp("source")
    contents = [b"", b"\n", b"no end", b"a\r\nb\rc\n", "\u4e2d\u6587\n".encode(), b"x = 1\n" * 900]
    for number in range(24):
        directory = root / ("" if number % 4 == 0 else f"pack.age{number % 4}/sub")
        directory.mkdir(parents=True, exist_ok=True)
        text = b"".join(b"line %d of %d\n" % (n, number) for n in range(200))
        (directory / f"file{number}.py").write_bytes(contents[number % 6] + text * (number % 3))
    return root


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("deploy.jobs.engine_job", *arguments)


def test_every_file_comes_back_after_a_kill_in_the_middle(tmp_path: Path, source: Path) -> None:
    done = run("--json", "--dir", str(tmp_path / "store"), "--source", str(source), "--seed", "7")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["verdict"] == "passed"
    assert summary["files"] == summary["files_equal"] == 24
    assert 0 < summary["acknowledged_before_kill"] <= summary["recovered_lines"] < summary["lines"]
    assert summary["acknowledged_lost"] == 0
    assert summary["seed"] == 7
    again = run("--dir", str(tmp_path / "store"), "--source", str(source))
    assert again.returncode == 3
    assert "is not empty" in again.stderr


@pytest.mark.parametrize("closes", [False, True])
def test_an_interrupted_run_leaves_no_directory(tmp_path: Path, closes: bool) -> None:
    """By Ctrl-C, and by a terminal that is closed."""
    pid, terminal = pty.fork()
    if not pid:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        words = [sys.executable, "-P", "-m", "deploy.jobs.engine_job"]
        os.execve(sys.executable, words, environment)  # Ends it whatever happens.
    said = b""
    while b"Write until" not in said:
        said += os.read(terminal, 4_096)
    assert b"860,000 lines" in said
    if not closes:
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):
            while os.read(terminal, 4_096):
                pass
    os.close(terminal)
    os.waitpid(pid, 0)
    assert not list(tmp_path.iterdir())


def test_lines_join_to_their_file_and_share_its_queue(source: Path) -> None:
    files = find_files(str(source))
    assert len(files) == 24
    assert {file.topic for file in files} == {"modules", "pack_age1", "pack_age2", "pack_age3"}
    for file in files:
        messages = [decode_message(record) for record in encoded_lines(file, 1)]
        assert b"".join(m.body for m in messages) == Path(file.path).read_bytes()
        assert {(m.topic, m.queue_id) for m in messages} <= {(file.topic, file.queue_id)}


@pytest.mark.parametrize("fault", ["none", "different", "missing", "surplus", "lost"])
def test_the_verdict_notices_each_planted_fault(source: Path, fault: str) -> None:
    audit = LineAudit(files := find_files(str(source)), lambda _done: None)
    summary = EngineJobSummary(None, seed=1)
    audit.describe(summary)
    summary.acknowledged_before_kill = summary.recovered_lines = 5
    summary.acknowledged_lost = int(fault == "lost")
    lines = [(file.name, n, line) for file in files for n, line in enumerate(file.lines())]
    if fault == "different":
        lines[0] = (*lines[0][:2], b"other")
    elif fault == "missing":
        lines.pop()
    elif fault == "surplus":
        lines.append(("never written", 0, b"line"))
    for line in lines:
        audit.on_read(*line)
    judge(summary, audit)
    assert summary.verdict == ("passed" if fault == "none" else "failed")
