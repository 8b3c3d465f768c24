"""Every target keeps its claim, and inputs that once broke one do so no more."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.search import inputs
from tests.fuzz.target import FuzzTarget
from tests.fuzz.targets import TARGETS
from tests.seeds import examples

ALL = [pytest.param(target, id=target.name) for target in TARGETS.values()]
FILES = sorted(CORPUS.glob("*/*.hex"))
NOTHING_ACCEPTED = {"rmq-access"}
"""Targets that accept no input at all."""


@pytest.mark.parametrize("target", ALL)
def test_a_target_keeps_its_claim(target: FuzzTarget) -> None:
    assert run_examples(target) or target.name in NOTHING_ACCEPTED

    @settings(max_examples=examples(200))
    @given(inputs(target))
    def keeps_its_claim(data: bytes) -> None:
        target.check(data)

    keeps_its_claim()


def run_examples(target: FuzzTarget) -> int:
    """Return how many examples are accepted. Caches of a parser are filled then."""
    accepted = 0
    for data in target.examples(Random(3)):
        try:
            target.run(data)
        except target.errors:
            continue
        accepted += 1
    return accepted


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_input_that_once_broke_a_claim_does_not(path: Path) -> None:
    target = TARGETS[path.parent.name]
    run_examples(target)
    target.check(bytes.fromhex(path.read_text("ascii")))
