"""The style rules of the project that ruff does not have, as pure functions: text in, findings out.

Owns what each rule means. Must not read files or know where the repository is; the tests beside it
do. Every function has a test that plants a violation, because a check that cannot fail is a defect.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import click

FILE_LINES_MAX = 800

# `mmap.flush` holds the interpreter lock for the whole write-back, and no checker can see whether
# an object is an mmap. So in store/ a flush may be called only on a variable whose last name,
# without leading underscores, is here: names of our own objects. A new class with a `flush` adds
# its name. Never add one that a mapping could have.
FLUSHABLE_NAMES = frozenset(
    {
        "self",
        "commit_log",
        "config",  # The setting of that name.
        "consume_queue",
        "consume_queues",
        "flusher",
        "flush_service",
        "index_file",
        "index_files",
        "ledger",
        "mapped_file",
        "mapped_file_queue",
        "stderr",
        "stdout",
        "store",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of one rule."""

    path: str
    line: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file. `path` is relative to the root of the repository, with forward slashes."""

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree, walked once for all rules."""

    @classmethod
    def parse(cls, path: str, text: str) -> "Source":
        """Parse a file; raises SyntaxError if it is not Python."""
        tree = ast.parse(text, path)
        return cls(path, text, tree, tuple(ast.walk(tree)))

    def is_in(self, *packages: str) -> bool:
        """Whether the file is below one of these top-level directories."""
        return self.path.split("/", 1)[0] in packages

    def found(self, node: ast.AST, rule: str, detail: str) -> Finding:
        """Make a finding at a node."""
        return Finding(self.path, getattr(node, "lineno", 1), rule, detail)


# Size.


def long_file(source: Source) -> Iterator[Finding]:
    """Find files of more than 800 lines."""
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield Finding(source.path, lines, "file-length", f"{lines} > {FILE_LINES_MAX}")


# Banned calls. References count too: `run(os.fsync, fd)` calls it as well.


