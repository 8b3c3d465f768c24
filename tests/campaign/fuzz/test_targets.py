"""Every target runs, its examples are good, and inputs that once broke it do so no more."""

from pathlib import Path
from random import Random

import pytest

from campaign.fuzz.engine import FuzzRun
from campaign.fuzz.regressions import CORPUS, files_of, load, problem_of
from campaign.fuzz.target import FuzzTarget
from campaign.fuzz.targets import TARGETS

ALL = [pytest.param(target, id=target.name) for target in TARGETS.values()]
NOTHING_ACCEPTED = {"rmq-access"}
"""Targets that accept no input at all."""


@pytest.mark.long
@pytest.mark.parametrize("target", ALL)
def test_a_short_run_finds_nothing(target: FuzzTarget) -> None:
    report = FuzzRun(target, 1).run(150)
    assert [(crash.kind, crash.detail) for crash in report.crashes] == []
    assert report.input_count == 150
    assert report.edge_count > 3
    assert bool(report.accepted_count) == (target.name not in NOTHING_ACCEPTED)


@pytest.mark.parametrize("target", ALL)
def test_some_examples_are_accepted(target: FuzzTarget) -> None:
    accepted = 0
    for data in target.examples(Random(3)):
        try:
            target.run(data)
        except target.errors:
            continue
        accepted += 1
    assert bool(accepted) == (target.name not in NOTHING_ACCEPTED)


@pytest.mark.parametrize("path", files_of(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_input_that_once_broke_a_claim_does_not(path: Path) -> None:
    assert problem_of(TARGETS[path.parent.name], load(path)) == ""


def test_every_folder_of_the_corpus_is_that_of_a_target() -> None:
    assert {path.parent.name for path in files_of()} <= TARGETS.keys()
    assert CORPUS.is_dir()


def test_every_target_states_a_claim() -> None:
    for name, target in TARGETS.items():
        assert name == target.name
        assert len(target.states) > 20
        assert target.modules
