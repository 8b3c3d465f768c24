"""The rules for documents as pure functions: names in them exist, and what exists is named.

Owns what each rule means. Must not read files or know which documents there are; test_documents.py
does, and plants a violation of each.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import click

from node.monitoring.metric import Spec
from tests.tidy.checks import Finding

_CODE = re.compile(r"`((?:node|store|raft|nameserver)\.[a-z_]+)`")
_METRIC = re.compile(r"\bquorumlog_[a-z_]+\b")
_SERIES = re.compile(r"\b(quorumlog_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+) *=")
_NAME_WITH_UNIT = re.compile(
    r"`(?!quorumlog_|test_)([a-z][a-z0-9_]*_(?:ms|bytes|ratio|max|min|limit|file))(?: ?= ?[^`]*)?`"
)
_TOML_KEY = re.compile(r"^([a-z_]+) = ", re.MULTILINE)
_ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
_FILE = re.compile(r"(?<![\w./*-])((?:[\w.-]+/)*[\w*-]+\.py)\b|`([\w/]+\.txt)`")
_LAYERS = re.compile(r"^```\n([a-z]+)/\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADED_ITEM = re.compile(r"^- \*\*.*\n(?:  .*\n)*", re.MULTILINE)
_TESTS = re.compile(r"`(tests/[\w/]+\.py)`((?:\s+`\w+`)+)")
_FILE_NAMES = ("py", "json", "toml")
_CODE_COLUMNS = 80
"""Of a terminal that shows a page, and of one where its lines are typed."""
PROSE_COLUMNS = 100


def wide_lines(path: str, text: str) -> Iterator[Finding]:
    """Find lines of code and of prose that are too wide; tables and headings have no limit."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        limit = _CODE_COLUMNS if is_code else PROSE_COLUMNS
        if len(line) > limit and (is_code or not line.startswith(("|", "#"))):
            yield Finding(path, number, "width", f"{len(line)} > {limit}")


def unknown_codes(path: str, text: str, codes: Collection[str]) -> Iterator[Finding]:
    """Find error codes that nothing raises."""
    for finding in _unknown(path, text, _CODE, codes, "error-code"):
        if finding.detail.rpartition(".")[2] not in _FILE_NAMES:
            yield finding


def unknown_metrics(path: str, text: str, metrics: Collection[str]) -> Iterator[Finding]:
    """Find metrics that no node shows."""
    yield from _unknown(path, text, _METRIC, metrics, "metric")


def _unknown(
    path: str, text: str, pattern: re.Pattern[str], names: Collection[str], rule: str
) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        for name in pattern.findall(line):
            if name not in names:
                yield Finding(path, number, rule, name)