def flush_calls(source: Source) -> Iterator[Finding]:
    """Find `.flush` on anything in store/ that is not known as an object of ours."""
    if not source.is_in("store"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "flush":
            name = _last_name(node.value)
            if name not in FLUSHABLE_NAMES:
                yield source.found(node, "mmap-flush", f"flush of {name or 'an expression'}")


WAYS_OUT: Final = {"node/framed/connection.py", "node/rocketmq/remoting/channel.py"}
"""Modules that write to the connections of callers and of other nodes, and count what waits."""


def ways_out(source: Source) -> Iterator[Finding]:
    """Find writes to a transport of a port for frames, but in the one bounded writer of each."""
    if not source.path.startswith(("node/framed/", "node/rocketmq/")) or source.path in WAYS_OUT:
        return
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("write", "writelines", "sendall"):
            name = _last_name(node.value)
            if name != "connection":
                yield source.found(node, "way-out", f"{node.attr} of {name or 'an expression'}")


LUCKY_FILES: Final = (
    "tests/calm_loop.py",
    "tests/patience.py",
    "tests/leaks.py",
    "tests/seeds.py",
    "tests/mutate/",  # A tool that measures tests.
    "tests/simulation/",  # Time and chance of a simulated world follow from its seed.
    # What tells others the time: a forger of registrations, and clients of other systems.
    "tests/cluster/forgery.py",
    "tests/compat/official/",
    "tests/compat/python_driver.py",
    "tests/fuzz/targets/framed.py",
    "tests/hours.py",
)
"""What owns waiting and drawing for all others, by the beginnings of paths."""
_LUCK: Final = re.compile(
    r"time[.](sleep|(time|monotonic|perf_counter)(_ns)?)|os[.]urandom|secrets[.]\w+|uuid[.]uuid4"
    r"|random[.](SystemRandom|[a-z]\w*)|datetime[.](date|datetime)[.](now|utcnow|today)"
)
_LUCK_WORD: Final = re.compile(r"time|sleep|random|secrets|uuid4")
_LONG: Final = "pytest.mark.long"


def lucky_tests(source: Source) -> Iterator[Finding]:
    """Find what sleeps, looks at a clock or draws a number in tests of the gate, and in what they
    use of their file. What only tests marked `long` use may."""
    is_exempt = not source.is_in("tests") or source.path.startswith(LUCKY_FILES)
    if is_exempt or not _LUCK_WORD.search(source.text):
        return
    in_gate = {inner for node in _of_the_gate(source) for inner in ast.walk(node)}
    advice = "wait for the event with tests/patience.py, seed it, or mark the test `long`"
    names = dict(_references(source))
    for node in in_gate:
        match node:
            case ast.Name() | ast.Attribute() if _LUCK.fullmatch(names.get(node, "")):
                yield source.found(node, "luck", f"{names[node]}; {advice}")
            case ast.Call(func=function, args=[]) if names.get(function) == "random.Random":
                yield source.found(node, "luck", f"Random(); {advice}")
            case ast.Call(func=function, args=[ast.Constant(value=float() | int() as pause), *_]):
                if pause > 0 and names.get(function) == "asyncio.sleep":
                    yield source.found(node, "luck", f"asyncio.sleep({pause}); {advice}")


def _of_the_gate(source: Source) -> Iterator[ast.stmt]:
    """Yield the statements of a file but its tests marked `long`, and what only they use."""
    if "/test_" not in source.path:
        yield from source.tree.body
        return
    kept = list[ast.stmt]()
    helpers: dict[str, ast.stmt] = {}
    for node in source.tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kept.append(node)
        elif _LONG not in map(ast.unparse, node.decorator_list):
            if node.decorator_list or node.name.lower().startswith("test"):
                kept.append(node)
            else:
                helpers[node.name] = node
    if any(
        ast.unparse(node).startswith("pytestmark = ") and _LONG in ast.unparse(node)
        for node in kept
    ):
        return
    while kept:
        node = kept.pop()
        yield node
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in helpers:
                kept.append(helpers.pop(inner.id))


SKIPPING_FILE = "tests/missing.py"
_SKIPPING = re.compile(r"pytest[.](skip|importorskip|xfail|mark[.](skip|skipif|xfail))$")
_SKIPPING_WORD = re.compile(r"skip|xfail")


def skipping_tests(source: Source) -> Iterator[Finding]:
    """Find what skips a test, or expects it to fail, but for the one place that knows when."""
    if not source.is_in("tests") or source.path == SKIPPING_FILE:
        return
    if not _SKIPPING_WORD.search(source.text):
        return
    for node, name in _references(source):
        if _SKIPPING.match(name):
            yield source.found(
                node, "skip", f"{name}; say what is missing with {SKIPPING_FILE}, or mend it"
            )


def doubtful_tests(source: Source) -> Iterator[Finding]:
    """Find tests that may pass without a look at anything: all they assert is within an `if` of
    which the other branch asserts nothing, or in an `except`."""
    if not source.is_in("tests"):
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            assertions = [is_sure for statement in node.body for is_sure in _assertions(statement)]
            if assertions and not any(assertions):
                yield source.found(node, "doubt", f"{node.name} asserts nothing in some cases")


def _assertions(node: ast.AST, *, is_sure: bool = True) -> Iterator[bool]:
    """Yield for each assertion whether it is reached whatever the conditions say."""
    if isinstance(node, ast.Assert) or (
        isinstance(node, ast.With | ast.AsyncWith)
        and any("pytest.raises" in ast.unparse(item.context_expr) for item in node.items)
    ):
        yield is_sure
    if isinstance(node, ast.If):
        branches = [
            [found for statement in branch for found in _assertions(statement)]
            for branch in (node.body, node.orelse)
        ]
        is_in_both = all(any(branch) for branch in branches)
        for branch in branches:
            yield from (is_sure and is_in_both and found for found in branch)
        return
    is_sure = is_sure and not isinstance(node, ast.ExceptHandler)
    for child in ast.iter_child_nodes(node):
        yield from _assertions(child, is_sure=is_sure)


def global_randomness(source: Source) -> Iterator[Finding]:
    """Find functions of the module `random` in raft/ and store/: only a seeded Random repeats."""
    if not source.is_in("raft", "store") or "random" not in source.text:
        return
    for node, name in _references(source):
        if name.startswith("random.") and name.split(".")[1] != "Random":
            yield source.found(node, "randomness", f"{name}; take a seeded random.Random instead")


SOURCE_CHECKS: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    long_file,
    flush_calls,
    lucky_tests,
    skipping_tests,
    doubtful_tests,
    global_randomness,
    ways_out,
)


