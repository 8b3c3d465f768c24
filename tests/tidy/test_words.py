"""Identifiers have no invented words, sentences no vague phrases, and planted ones are found."""

import pytest

from tests.tidy import repository, words
from tests.tidy.checks import Source

TEXTS = (".py", ".md", ".proto", ".yml", ".toml")
RECORDS = ("tests/", "docs/decisions/", "bench/results/")
"""Tests, and what was written at a time and stays as it is."""
STORED = "; built anew since"
"""Part of a text that nodes have stored and compare."""


def test_identifiers_have_no_invented_words(all_sources: list[Source]) -> None:
    product = [source for source in all_sources if not source.is_in("tests")]
    problems = [str(one) for source in product for one in words.invented_words(source)]
    assert not problems, "\n".join(["", *problems])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("node/upkeep.py", ""),
        ("node/a.py", "class HaIntake:\n    pass\n"),
        ("node/a.py", "def check_alike():\n    pass\n"),
        ("node/a.py", "def f(rider):\n    pass\n"),
        ("node/a.py", "HEARD_MS = 1\n"),
        ("node/a.py", "self._lanes = {}\n"),
    ],
)
def test_a_planted_invented_word_is_found(path: str, text: str) -> None:
    problems = words.invented_words(Source.parse(path, text))
    assert [one.rule for one in problems] == ["invented-word"]


def test_parameters_and_attributes_are_nouns(all_sources: list[Source]) -> None:
    product = [source for source in all_sources if not source.is_in("tests")]
    findings = [str(finding) for source in product for finding in words.participles(source)]
    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(
    "text",
    [
        "def report(told):\n    pass\n",
        "key = lambda one: one.key\n",
        "self._met = set()\n",
        "class Answer:\n    found: int\n",
    ],
)
def test_a_planted_participle_is_found(text: str) -> None:
    findings = words.participles(Source.parse("node/a.py", text))
    assert [finding.rule for finding in findings] == ["participle"]


def test_words_of_users_are_left_alone() -> None:
    text = '"""Nothing was heard."""\nprint("a picture")  # Of all lanes.\nplanet = request.lane\n'
    assert list(words.invented_words(Source.parse("node/a.py", text))) == []


def test_no_sentence_hides_its_actor() -> None:
    problems = []
    for name in repository.files():
        if name.endswith(TEXTS) and not name.startswith(RECORDS):
            text = (repository.text(name) or "").replace(STORED, "")
            problems += [str(one) for one in words.vague_phrases(name, text)]
    assert not problems, "\n".join(["", *problems])


def test_a_planted_vague_phrase_is_found() -> None:
    text = "A node recovers.\nNobody leads.\n# It retries by\n# itself, and is told.\n"
    problems = words.vague_phrases("docs/a.md", text)
    assert [(one.rule, one.line) for one in problems] == [
        ("vague-phrase", 2),
        ("vague-phrase", 3),
        ("vague-phrase", 4),
    ]
