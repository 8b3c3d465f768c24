"""The main job on a small input: three real nodes, a killed leader, every line back."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.jobs.main_job import choose_files
from deploy.local import LocalCluster
from tests.two_processes import run_module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("deploy.jobs.main_job", *arguments)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for number in range(40):
        directory = root / f"package{number % 3}"
        directory.mkdir(exist_ok=True)
        text = b"".join(b"line %d of %d\n" % (n, number) for n in range(100 + number))
        (directory / f"file{number}.py").write_bytes(text)
    return root


def test_every_line_comes_back_once_from_each_replica(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "cluster"
    done = run("--json", "--dir", str(directory), "--source", str(source), "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["verdict"] == "passed"
    assert report["acked"] == report["read"] == report["lines"] == sum(range(100, 140))
    assert (report["lost"], report["duplicates"], report["files_equal"]) == (0, 0, 40)
    assert report["receipts_by_durability"] == {"quorum_disk": report["acked"]}
    assert report["replicas_identical"]
    assert report["replicas_equal"] == [1, 2, 3]
    assert report["failover_ms"] > 0
    assert report["throughput_msgs_per_s"] > 0
    again = run("--dir", str(directory), "--source", str(source))
    assert again.returncode == 3
    assert "is not empty" in again.stderr


def test_the_default_input_is_a_part_of_the_library_and_the_same_each_time() -> None:
    part, whole = (choose_files(None, is_whole=is_whole) for is_whole in (False, True))
    assert part == choose_files(None, is_whole=False)
    assert set(part) < set(whole)
    assert 0.2 < len(part) / len(whole) < 0.4
    assert len({file.queue_id for file in part}) == 8
    assert "modules" in {file.topic for file in part}


@pytest.mark.long
def test_the_next_run_leaves_a_kept_cluster_alone(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    own = ("--json", "--source", str(source))
    done = run(*own[1:], "--keep")
    hints = done.stdout[done.stdout.index("  export") :].partition("So that")[0]
    kept = LocalCluster.open(re.findall("export QUORUMLOG_LOCAL_DIR=(.*)", hints)[0])
    try:
        assert max(map(len, hints.replace(str(tmp_path), "/tmp").splitlines())) <= 80
        before = [kept.process(node_id) for node_id in kept.node_ids]
        done = run(*own)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["directory"] is None, "it is removed"
        kept = LocalCluster.open(kept.directory)
        assert [kept.process(node_id) for node_id in kept.node_ids] == before
        assert all(map(kept.is_alive, kept.node_ids))
        assert list(tmp_path.glob("quorumlog-quickstart-*")) == [kept.directory]
        assert "(removed if it passes)" in done.stderr
        chosen = re.findall("^  (?:export|unset|.* local stop) .*$", hints, re.MULTILINE)
        script = "\n".join([*chosen, "env"]).replace(".venv/bin/qlog", f"{sys.executable} -m qlog")
        ended = subprocess.run(["bash", "-ec", script], check=True, capture_output=True)
        assert not kept.directory.exists()
        assert b"QUORUMLOG_SERVER=" not in ended.stdout
        assert b"QUORUMLOG_LOCAL_DIR=" not in ended.stdout
    finally:
        if kept.directory.exists():
            kept.stop()


@pytest.mark.long
def test_a_source_without_files_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("--dir", str(tmp_path / "cluster"), "--source", str(tmp_path / "empty"))
    assert done.returncode == 3
    assert "no Python files" in done.stderr


def test_help_and_refusals_name_the_script_and_all_that_it_takes() -> None:
    stated = run("--help").stdout
    assert stated.startswith("Usage: ./deploy/quickstart [OPTIONS]\n")
    assert {"--setup", "--engine"} <= set(re.findall("^  (--[a-z]+)", stated, re.MULTILINE))
    late = run("--json", "--engine")
    assert (late.returncode, late.stderr.splitlines()[0]) == (2, "error: --engine comes first")
    assert "see ./deploy/quickstart --help" in run("--nonsense").stderr