def _last_name(node: ast.expr) -> str:
    """The last name of `a`, `a.b._c` or `a.b[0]`, without leading underscores; else empty."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
        case ast.Subscript(value=value):
            return _last_name(value)
        case ast.Call(func=ast.Name(id="super")):
            return "self"
    return ""


def _references(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """Yield every use of an imported name with its full name, through `as` and `from` imports."""
    origins: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                origins[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in source.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in origins:
                yield node, ".".join([origins[inner.id], *parts])


MIRRORED_PACKAGES: Final = frozenset(
    {"raft", "store", "node", "quorumlog", "planning", "qlog", "checkers", "pipeline", "bench"}
)


def misplaced_tests(files: Collection[str]) -> Iterator[Finding]:
    """Find files of tests in a folder that the package which they test does not have."""
    folders = {posixpath.dirname(file) for file in files if not file.startswith("tests/")}
    for file in files:
        folder, _, name = file.rpartition("/")
        tested = folder.removeprefix("tests/")
        is_mirrored = tested != folder and tested.partition("/")[0] in MIRRORED_PACKAGES
        if is_mirrored and name.startswith("test_") and tested not in folders:
            yield Finding(file, 1, "test-folder", f"there is no {tested}/")


# Text files.

# Homes, mounts and work places of some machine. The class keeps this line from finding itself.
_MACHINE_PATH = re.compile(r"(?<![\w./$}-])[/](?:home|root|Users|work|mnt|media)[/]\w[^\s'\"`)]*")
_REGISTRY = re.compile(
    r"\b(?:pypi[.]org|pythonhosted[.]org|registry[.]npmjs[.]org|proxy[.]golang[.]org)\b"
    r"|https?:[/]{2}[^\s/]+[/](?:\S*[/])?simple\b"
    r"|[-]-(?:extra-)?index-url\b|[-]-trusted-host\b|[-]-find-links\b"
)


def machine_traces(path: str, text: str) -> Iterator[Finding]:
    """Find absolute paths of some machine, and hosts or options of a package registry."""
    for number, line in enumerate(text.splitlines(), 1):
        for rule, pattern in (("machine-path", _MACHINE_PATH), ("registry", _REGISTRY)):
            for match in pattern.finditer(line):
                yield Finding(path, number, rule, match[0])


_LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$"
)
_CODE_SPAN = re.compile(r"(`+).+?\1")


def broken_links(path: str, text: str, files: Collection[str]) -> Iterator[Finding]:
    """Find links of a Markdown file to files or directories that are not in `files`."""
    paths = set(files)
    for file in files:
        while file := posixpath.dirname(file):
            paths.add(file)
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            continue
        if fence:
            continue
        for match in _LINK.finditer(_CODE_SPAN.sub("", line)):
            target = (match[1] or match[2]).split("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:|//", target):
                continue
            base = "" if target.startswith("/") else posixpath.dirname(path)
            resolved = posixpath.normpath(posixpath.join(base, target.lstrip("/")))
            if resolved != "." and resolved not in paths:
                yield Finding(path, number, "broken-link", target)


# The command line.


def commands(group: click.Command, path: str = "qlog") -> Iterator[tuple[str, click.Command]]:
    """Walk a click group and yield each command and group with its full name."""
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None, f"{path} lists {name} and does not know it"
            yield from commands(command, f"{path} {name}")


def undescribed(name: str, command: click.Command) -> Iterator[Finding]:
    """Find a command without help, and options without help."""
    if not (command.help or "").strip():
        yield Finding(name, 0, "cli-help", "the command has no help text")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not (parameter.help or parameter.hidden):
            yield Finding(name, 0, "cli-help", f"{parameter.opts[0]} has no help text")
