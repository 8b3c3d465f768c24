"""Circles of imports: modules that know each other, as types too.

Owns the graph of imports between files and what is a circle in it. Must not know which are allowed.
"""

import ast
from collections.abc import Iterable, Mapping

from tests.tidy.checks import Source


def imports(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Return the modules of these files, each with those of them that it imports anywhere."""
    by_name = {_module(source.path): source for source in sources}
    return {
        name: {found for node in source.nodes for found in _named(node, by_name) if found != name}
        for name, source in by_name.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the largest sets of modules of which each one reaches all others."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted(found, key=sorted)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _named(node: ast.AST, known: Mapping[str, object]) -> Iterable[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            found = inner if inner in known else node.module
            if found in known:
                yield found
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found
