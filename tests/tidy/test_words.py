"""Identifiers have no invented words, and planted ones are found."""

import pytest

from tests.tidy import words
from tests.tidy.checks import Source

PACKAGES = ("raft", "store", "node", "quorumlog", "pipeline", "deploy", "bench", "chaos-tests")


def test_identifiers_have_no_invented_words(all_sources: list[Source]) -> None:
    product = [source for source in all_sources if source.is_in(*PACKAGES)]
    found = [str(one) for source in product for one in words.invented_words(source)]
    assert not found, "\n".join(["", *found])


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
    found = words.invented_words(Source.parse(path, text))
    assert [one.rule for one in found] == ["invented-word"]


def test_words_of_users_are_left_alone() -> None:
    text = '"""Nothing was heard."""\nprint("a picture")  # Of all lanes.\nplanet = request.lane\n'
    assert list(words.invented_words(Source.parse("node/a.py", text))) == []
