"""Docstrings name the component that does something, and planted riddles are found."""

import pytest

from tests.tidy import english
from tests.tidy.checks import Source

PACKAGES = (
    "raft",
    "store",
    "node",
    "quorumlog",
    "pipeline",
    "deploy",
    "bench",
    "campaign",
    "chaos-tests",
)


def test_no_docstring_is_a_riddle(all_sources: list[Source]) -> None:
    findings: list[str] = []
    for source in all_sources:
        if source.is_in(*PACKAGES):
            findings += map(str, english.riddles(source))
    assert not findings, "\n".join(["", *findings])


def test_docstrings_of_yes_or_no_have_one_form(all_sources: list[Source]) -> None:
    found = [str(one) for source in all_sources for one in english.other_booleans(source)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Whether it waits.", 0),
        ("Wait; return whether it was in vain.", 0),
        ("Check if it waits.", 1),
        ("Return whether it waits.", 1),
        ("Say whether it waits.", 1),
        ("True when it waits.", 1),
    ],
)
def test_another_form_of_yes_or_no_is_found(text: str, count: int) -> None:
    source = Source.parse("node/a.py", f'async def a():\n    """{text}"""')
    assert len(list(english.other_booleans(source))) == count


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What a node keeps."""', "opening"),
        ('class A:\n    """Those that wait."""', "opening"),
        ('def a():\n    """It waits."""', "opening"),
        ('async def a():\n    """Nobody is asked."""', "opening"),
        ('class A:\n    a = 1\n    """Who leads."""', "opening"),
        ('def a():\n    """Return the last number that somebody claimed."""', "person"),
        ('"""A client and his node."""', "person"),
    ],
)
def test_a_planted_riddle_is_found(source: str, rule: str) -> None:
    assert rule in [finding.rule for finding in english.riddles(Source.parse("a.py", source))]


@pytest.mark.parametrize(
    "source",
    [
        '"""The follower drops what it has."""',
        'def a():\n    """Whether the node leads."""\n    return "Nobody leads"',
        '@cli.command()\ndef a():\n    """What a reader sees as help."""',
        "a = 1  # Whoever reads this.",
    ],
)
def test_plain_sentences_messages_and_help_are_left_alone(source: str) -> None:
    assert list(english.riddles(Source.parse("a.py", source))) == []