def shown_metrics(specs: Mapping[str, Spec[Any]], prefix: str) -> dict[str, tuple[str, ...]]:
    """Return the names that Prometheus shows of these metrics, each with its labels."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {
        prefix + name + suffix: spec.labels
        for name, spec in specs.items()
        for suffix in suffixes.get(spec.kind, ("",))
    }


def unknown_labels(
    path: str, text: str, metrics: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """Find labels that a metric does not have; `job` and `instance` are those of Prometheus."""
    for series in _SERIES.finditer(text):
        name, number = series[1], text.count("\n", 0, series.start()) + 1
        labels = {"job", "instance", "le", *metrics.get(name, ())}
        for label in _LABEL.findall(series[2]):
            if label not in labels:
                yield Finding(path, number, "label", f"{name}{{{label}}}")


def unknown_settings(
    path: str, text: str, settings: Collection[str], others: Collection[str]
) -> Iterator[Finding]:
    """Find names with a unit that are no setting of a node and nothing else that people meet, and
    keys in blocks of TOML that are no setting."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in _NAME_WITH_UNIT.findall(line):
            if name not in settings and name not in others:
                yield Finding(path, number, "setting", name)
    for block in re.finditer(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for key in _TOML_KEY.finditer(block[1]):
            if key[1] not in settings:
                at = text.count("\n", 0, block.start(1) + key.start()) + 1
                yield Finding(path, at, "setting", key[1])


def unclear_files(path: str, text: str, files: Collection[str]) -> Iterator[Finding]:
    """Find names of source files, in prose or code, that do not end exactly one path of the
    repository: a reader cannot tell which file is meant."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in map("".join, _FILE.findall(line)):
            meant = [file for file in files if f"/{file}".endswith(f"/{name}")]
            if not meant:
                yield Finding(path, number, "file", f"{name} is no file")
            elif len(meant) > 1:
                yield Finding(path, number, "file", f"{name} may be {' or '.join(sorted(meant))}")


def wrong_layers(path: str, text: str, contracts: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Find packages whose layers a document does not list as their contract does.

    Such a list is a block of code: the package with a slash, then each layer in the words and the
    order of the contract, and what lives there behind two spaces or more.
    """
    listed = {block[1]: block for block in _LAYERS.finditer(text)}
    for package, layers in contracts.items():
        block = listed.get(package)
        if block is None:
            yield Finding(path, 0, "layers", f"no list of the layers of {package}")
            continue
        first = text.count("\n", 0, block.start(2)) + 1
        rows = [re.split(" {2,}", line.strip(), maxsplit=1) for line in block[2].splitlines()]
        for at, (row, layer) in enumerate(zip_longest(rows, layers, fillvalue=None)):
            if row is None or layer is None or row[0] != layer:
                written = "nothing" if row is None else row[0]
                detail = f"{package} has {layer or 'nothing'} here, the document {written}"
                yield Finding(path, first + at, "layers", detail)
                break
            if len(row) < 2:
                yield Finding(path, first + at, "layers", f"not a word on {package} {layer}")


def missing_anchors(path: str, text: str, texts: Mapping[str, str]) -> Iterator[Finding]:
    """Find links to a section of one of these documents that it does not have."""
    for number, line in enumerate(text.splitlines(), 1):
        for file, anchor in _ANCHOR.findall(line):
            base = posixpath.dirname(path)
            target = posixpath.normpath(posixpath.join(base, file)) if file else path
            if target in texts and anchor not in _anchors_of(texts[target]):
                yield Finding(path, number, "anchor", f"{file}#{anchor}")


def _anchors_of(text: str) -> set[str]:
    """Return the names that GitHub gives to headings."""
    heads = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def wrong_commands(path: str, text: str, main: click.Group) -> Iterator[Finding]:
    """Find lines in code blocks that call `qlog` with a command or an option it does not have."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            for part in re.split(r"[|;&]+ *|^\$ ", line):
                if part.startswith("qlog "):
                    for detail in _wrong_words(
                        shlex.split(part.rstrip("\\"), comments=True)[1:], main
                    ):
                        yield Finding(path, number, "command", detail)


def _wrong_words(words: list[str], main: click.Group) -> Iterator[str]:
    command: click.Command = main
    path = "qlog"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        subcommand = command.get_command(context, words[0])
        if subcommand is None:
            yield f"{path} has no command {words[0]}"
            return
        command, path, words = subcommand, f"{path} {words[0]}", words[1:]
    options = {"--help"} | {name for option in command.params for name in option.opts}
    options |= {name for option in command.params for name in option.secondary_opts}
    for word in words:
        if re.match("--?[a-z]", word) and word.split("=")[0] not in options:
            yield f"{path} has no option {word}"


def wrong_tests(path: str, text: str, tests: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Find items with a bold head that name no test, or one that is not there: a file, then
    functions of it, each as code. `tests` has the functions of each file of tests."""
    for item in _HEADED_ITEM.finditer(text):
        number = text.count("\n", 0, item.start()) + 1
        named = _TESTS.findall(item[0])
        if not named:
            yield Finding(path, number, "test", "no test")
        for file, names in named:
            for name in re.findall(r"\w+", names):
                if name not in tests.get(file, ()):
                    yield Finding(path, number, "test", f"{file}::{name}")
