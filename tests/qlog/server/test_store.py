"""`qlog store`: its tables, its JSON, its exit codes; once as a process, at a terminal."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qlog import main
from store.config import StoreConfig
from tests.qlog.running import PROGRAM
from tests.store.fsck_stores import (
    contents,
    damage_record,
    flip,
    fsck_config,
    make_store,
    open_store,
    tree,
)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)], prog_name="qlog")


def run_json(code: int, *arguments: str | Path) -> Any:
    done = run(*arguments, "-o", "json")
    assert done.exit_code == code, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return fsck_config(request.param)


@pytest.fixture
def root(tmp_path: Path, config: StoreConfig) -> Path:
    make_store(tmp_path / "store", config)
    return tmp_path / "store"


def test_a_restore_that_makes_no_sense_is_refused_in_three_lines(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        f'node_id = 1\ncluster_id = "new"\ndirectory = "{tmp_path / "new"}"\n'
    )
    done = run("restore", tmp_path, "--config", tmp_path / "node.toml")
    assert done.exit_code == 3
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()] == [
        "error",
        "why",
        "do",
    ]
    assert "it has no raft.0" in done.stderr
    assert not (tmp_path / "new").exists()
    (tmp_path / "node.toml").write_text("node_id = 0\n")
    done = run("restore", tmp_path, "--config", tmp_path / "node.toml")
    assert done.exit_code == 2
    assert "node_id = 0" in done.stderr


def test_inspect_says_what_is_there(root: Path, config: StoreConfig) -> None:
    shown = run_json(0, "inspect", root)
    assert shown["container"] == config.container
    assert shown["last_run_clean"] is True
    assert shown["same_boot"] is True
    assert shown["held_by"] is None
    assert (shown["topic_count"], shown["queue_count"], shown["queued_record_count"]) == (2, 2, 60)
    assert [(q["topic"], q["first_offset"], q["end_offset"]) for q in shown["queues"]] == [
        ("topic0", 0, 30),
        ("topic1", 0, 30),
    ]
    assert sum(f["entry_count"] for f in shown["index_files"]) == 60
    assert shown["index_files"][0]["begin_time"] == "2023-11-14T22:13:20.700Z"
    assert (
        shown["written_log_position"]
        == shown["durable_log_position"]
        == shown["dispatched_log_position"]
    )
    if config.container == "ledger":
        assert (shown["first_index"], shown["last_index"], shown["durable_index"]) == (0, 29, 29)
    settings = {row["setting"]: row["value"] for row in shown["settings"]}
    assert settings["file_size_bytes"] == config.file_size_bytes
    assert [row["time"] for row in shown["checkpoint"]][:3] == ["2023-11-14T22:13:40.999Z"] * 3
    assert shown["used_bytes"] > 0
    table = run("inspect", root)
    assert table.exit_code == 0
    assert f"container                        {config.container}\n" in table.stdout


def test_inspect_goes_on_beside_a_server_and_verify_does_not(
    tmp_path: Path, config: StoreConfig
) -> None:
    with open_store(tmp_path, config):
        held_by = run_json(0, "inspect", tmp_path)["held_by"]
        assert held_by.startswith(f"process {os.getpid()} since ")
        refused = run("verify", tmp_path)
        assert refused.exit_code == 3
        assert f"process {os.getpid()}" in refused.stderr
        assert len(refused.stderr.splitlines()) == 3
        assert run("repair", tmp_path, "--apply").exit_code == 3


def test_verify_ends_with_a_verdict(root: Path) -> None:
    report = run_json(0, "verify", root)
    assert (report["clean"], report["finding_count"], report["findings"]) == (True, 0, [])
    assert report["record_count"] == 60
    assert run("verify", root).stdout.splitlines()[-1] == "clean: every byte is as it must be"

    name = damage_record(root, 22)
    report = run_json(1, "verify", root)
    assert report["severities"] == {"damage": 1}
    [finding] = report["findings"]
    assert (finding["file"], finding["field"], finding["severity"]) == (name, "body CRC", "damage")
    assert {"at", "expected", "found", "part", "log_position"} < finding.keys()
    ranges = report["damaged_entries"]
    assert len(ranges) == (1 if report["container"] == "ledger" else 0)
    for damaged in ranges:
        assert damaged["hi_index"] == damaged["lo_index"] + 1
        assert (
            damaged["first_log_position"] <= finding["log_position"] < damaged["end_log_position"]
        )
        verdict = f"refetch entries {damaged['lo_index']} to {damaged['lo_index']} from a replica"
        assert verdict in report["verdict"]
    done = run("verify", root)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1].startswith("damaged: 1 damage; refetch")
    lines = [json.loads(line) for line in run("verify", root, "-o", "jsonl").stdout.splitlines()]
    assert lines[0] == finding
    assert lines[-1]["verdict"].startswith("damaged")


def test_repair_shows_its_plan_and_waits_for_consent(root: Path, config: StoreConfig) -> None:
    damage_record(root, 22)
    before = tree(root)
    shown = run_json(1, "repair", root)
    assert shown["applied"] is False
    assert shown["loses"]["queues"] == [
        {"topic": "topic0", "queue_id": 0, "lo_offset": 12, "hi_offset": 30},
        {"topic": "topic1", "queue_id": 0, "lo_offset": 10, "hi_offset": 30},
    ]
    assert shown["actions"][0]["action"] == "cut_log"
    table = run("repair", root)
    assert "--apply --accept-loss" in table.stdout.splitlines()[-1]
    assert "lost_queues" in table.stdout
    refused = run("repair", root, "--apply")
    assert refused.exit_code == 3
    assert "store.loss_refused" in refused.stderr
    assert tree(root) == before

    done = run_json(0, "repair", root, "--apply", "--accept-loss")
    assert (done["applied"], done["left_count"]) == (True, 0)
    assert run_json(0, "verify", root)["clean"] is True
    assert run_json(0, "repair", root)["actions"] == []
    assert {topic: len(found) for topic, found in contents(root, config).items()} == {
        "topic0": 12,
        "topic1": 10,
    }


def test_derived_files_are_rebuilt_without_consent(root: Path) -> None:
    queue = root / "consumequeue/topic0/0/00000000000000000000"
    good = queue.read_bytes()
    flip(queue, 100)
    assert run("verify", root).stdout.splitlines()[-1].startswith("not clean, nothing is lost")
    assert run_json(0, "repair", root, "--apply")["loses"] is None
    assert queue.read_bytes() == good


def test_sizes_can_be_given_and_nonsense_is_refused(root: Path, config: StoreConfig) -> None:
    sizes = ("--container", config.container, "--file-size", "4096", "--queue-units", "8")
    assert run_json(0, "verify", root, *sizes)["clean"] is True
    assert run("verify", root, "--file-size", "17").exit_code == 3
    assert run("verify", root / "nothing").exit_code == 3
    above = run("verify", root.parent)
    assert (above.exit_code, above.stderr.splitlines()[2]) == (
        3,
        f"  do:  name a directory of a store: {root}",
    )
    assert run("verify").exit_code == 2


@pytest.mark.parametrize(
    ("command", "words"), [("verify", ("log", "100%")), ("inspect", ("queues", "files"))]
)
def test_a_terminal_sees_progress_on_stderr_only(
    root: Path, command: str, words: tuple[str, str]
) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "store", command, str(root), "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
            check=False,
        )
        os.close(theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert json.loads(done.stdout)["directory"]
    assert all(word in shown for word in words)


def test_microscope_shows_each_field_in_80_columns_and_ends_with_1_for_damage(
    root: Path, config: StoreConfig
) -> None:
    things = [("--queue", "topic0:0:12"), ("--key-slot", 1), ("--position", 0)]
    things += [("--index", 11)] if config.container == "ledger" else []
    for thing in things:
        done = run("microscope", root, *map(str, thing))
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "nothing is wrong"), done
        assert max(map(len, done.stdout.splitlines())) <= 80
    damage_record(root, 22)  # Offset 12 of topic1 at index 11, in a batch of two.
    wanted = ("--index", "11") if config.container == "ledger" else ("--queue", "topic1:0:10")
    report = run_json(1, "microscope", root, *wanted)
    wrong = [row for row in report["things"][0]["rows"] + report["things"][1]["rows"]
             if row["verdict"] == "wrong"]  # fmt: skip
    name = "body" if config.container == "ledger" else "bodyCRC"
    assert [row["name"] for row in wrong] == [name]
    assert report["wrong_count"] == len(wrong)
    assert {"at", "size_bytes", "value", "expected", "hex"} < wrong[0].keys()
    done = run("microscope", root, *wanted)
    assert done.exit_code == 1
    assert f" WRONG {name} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_microscope_refuses_what_is_not_there_in_three_lines(
    root: Path, config: StoreConfig
) -> None:
    for arguments in (
        (), ("--queue", "topic0"), ("--queue", "../x:0:1"), ("--queue", "topic0:0:99"),
        ("--index", "9999"), ("--position", "99999999"), ("--key-slot", "5"),
        ("--index", "1", "--position", "1"),
    ):  # fmt: skip
        done = run("microscope", root, *arguments)
        assert done.exit_code in (2, 3), arguments
        assert len(done.stderr.splitlines()) == 3, done.stderr
    with open_store(root, config):
        assert run("microscope", root, "--position", "0").exit_code == 3


@pytest.mark.parametrize("kind", ["no data", "empty", "short", "fifo", "directory", "zero"])
def test_microscope_names_the_damaged_file_of_a_ledger(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    make_store(root, fsck_config("ledger"))
    part = "data" if kind == "no data" else "index"
    file = root / "dledger-n0" / part / ("0" * 20)
    if part == "data":
        shutil.rmtree(file.parent)
        file.parent.mkdir()
    elif kind == "short":
        os.truncate(file, 40)
    else:
        file.unlink()
    if kind == "empty":
        file.touch()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "zero":
        file.symlink_to("/dev/zero")
    done = run("microscope", root, "--index", "5")
    assert f"{part}/{'0' * 20}" in done.stderr, (done.stdout, done.stderr)
    assert "missing" in done.stderr
    assert len(done.stderr.splitlines()) == 3
    if part == "index":
        assert "the data has the entries 0 to " in done.stderr


def test_microscope_says_where_a_thing_begins(root: Path, config: StoreConfig) -> None:
    what = "an entry" if config.container == "ledger" else "a record"
    for position in (1, 30, 60):
        done = run("microscope", root, "--position", str(position))
        assert f"nothing begins at position {position}: {what} has [0, " in done.stderr


def test_microscope_has_colours_on_a_terminal_only(root: Path) -> None:
    ours, theirs = pty.openpty()
    command = ["store", "microscope", str(root), "--position", "0"]
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, *command], stdout=theirs, check=False)
        os.close(theirs)
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert b"\x1b[32mright\x1b[0m totalSize" in shown or b"\x1b[32mright\x1b[0m magic" in shown
    assert "\x1b" not in run(*command[1:]).stdout
