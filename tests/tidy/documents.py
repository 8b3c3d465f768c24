"""The rules for documents as pure functions: names in them exist, and what exists is named.

Owns what each rule means. Must not read files or know which documents there are; test_documents.py
does, and plants a violation of each.
"""

import re
import shlex
from collections.abc import Collection, Iterator

import click

from tests.tidy.checks import Finding

_CODE = re.compile(r"`((?:node|store|raft|nameserver)\.[a-z_]+)`")
_METRIC = re.compile(r"\bquorumlog_[a-z_]+\b")
_FILE = re.compile(r"`([\w/]+\.(?:py|txt))`")
_FILE_NAMES = ("py", "json", "toml")


def unnamed(names: Collection[str], documents: str, rule: str) -> Iterator[Finding]:
    """Find names that no document mentions in backticks."""
    for name in sorted(names):
        if f"`{name}`" not in documents:
            yield Finding(name, 0, rule, "no document names it")


def unknown_codes(path: str, text: str, codes: Collection[str]) -> Iterator[Finding]:
    """Find error codes that nothing raises."""
    for number, line in enumerate(text.splitlines(), 1):
        for code in _CODE.findall(line):
            if code.rpartition(".")[2] not in _FILE_NAMES and code not in codes:
                yield Finding(path, number, "error-code", code)


def unknown_metrics(path: str, text: str, metrics: Collection[str]) -> Iterator[Finding]:
    """Find metrics that no node shows."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in _METRIC.findall(line):
            if name not in metrics:
                yield Finding(path, number, "metric", name)


def unknown_files(path: str, text: str, files: Collection[str]) -> Iterator[Finding]:
    """Find names of source files that end no path of the repository."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in _FILE.findall(line):
            if not any(f"/{file}".endswith(f"/{name}") for file in files):
                yield Finding(path, number, "file", name)


def wrong_commands(path: str, text: str, main: click.Group) -> Iterator[Finding]:
    """Find lines in code blocks that call `qlog` with a command or an option it does not have."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            for part in re.split(r"[|;&]+ *|^\$ ", line):
                if part.startswith("qlog "):
                    for detail in _wrong_words(shlex.split(part, comments=True)[1:], main):
                        yield Finding(path, number, "command", detail)


def _wrong_words(words: list[str], main: click.Group) -> Iterator[str]:
    command: click.Command = main
    path = "qlog"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        if found is None:
            yield f"{path} has no command {words[0]}"
            return
        command, path, words = found, f"{path} {words[0]}", words[1:]
    known = {"--help"} | {name for option in command.params for name in option.opts}
    known |= {name for option in command.params for name in option.secondary_opts}
    for word in words:
        if re.match("--?[a-z]", word) and word.split("=")[0] not in known:
            yield f"{path} has no option {word}"
