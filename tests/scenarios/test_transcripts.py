"""Runs every transcript of this directory and compares what happens with what it says.

`python -m pytest tests/scenarios --rewrite` writes what happens now. A transcript that blesses a
bug is worse than none: read the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.language import Transcript, render

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))
REQUIRED = {
    "vote_crash_restart",
    "delayed_truncate",
    "reordered_append",
    "divergent_tail_empty_append",
    "figure8",
    "same_leader_twice",
    "append_aba",
    "prevote_checkquorum",
    "isolated_node_returns",
    "two_leaders_two_changes",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    happened = Transcript().run(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(happened)
        return
    assert happened == text, f"{path.name}: run with --rewrite and read the diff"


def test_the_transcripts_that_rules_name_exist() -> None:
    assert {path.stem for path in FILES} >= REQUIRED
    assert len(FILES) >= 60


def test_a_wrong_expectation_fails() -> None:
    text = render([("# x", ["cluster voters=1", "tick 1 count=20", "log 1"], ["1 nonsense"])])
    assert Transcript().run(text) != text


@pytest.mark.parametrize("line", ["dance", "tick", "propose 9 x", "cut 1"])
def test_unknown_commands_are_errors(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        Transcript().run(render([("", ["cluster voters=1,2", line], [])]))
