"""Identifiers have no word that the project made up where the field has a term, and no sentence
hides its actor behind a fixed phrase.

Owns the lists of words. Must not know which files are looked at.
"""

import ast
import re
from collections.abc import Iterator
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

PHRASES: Final = {
    "nobody": "the node, client or call that does not, or 'no node'",
    "somebody": "the node, client or caller that does",
    "whoever": "any node, client or caller that",
    "by itself": "automatically, alone, or nothing",
    "is told": "receives, learns or gets",
    "is asked": "the component that asks, and what it reads or gets",
    "in vain": "without success",
    "anew": "again",
    "for good": "permanently",
    "at hand": "available, or present",
    "taken for": "mistaken for, or counted as",
    "one after the other": "in order, or in turn",
    "so many": "that many, or at most the count",
    "put right": "repaired, or corrected",
}
"""Phrases that leave out who acts, and what to say."""

PARTICIPLES: Final = {
    "found": "what it is: the entry, row, finding",
    "told": "the report, notice or answer",
    "said": "the unit, record or line",
    "met": "the damage, peer or value",
    "one": "the singular of what there are several of",
}
"""Names of parameters and attributes that say how a thing was come by, and what to say."""

_GAP: Final = r"\s+(?:(?:#|//)\s*)?"
_PHRASE: Final = re.compile(
    rf"\b({'|'.join(phrase.replace(' ', _GAP) for phrase in PHRASES)})\b", re.IGNORECASE
)
_WORDS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def invented_words(source: Source) -> Iterator[Finding]:
    """Find names of modules, classes, functions, variables and attributes with invented words."""
    for name, node in _named(source):
        for word in map(str.lower, _WORDS.findall(name)):
            if word in INVENTED:
                detail = f"{name}: say {INVENTED[word]} for {word}"
                yield source.found(node, "invented-word", detail)


def participles(source: Source) -> Iterator[Finding]:
    """Find parameters, attributes and fields that are named after how they were come by."""
    fields = {id(n.target) for n in source.nodes if isinstance(n, ast.AnnAssign)}
    for name, node in _named(source):
        is_field = isinstance(node, ast.Name) and id(node) in fields and node.col_offset == 4
        if not (is_field or isinstance(node, ast.arg | ast.Attribute)):
            continue
        if name.lstrip("_") in PARTICIPLES:
            detail = f"{name}: say {PARTICIPLES[name.lstrip('_')]}"
            yield source.found(node, "participle", detail)


def vague_phrases(path: str, text: str) -> Iterator[Finding]:
    """Find phrases that leave out who acts, also where a line ends within."""
    for match in _PHRASE.finditer(text):
        phrase = " ".join(re.findall(r"\w+", match[0].lower()))
        number = text.count("\n", 0, match.start()) + 1
        yield Finding(path, number, "vague-phrase", f"{phrase}: say {PHRASES[phrase]}")


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
