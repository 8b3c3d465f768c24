"""Documents name what exists, and what exists is documented; planted violations are found."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import node
import raft
import store
from node.errors import NodeError
from node.ha.types import HaError
from quorumlog.cli import main
from raft.errors import RaftError
from store.errors import StoreError
from tests.tidy import documents, repository
from tests.tidy.checks import Finding

WRITTEN = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/client.md",
    "docs/divergence.md",
    "docs/format.md",
    "docs/guarantees.md",
    "docs/operations.md",
]
DECISIONS = "docs/decisions/"
INTERNAL = "node.internal"
"""What a node says of an error that has no class of its own."""


def text(name: str) -> str:
    """Read a document."""
    found = repository.text(name)
    assert found is not None, name
    return found


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.fixture(scope="module")
def codes() -> set[str]:
    """The code of every error class of the server, wherever it is defined."""
    for package in (node, store, raft):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".simulator" not in module.name:
                importlib.import_module(module.name)
    return {
        str(kind.__dict__["code"])
        for root in (NodeError, StoreError, RaftError, HaError)
        for kind in subclasses(root)
        if "code" in kind.__dict__
    }


def test_every_error_code_is_documented(codes: set[str]) -> None:
    """Those of calls on the generated page, those of logs and exits in operations."""
    pages = text("docs/errors.md") + text("docs/operations.md")
    assert len(codes) > 50
    assert not list(documents.unnamed(codes, pages, "error-code"))


def test_every_decision_is_in_the_index() -> None:
    names = [
        name.removeprefix(DECISIONS)
        for name in repository.files()
        if name.startswith(f"{DECISIONS}0")
    ]
    index = text(f"{DECISIONS}README.md")
    assert names
    assert [name for name in names if f"]({name})" not in index] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_names_in_documents_exist(name: str, codes: set[str]) -> None:
    metrics = set(re.findall(r"^\| `(quorumlog_\w+)`", text("docs/metrics.md"), re.M))
    assert len(metrics) > 50
    findings = [
        *documents.unknown_codes(name, text(name), codes | {INTERNAL}),
        *documents.unknown_metrics(name, text(name), metrics),
        *documents.unknown_files(name, text(name), repository.files()),
        *documents.wrong_commands(name, text(name), main),
    ]
    assert not findings, "\n".join(["", *map(str, findings)])


def details(findings: Iterator[Finding]) -> list[str]:
    return [finding.detail for finding in findings]


def test_planted_names_are_found() -> None:
    assert [f.path for f in documents.unnamed({"a", "b"}, "`a` and b", "x")] == ["b"]
    assert details(
        documents.unknown_codes("a.md", "`node.a` `node.b` `node.json`", {"node.a"})
    ) == ["node.b"]
    metrics = {"quorumlog_term"}
    assert details(documents.unknown_metrics("a.md", "quorumlog_term quorumlog_x 1", metrics)) == [
        "quorumlog_x"
    ]
    files = {"node/driver.py", "store/flush.py"}
    line = "`driver.py` `node/driver.py` `raft/driver.py` `iver.py`"
    assert details(documents.unknown_files("a.md", line, files)) == ["raft/driver.py", "iver.py"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("qlog topic create a --queues 4", []),
        ("echo x | qlog produce a -f - && qlog local stop  # --why", []),
        ("$ qlog cluster status --server a:1", []),
        ("qlog topic make a", ["qlog topic has no command make"]),
        ("echo x | qlog produce a --key k", ["qlog produce has no option --key"]),
        ("qlog nothing", ["qlog has no command nothing"]),
        ("see --key", []),
    ],
)
def test_a_planted_wrong_command_is_found(line: str, found: list[str]) -> None:
    text = f"qlog in prose\n```\n{line}\n```\n"
    assert details(documents.wrong_commands("a.md", text, main)) == found
