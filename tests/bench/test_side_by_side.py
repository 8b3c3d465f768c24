"""A run goes through everything in turn, survives what a peer does, and goes on where it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import side_by_side
from bench.journal import OtherRunError, SessionJournal
from bench.peers import installed
from bench.plan import FULL, QUICK, SCENARIOS, PlanScale, Scenario, sessions

PLAN: dict[str, Any] = {"begun": "then", "scale": QUICK.row(), "peers": ["quorumlog", "etcd"]}
CELL = {"row": "r", "unit": "msg/s", "value": 1.0}


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


# --- The order.


@pytest.mark.parametrize("scale", [QUICK, FULL])
def test_peers_come_in_turn_and_each_key_once(scale: PlanScale) -> None:
    planned = list(sessions(scale, ["tmpfs", "disk"], ["quorumlog", "etcd", "nats"]))
    keys = [session.key for session in planned]
    assert len(set(keys)) == len(keys)
    rates = [(s.place, s.round, s.peer) for s in planned if s.scenario == "rates"]
    assert rates[:6] == [
        ("tmpfs", 0, "quorumlog"), ("tmpfs", 0, "etcd"), ("tmpfs", 0, "nats"),
        ("disk", 0, "quorumlog"), ("disk", 0, "etcd"), ("disk", 0, "nats"),
    ]  # fmt: skip
    assert len(rates) == 3 * sum(scale.rounds.values())
    assert {s.place for s in planned if s.scenario == "growth"} == {"disk"}
    assert scale.restart_size_bytes in scale.log_sizes_bytes


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_may_be_of_some_rows_only(scenario: Scenario) -> None:
    whole = list(sessions(QUICK, ["tmpfs", "disk"], ["quorumlog", "etcd"]))
    part = list(sessions(QUICK, ["tmpfs", "disk"], ["quorumlog", "etcd"], [scenario]))
    assert {s.scenario for s in part} == {scenario, *(["limits"] if scenario == "rates" else [])}
    assert part == [s for s in whole if s in part] != whole


def test_a_quick_run_ends_within_ten_minutes() -> None:
    assert QUICK.run_s_max + side_by_side._END_DEADLINE_S <= 600


# --- The journal.


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path, PLAN)
    journal.add({"key": "a", "cells": [CELL]})
    again = SessionJournal(tmp_path, {**PLAN, "begun": "later"})
    assert again.sessions == {"a": {"key": "a", "cells": [CELL]}}
    assert again.plan["begun"] == "then"


def test_a_line_that_was_being_written_is_dropped(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path, PLAN)
    journal.add({"key": "a"})
    journal.add({"key": "b"})
    path = tmp_path / "journal.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-5])
    again = SessionJournal(tmp_path, PLAN)
    assert list(again.sessions) == ["a"]
    again.add({"key": "b"})
    assert path.read_text() == whole
    path.write_text(whole[:5])
    assert SessionJournal(tmp_path, PLAN).sessions == {}


def test_another_plan_is_refused_by_name(tmp_path: Path) -> None:
    SessionJournal(tmp_path, PLAN)
    with pytest.raises(OtherRunError, match=r"differs in peers; .*another directory"):
        SessionJournal(tmp_path, {**PLAN, "peers": ["quorumlog"]})


# --- Sessions that go wrong.


@pytest.mark.long
def test_rows_of_a_session_that_fails_are_kept() -> None:
    said = json.dumps(CELL)
    cells, failure = side_by_side._run_child(
        script(f"print('{said}', flush=True); raise ValueError('no quorum')"), 60
    )
    assert (cells, failure) == ([CELL], "ValueError: no quorum")


@pytest.mark.long
def test_the_error_in_a_group_is_the_reason() -> None:
    text = "raise ExceptionGroup('all', [ValueError('two of three')])"
    assert side_by_side._run_child(script(text), 60) == ([], "ValueError: two of three")


@pytest.mark.long
def test_of_more_errors_than_are_shown_one_is_the_reason() -> None:
    text = "raise ExceptionGroup('many', [ValueError(f'no {n}') for n in range(40)])"
    _, failure = side_by_side._run_child(script(text), 60)
    assert failure == "ValueError: no 14"


@pytest.mark.long
def test_a_session_that_hangs_is_over_in_time() -> None:
    text = f"echo '{json.dumps(CELL)}'; printf half; exec sleep 600"
    cells, failure = side_by_side._run_child(["sh", "-c", text], 3.0)
    assert (cells, failure) == ([CELL], "not over after 3 s")


def test_processes_that_a_session_leaves_are_ended(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as left:
        side_by_side._end_all(str(tmp_path))
        assert not psutil.pid_exists(left.pid)


def test_a_peer_that_is_missing_is_a_reason(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path / "out", PLAN)
    planned = [one for one in sessions(QUICK, ["tmpfs"], ["etcd"]) if one.peer]
    run = side_by_side._Run(journal, QUICK, {"tmpfs": str(tmp_path)}, {"etcd": "no etcd in PATH"})
    run.all(planned)
    assert not run.was_interrupted
    assert {one["failure"] for one in journal.sessions.values()} == {"no etcd in PATH"}
    assert len(journal.sessions) == len(planned)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_sessions_without_time_are_left_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = SessionJournal(tmp_path / "out", PLAN)
    planned = list(sessions(QUICK, ["tmpfs"], ["etcd"]))
    run = side_by_side._Run(journal, QUICK, {"tmpfs": str(tmp_path)}, {})

    def cut_short(words: list[str], seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        run._until = 0.0
        return [CELL], "not over"

    monkeypatch.setattr(side_by_side, "_run_child", cut_short)
    run.all(planned)
    assert journal.sessions == {}
    assert f"{len(planned)} sessions are left" in capsys.readouterr().err


def test_a_run_writes_its_page_and_is_refused_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # So that there is no git.
    monkeypatch.setattr(installed, "INSTALLED", tmp_path)  # So that there is no etcd.

    def say_scenario(words: list[str], seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        return [{**CELL, "row": json.loads(words[-1])["scenario"]}], None

    monkeypatch.setattr(side_by_side, "_run_child", say_scenario)
    out = tmp_path / "out"
    common = ["--quick", "--peer", "etcd", "-o", str(out), "--disk", str(tmp_path)]
    assert side_by_side.main([*common, "--place", "disk", "--rounds", "2"]) == 0
    record = json.loads((out / "result.json").read_text())
    rates = next(row for row in record["rows"] if row["row"] == "rates")
    assert rates["peers"]["quorumlog"]["value"]["count"] == 2
    assert rates["peers"]["etcd"]["reason"].startswith("no etcd-")
    assert "1. no etcd-" in (out / "table.md").read_text()
    assert side_by_side.main([*common, "--place", "disk"]) == 2
