"""Documents name what exists, and what exists is documented; planted violations are found."""

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator

import pytest

import node
import raft
import store
from node.config.settings import Settings
from node.config.types import Peer
from node.errors.common import NodeError
from node.metrics import METRICS
from node.monitoring.metric import PREFIX, counter, gauge
from node.replication.ha.core.types import HaError
from qlog import main
from raft.errors import RaftError
from store.errors import StoreError
from tests.tidy import documents, repository
from tests.tidy.checks import Finding, Source

WRITTEN = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "chaos-tests/README.md",
    "docs/alerts.md",
    "docs/client.md",
    "docs/divergence.md",
    "docs/format.md",
    "docs/guarantees.md",
    "docs/operations.md",
    "docs/start.md",
    "docs/threat-model.md",
    "docs/three-machines.md",
    "docs/upgrading.md",
    "docs/words.md",
]
DECISIONS = "docs/decisions/"
INTERNAL = "node.internal"
"""What a node says of an error that has no class of its own."""
ENGINE_ALONE = {"flush_timeout_ms"}
"""What a document may name although it is a setting of the store as a library only."""


def text(name: str) -> str:
    """Read a document."""
    content = repository.text(name)
    assert content is not None, name
    return content


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.fixture(scope="module")
def codes() -> set[str]:
    """The code of every error class of the server, wherever it is defined."""
    for package in (node, store, raft):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
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
    assert not [code for code in codes if f"`{code}`" not in pages]


def test_pages_fit_a_terminal() -> None:
    pages = [name for name in repository.files() if re.fullmatch(r"docs/[\w-]+\.md", name)]
    pages += ["README.md", "CHANGELOG.md"]
    found = [str(one) for name in pages for one in documents.wide_lines(name, text(name))]
    found += [
        f"{name}: {line}"
        for name in ("README.md", "docs/threat-model.md")
        for line in text(name).splitlines()
        if line.startswith("|") and len(line) > documents.PROSE_COLUMNS
    ]
    assert not found, "\n".join(["", *found])


def test_planted_wide_lines_are_found() -> None:
    code, prose = "x" * 81, "x" * 101
    page = f"{code}\n{prose}\n| {prose}\n# {prose}\n  ```\n  {code[3:]}\n{code}\n  ```\n{code}\n"
    assert [one.line for one in documents.wide_lines("a.md", page)] == [2, 7]


def test_every_decision_is_in_the_index() -> None:
    names = [
        name.removeprefix(DECISIONS)
        for name in repository.files()
        if name.startswith(f"{DECISIONS}0")
    ]
    index = text(f"{DECISIONS}README.md")
    assert names
    assert [name for name in names if f"]({name})" not in index] == []


@pytest.fixture(scope="module")
def settings() -> set[str]:
    """Keys of a node's file."""
    return {*Settings.model_fields, *Peer.model_fields}


@pytest.fixture(scope="module")
def shown(all_sources: list[Source]) -> set[str]:
    """What programs and people meet besides: names of the SDK, keys that commands print."""
    words = set(re.findall(r"\w+", text("docs/cli.md")))
    for source in all_sources:
        if re.fullmatch(r"quorumlog/(?!pb/)[\w/]+\.py", source.path):
            for part in source.nodes:
                if isinstance(part, ast.arg):
                    words.add(part.arg)
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    words.add(part.target.id)
    return words


@pytest.mark.parametrize("name", WRITTEN)
def test_names_in_documents_exist(
    name: str, codes: set[str], settings: set[str], shown: set[str]
) -> None:
    metrics = set(re.findall(r"^\| `(quorumlog_\w+)`", text("docs/metrics.md"), re.M))
    assert len(metrics) > 50
    labels = documents.shown_metrics(METRICS, PREFIX)
    findings = [
        *documents.unknown_codes(name, text(name), codes | {INTERNAL}),
        *documents.unknown_metrics(name, text(name), {*metrics, "quorumlog_cluster"}),  # A fixture.
        *documents.unknown_labels(name, text(name), labels),
        *documents.unknown_settings(name, text(name), settings, shown | ENGINE_ALONE),
        *documents.wrong_commands(name, text(name), main),
    ]
    assert not findings, "\n".join(["", *map(str, findings)])


