"""The commands: what they print, how they end, and what they say when something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline.session
from checkers import history
from pipeline.commands.pipeline import JOBS
from pipeline.errors import PipelineError
from quorumlog.command_errors import ExitCode
from tests.checkers.histories import clean_history
from tests.pipeline.conftest import Run
from tests.store.fsck_stores import flip, fsck_config, log_files, make_store


def test_audit_prints_a_verdict_and_ends_with_it(run: Run, tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        make_store(root, fsck_config("ledger"), 20)
    name = log_files(roots[1])[0]
    flip(roots[1] / name, 8 * 400)

    bad = run("audit", *map(str, roots), "-o", "json")
    assert bad.exit_code == ExitCode.FINDINGS, bad.output
    report = json.loads(bad.stdout)
    assert (report["clean"], report["verdict"]) == (False, "clean, damaged")
    assert [one["verdict"] for one in report["replicas"]] == ["clean", "damaged"]
    assert {one["file"] for one in report["findings"]} == {name}

    shown = run("audit", str(roots[0]))
    assert shown.exit_code == ExitCode.OK, shown.output
    assert "verdict" in shown.stdout
    assert "mb_per_s" in shown.stdout


@pytest.mark.long
def test_history_check_and_latency_print_what_they_found(run: Run, tmp_path: Path) -> None:
    from random import Random

    operations, _ = clean_history(Random(3), 40)
    with (tmp_path / "history.jsonl").open("w") as file:
        history.write(operations, file)
    good = run("history-check", str(tmp_path), "-o", "json")
    assert good.exit_code == ExitCode.OK, good.output
    assert json.loads(good.stdout)["operation_count"] == 40

    make_store(tmp_path / "node", fsck_config("ledger"), 20)
    ran = run("latency", "--segments", str(tmp_path / "node"), "-o", "json", "--plot",
               str(tmp_path / "l.png"))  # fmt: skip
    assert ran.exit_code == ExitCode.OK, ran.output
    assert sum(one["message_count"] for one in json.loads(ran.stdout)["rates"]) == 20
    assert (tmp_path / "l.png").exists()


def test_senseless_options_are_refused_before_spark_is_started() -> None:
    two = Run()("latency", "--segments", "a", "--parquet", "b")
    assert (two.exit_code, "exclude each other" in two.stderr) == (ExitCode.USAGE, True)
    none = Run()("latency")
    assert (none.exit_code, "no topic is given" in none.stderr) == (ExitCode.USAGE, True)
    assert Run()("audit").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("job", sorted(JOBS))
def test_help_needs_no_spark(job: str) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        f"from qlog import main; main(['pipeline', {job!r}, '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: qlog pipeline") or job in done.stdout


def test_without_spark_or_java_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    command = [sys.executable, "-m", "pipeline", "audit", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.FAILED
    assert "error: Spark needs Java 17 or newer, and there is no 'java'" in done.stderr
    assert "do:  install it" in done.stderr

    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PipelineError, match=r"not installed; run: pip install 'quorumlog\[spark\]"):
        pipeline.session.check_available()


def test_an_error_of_a_task_is_said_as_our_own() -> None:
    text = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    text += (
        "  File x, line 3\nstore.errors.CorruptionError: data/0 byte 7: body CRC is 1; refetch\n"
    )
    error = pipeline.session._failed("latency", text)
    assert (error.what, error.do) == ("data/0 byte 7: body CRC is 1", "refetch")
    other = pipeline.session._failed("latency", "\n[NO_SUCH] nothing\nat x\n")
    assert other.what == "latency failed in Spark: [NO_SUCH] nothing"
