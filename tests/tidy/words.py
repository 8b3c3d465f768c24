"""Names say what the field says: one word for one thing, one class for one name.

Owns four rules: imports do not keep another name without a reason, class names are unique in the
product, identifiers have no invented words, and modules are nouns. Must not know which files are
looked at.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tests.tidy.checks import Finding, Source

INVENTED: Final = {
    "alike": "uniform, or same",
    "gathering": "discovery",
    "heard": "contact, or last seen",
    "intake": "inbound",
    "lane": "accumulator, or backlog",
    "lanes": "accumulator, or backlogs",
    "picture": "status, or plot",
    "rider": "attached commands",
    "riders": "attached commands",
    "seam": "port",
    "upkeep": "maintenance",
}
"""Words that stood for terms of the field, and the terms."""

CONVENTIONAL: Final = {
    "google.protobuf.message.Message": "Protobuf",
    "hypothesis.strategies": "st",
    "node.errors.common": "errors",
    "numpy": "np",
    "numpy.typing": "npt",
    "pyarrow": "pa",
    "pyarrow.compute": "pc",
    "pyarrow.dataset": "ds",
    "pyspark.sql.functions": "f",
    "store.format": "fmt",
}
"""Names under which a module or a class is known to its readers."""

NOUNS_IN_ING: Final = frozenset(
    {
        "ceiling",
        "encoding",
        "greeting",
        "mending",
        "monitoring",
        "opening",
        "staging",
        "testing",
    }
)
"""Names of modules that end as a gerund does, and are nouns."""

SHARED: Final = {
    "Durability": "the promise of a receipt in histories, and what an append asks for",
    "Message": "the record of a store and the message of a client; both are public",
    "Outcome": "raft, store and the client cannot import each other",
    "QueueInfo": "the ends of a queue in a store and in a cluster; both are public",
}
"""Class names of several packages, and why."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def words_of(name: str) -> list[str]:
    """Return the words of an identifier, in lower case."""
    return [word.lower() for word in _WORDS.findall(name)]


def kept_names(source: Source) -> Iterator[Finding]:
    """Find imports under another name that is neither usual, nor needed because the file has the
    imported name otherwise, nor a fuller name made of the words of the module's path."""
    found = [
        (f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name, alias)
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    if all(alias.asname is None for _, alias in found):
        return
    bound = [alias.asname or alias.name for _, alias in found] + list(_bound(source))
    for path, alias in found:
        name, kept = alias.name.rpartition(".")[2], alias.asname
        if kept is None or kept == name or CONVENTIONAL.get(path) == kept:
            continue
        if name == "__main__" or (kept == "pb" and name.endswith("_pb2")):
            continue
        if name in bound or hasattr(builtins, name):
            continue
        if not _is_fuller(kept, path):
            yield source.found(alias, "kept-name", f"{path} as {kept}: say {name}")


def _bound(source: Source) -> Iterator[str]:
    for node in source.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name


def _is_fuller(kept: str, path: str) -> bool:
    """Whether a name of several words has only those of the path, in singular or plural; `async`
    may stand before them."""
    of_path = {word.removesuffix("s") for word in words_of(path)} | {"async"}
    own = words_of(kept)
    return len(own) > 1 and {word.removesuffix("s") for word in own} <= of_path


def shared_classes(sources: Iterable[Source]) -> Iterator[Finding]:
    """Find classes with the name of another one. Left out: private ones; the synchronous client,
    which has the names of the asynchronous one; one error in several packages, where a failure
    passes from one to the next."""
    homes: dict[str, list[Source]] = {}
    for source in sources:
        if source.path.startswith("quorumlog/sync/"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and node.name not in SHARED:
                homes.setdefault(node.name, []).append(source)
    for name, places in sorted(homes.items()):
        packages = {source.path.partition("/")[0] for source in places}
        if name.endswith("Error") and len(packages) == len(places):
            continue
        for source in places[1:]:
            yield Finding(source.path, 1, "shared-class", f"{name} is in {places[0].path} as well")


def invented_words(source: Source) -> Iterator[Finding]:
    """Find names of modules, classes, functions, variables and attributes with invented words."""
    for name, node in _named(source):
        for word in words_of(name):
            if word in INVENTED:
                detail = f"{name}: say {INVENTED[word]} for {word}"
                yield source.found(node, "invented-word", detail)


def _named(source: Source) -> Iterator[tuple[str, ast.AST]]:
    yield source.path.rpartition("/")[2].removesuffix(".py"), source.tree
    for node in source.nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name, node
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node


def gerunds(path: str) -> Iterator[Finding]:
    """Find modules and folders whose last word is a gerund."""
    for name in path.removesuffix(".py").split("/"):
        word = (words_of(name) or [""])[-1]
        if word.endswith("ing") and word not in NOUNS_IN_ING:
            yield Finding(path, 1, "gerund", f"{name}: modules are nouns")
