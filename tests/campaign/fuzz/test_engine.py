"""The search finds planted faults soon, judges each by its bound, and is repeatable."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.fuzz import regressions
from campaign.fuzz.engine import ROOT, FuzzReport, FuzzRun
from campaign.fuzz.process import document_of, report_of, run_apart
from tests import missing
from tests.campaign.fuzz.planted import TARGETS

COUNT = 1_500


def run(name: str, seed: int = 1, count: int = COUNT) -> FuzzReport:
    return FuzzRun(TARGETS[name], seed).run(count)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("key-error", "KeyError in tests/campaign/fuzz/planted.py:_key_error"),
        ("behind-checksum", "KeyError in tests/campaign/fuzz/planted.py:_key_error"),
        ("allocation", "memory: more than"),
        ("loop", "steps: more than"),
        ("round-trip", "claim: field"),
    ],
)
def test_a_planted_fault_is_found(name: str, kind: str) -> None:
    crashes = run(name).crashes
    assert crashes
    assert crashes[0].kind.startswith(kind)
    assert regressions.problem_of(TARGETS[name], crashes[0].data).startswith(kind)


@pytest.mark.long
def test_a_crash_is_reduced() -> None:
    """The smallest input: field 7 without content, and no field 1."""
    assert run("key-error").crashes[0].data == b"\x07\x00"


@pytest.mark.long
def test_a_right_parser_has_no_crash() -> None:
    report = run("good")
    assert report.crashes == []
    assert report.input_count == COUNT
    assert 0 < report.accepted_count < COUNT
    assert report.corpus_count > 2
    assert report.edge_count > 5


@pytest.mark.long
def test_seeds_give_one_run_each() -> None:
    first, again, other = run("key-error"), run("key-error"), run("key-error", seed=2)
    assert document_of(first) == document_of(again)
    assert document_of(first) != document_of(other)


@pytest.mark.long
def test_a_seed_gives_the_same_run_in_another_process() -> None:
    here = run("key-error", count=400)
    there = run_apart("key-error", 1, 400, registry="tests.campaign.fuzz.planted")
    assert document_of(there) == document_of(here)


def test_a_report_is_the_same_after_it_was_written() -> None:
    report = run("key-error", count=300)
    assert report_of(document_of(report)) == report


@pytest.mark.long
def test_an_input_that_ends_the_process_is_a_crash() -> None:
    report = run_apart("death", 1, COUNT, registry="tests.campaign.fuzz.planted")
    (crash,) = report.crashes
    assert crash.kind == "ends the process"
    assert crash.data[:1] == b"\x09"
    assert report.input_count == crash.number


@pytest.mark.long
def test_an_input_that_hangs_is_a_crash() -> None:
    report = run_apart("silence", 1, COUNT, registry="tests.campaign.fuzz.planted", silence_s=4)
    (crash,) = report.crashes
    assert crash.kind.startswith("hangs")
    assert len(crash.data) > 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["key-error", "behind-checksum", "allocation", "good"])
def test_atheris_finds_what_our_search_finds(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        missing.program("atheris is not installed (the extra `fuzz`)")
    registry = "tests.campaign.fuzz.planted"
    report = run_apart(name, 1, 20_000, registry=registry, with_atheris=True)
    assert [crash.kind for crash in report.crashes] == [
        crash.kind for crash in run(name).crashes[:1]
    ]
    assert report.input_count > 1


def test_a_crash_is_kept_as_a_file(tmp_path: Path) -> None:
    (crash, *_) = run("allocation", count=50).crashes
    path = regressions.save(crash, tmp_path)
    assert path.parent.name == "allocation"
    assert regressions.load(path) == crash.data
    assert regressions.files_of(tmp_path) == [path]
    assert regressions.problem_of(TARGETS["allocation"], crash.data).startswith("memory")


@pytest.mark.long
def test_the_command_shows_how_to_repeat_a_crash(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "campaign", "fuzz", "key-error", "--seed", "1"]
    command += ["--count", "900", "--registry", "tests.campaign.fuzz.planted"]
    done = subprocess.run(
        [*command, "--corpus", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "python -m campaign fuzz key-error --seed 1" in done.stdout
    assert len(regressions.files_of(tmp_path)) == 1