DOCUMENTS = [n for n in repository.files() if n in WRITTEN or re.fullmatch(r"docs/.*\.md", n)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_names_of_files_lead_to_one_file(name: str) -> None:
    findings = list(documents.unclear_files(name, text(name), repository.files()))
    assert not findings, "\n".join(["", *map(str, findings)])


def test_layers_of_the_architecture_are_those_of_the_contracts() -> None:
    settings = tomllib.loads(text("pyproject.toml"))
    contracts = {
        contract.get("containers", ["house"])[0]: contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "." not in contract.get("containers", ["house"])[0]
    }
    packages = {"house", "node", "store", "raft", "quorumlog", "simulation"}
    assert contracts.keys() == packages
    page = "ARCHITECTURE.md"
    findings = list(documents.wrong_layers(page, text(page), contracts))
    assert not findings, "\n".join(["", *map(str, findings)])


def test_links_to_sections_lead_there() -> None:
    texts = {name: text(name) for name in repository.files() if name.endswith(".md")}
    findings = [x for name in texts for x in documents.missing_anchors(name, texts[name], texts)]
    assert not findings, "\n".join(["", *map(str, findings)])


def test_tests_of_the_threat_model_exist(all_sources: list[Source]) -> None:
    """An item without a test is a hope."""
    tests = {}
    for source in all_sources:
        if re.fullmatch(r"tests/.*test_\w+\.py", source.path):
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            tests[source.path] = {part.name for part in source.nodes if isinstance(part, functions)}
    assert len(tests) > 100
    page = "docs/threat-model.md"
    findings = list(documents.wrong_tests(page, text(page), tests))
    assert not findings, "\n".join(["", *map(str, findings)])


def details(findings: Iterator[Finding]) -> list[str]:
    return [finding.detail for finding in findings]


def test_planted_names_are_found() -> None:
    codes = documents.unknown_codes("a.md", "`node.a` `node.b` `node.json`", {"node.a"})
    assert details(codes) == ["node.b"]
    text = "quorumlog_term quorumlog_x 1"
    metrics = documents.unknown_metrics("a.md", text, {"quorumlog_term"})
    assert details(metrics) == ["quorumlog_x"]


def test_a_planted_file_that_is_none_or_two_is_found() -> None:
    files = {"node/lifecycle.py", "node/ha/log.py", "store/log.py", "a-b/log.py", "a/x.txt"}
    text = (
        "`lifecycle.py` `node/lifecycle.py` `raft/lifecycle.py` `ifecycle.py`\n"
        "log.py or (ha/log.py), a-b/log.py, b/log.py and ./log.py: `x.txt` `z.txt` z.txt\n"
        "```\npython life*.py store/log.py::test\n```\n"
    )
    problems = [*documents.unclear_files("a.md", text, files)]
    assert [(f.line, f.detail) for f in problems] == [
        (1, "raft/lifecycle.py is no file"),
        (1, "ifecycle.py is no file"),
        (2, "log.py may be a-b/log.py or node/ha/log.py or store/log.py"),
        (2, "b/log.py is no file"),
        (2, "./log.py is no file"),
        (2, "z.txt is no file"),
        (4, "life*.py is no file"),
    ]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (["a | b   two", "c  one", "d  x"], []),
        (["c  one", "a | b  two", "d  x"], [(4, "p has a | b here, the document c")]),
        (["a | b  two", "c  one"], [(6, "p has d here, the document nothing")]),
        (["a | b  x", "c  y", "d  z", "e  x"], [(7, "p has nothing here, the document e")]),
        (["a  b  x", "c  y", "d  z"], [(4, "p has a | b here, the document a")]),
        (["a | b  two", "c", "d  x"], [(5, "not a word on p c")]),
        ([], [(4, "p has a | b here, the document nothing")]),
    ],
)
def test_planted_layers_in_another_order_are_found(
    rows: list[str], found: list[tuple[int, str]]
) -> None:
    block = "".join(f"  {row}\n" for row in rows)
    contracts = {"p": ["a | b", "c", "d"]}
    findings = documents.wrong_layers("a.md", f"p/\n```\np/\n{block}```\n", contracts)
    assert [(f.line, f.detail) for f in findings] == found


def test_a_planted_lack_of_layers_is_found() -> None:
    findings = documents.wrong_layers("a.md", "```\np/\n  a  x\n```\n", {"p": ["a"], "q": ["a"]})
    assert details(findings) == ["no list of the layers of q"]


def test_a_planted_link_to_no_section_is_found() -> None:
    texts = {"docs/a.md": "# One\n## At 3 a.m., `x`\n", "b.md": "## Two\n"}
    text = "[x](#one) [x](#at-3-am-x) [x](../b.md#two) [x](c.md#x) [x](#two)\n[x](../b.md#one)"
    problems = [*documents.missing_anchors("docs/a.md", text, texts)]
    assert [(f.line, f.detail) for f in problems] == [(1, "#two"), (2, "../b.md#one")]


def test_a_planted_item_without_a_test_is_found() -> None:
    items = (
        "- **a**: `tests/a.py`\n  `test_x` `test_y`.\n- **c**: d.\n- e\n- **f**: `tests/b.py` `x`\n"
    )
    problems = [*documents.wrong_tests("a.md", items, {"tests/a.py": {"test_x"}})]
    assert [(f.line, f.detail) for f in problems] == [
        (1, "tests/a.py::test_y"),
        (3, "no test"),
        (5, "tests/b.py::x"),
    ]


def test_planted_labels_are_found() -> None:
    line = 'a\nquorumlog_a_total{x="1", instance="i"} quorumlog_b{x=~"2",le="1"} quorumlog_c{y="1"}'
    specs = {"a": counter("", len, "x"), "b": gauge("", len, "y")}
    problems = [*documents.unknown_labels("a.md", line, documents.shown_metrics(specs, PREFIX))]
    assert [(f.line, f.detail) for f in problems] == [(2, "quorumlog_b{x}"), (2, "quorumlog_c{y}")]


def test_planted_settings_are_found() -> None:
    prose = "`a_ms` `b_ms = 1` `c_bytes=2` `d_ratio` `quorumlog_x_bytes` e_ms `f`\n"
    block = "```toml\na_ms = 1\n# g_ms = 1\n[peers.1]\ng = 2\n```\n```\nh = 1\n```\n"
    problems = [*documents.unknown_settings("a.md", prose + block, {"a_ms"}, {"d_ratio"})]
    assert [(f.line, f.detail) for f in problems] == [(1, "b_ms"), (1, "c_bytes"), (6, "g")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("qlog topic create a --queues 4", []),
        ("echo x | qlog produce a -f - && qlog local stop  # --why", []),
        ("$ qlog cluster status --server a:1", []),
        ("qlog topic make a", ["qlog topic has no command make"]),
        ("echo x | qlog produce a --kye k", ["qlog produce has no option --kye"]),
        ("qlog nothing", ["qlog has no command nothing"]),
        ("see --key", []),
    ],
)
def test_a_planted_wrong_command_is_found(line: str, found: list[str]) -> None:
    text = f"qlog in prose\n```\n{line}\n```\n"
    assert details(documents.wrong_commands("a.md", text, main)) == found
