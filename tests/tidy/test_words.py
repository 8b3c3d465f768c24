"""Names say what the field says, and planted ones that do not are found."""

import pytest

from tests.tidy import words
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


@pytest.fixture(scope="module")
def product(all_sources: list[Source]) -> list[Source]:
    """Return the files of the product."""
    return [source for source in all_sources if source.is_in(*PACKAGES)]


def test_imports_keep_no_other_names(all_sources: list[Source]) -> None:
    sources = [source for source in all_sources if source.is_in(*PACKAGES, "tests")]
    found = [str(one) for source in sources for one in words.kept_names(source)]
    assert not found, "\n".join(["", *found])


def test_class_names_are_unique_in_the_product(product: list[Source]) -> None:
    found = [str(one) for one in words.shared_classes(product)]
    assert not found, "\n".join(["", *found])


def test_identifiers_have_no_invented_words(all_sources: list[Source]) -> None:
    """Left out: the programs around the official clients, which have lanes in five languages."""
    found = [
        str(one)
        for source in all_sources
        if source.is_in(*PACKAGES, "tests") and not source.path.startswith("tests/compat/official/")
        for one in words.invented_words(source)
    ]
    assert not found, "\n".join(["", *found])


def test_modules_are_nouns(product: list[Source]) -> None:
    found = [str(one) for source in product for one in words.gerunds(source.path)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    "text",
    [
        "from store.store import Store as Engine\n",
        "import raft.core as core_of_raft\n",
        "def f():\n    from node.node import Node as Running\n",
        "from store.record import tail as ends\n",
        "from store import errors as fmt\n",
    ],
)
def test_a_planted_kept_name_is_found(text: str) -> None:
    assert [one.rule for one in words.kept_names(Source.parse("node/a.py", text))] == ["kept-name"]


@pytest.mark.parametrize(
    "text",
    [
        "from store import format as fmt\n",
        "from quorumlog.pb import log_pb2 as pb\n",
        "from raft import errors as raft_errors\n",
        "from node.errors import groups as group_errors\n",
        "from quorumlog.produce import producer as async_producer\n",
        "from raft.messages import Entry\nfrom store.ledger.entry import Entry as Stored\n",
        "from quorumlog.client import Client as Client\n",
        "from pipeline.jobs.audit import audit as run\n\n\ndef audit():\n    run()\n",
    ],
)
def test_a_name_with_a_reason_is_left_alone(text: str) -> None:
    assert list(words.kept_names(Source.parse("node/a.py", text))) == []


CLASS = "class Gate:\n    pass\n"
ERROR = "class BusyError(Exception):\n    pass\n"


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("node/a.py", "node/b.py", CLASS),
        ("node/a.py", "chaos-tests/chaos/b.py", CLASS),
        ("quorumlog/a.py", "quorumlog/b.py", CLASS),
        ("node/a.py", "node/b.py", ERROR),
    ],
)
def test_a_planted_second_class_is_found(one: str, other: str, text: str) -> None:
    found = words.shared_classes([Source.parse(one, text), Source.parse(other, text)])
    assert [(finding.path, finding.rule) for finding in found] == [(other, "shared-class")]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("quorumlog/a.py", "quorumlog/sync/a.py", CLASS),
        ("node/a.py", "raft/b.py", ERROR),
        ("node/a.py", "node/b.py", CLASS.replace("Gate", "_Gate")),
        ("store/a.py", "quorumlog/b.py", CLASS.replace("Gate", "Message")),
    ],
)
def test_a_second_class_with_a_reason_is_left_alone(one: str, other: str, text: str) -> None:
    found = words.shared_classes([Source.parse(one, text), Source.parse(other, text)])
    assert list(found) == []


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


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("node/settling.py", True),
        ("node/handing/a.py", True),
        ("node/state_saving.py", True),
        ("store/opening.py", False),
        ("node/pending_calls.py", False),
        ("node/settings.py", False),
    ],
)
def test_a_planted_gerund_is_found(path: str, is_found: bool) -> None:
    assert bool(list(words.gerunds(path))) == is_found
