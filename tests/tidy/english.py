"""How docstrings speak: the component is the subject of a sentence.

Owns the rules that a program can hold: no docstring opens with a pronoun, none speaks of processes
as of persons, and all that answer yes or no open alike. Must not know which files are looked at.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.tidy.checks import Finding, Source

_OPENING: Final = re.compile(
    r"\s*(Who|Whoever|Whom|Whose|What|Whatever|Which|Those|That|It|They|He|She|Nobody|Somebody"
    r"|Someone|Everybody|Nothing|So many|Such)\b"
)
_PERSON: Final = re.compile(
    r"\b([Nn]obody|[Ss]omebody|[Ss]omeone|[Ww]hoever|[Ww]hom|[Hh]e|[Hh]im|[Hh]is|[Ss]he|[Hh]er)\b"
)
_BOOLEAN: Final = re.compile(r"(Say|Return|Tell|Show|Check) (whether|if)\b|True (if|when)\b")


def riddles(source: Source) -> Iterator[Finding]:
    """Yield the docstrings of a module, and the strings below its attributes, that open with a
    pronoun or speak of persons."""
    for node in source.nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
            continue  # Its docstring is the help text of a command.
        for statement in node.body:
            text = _standing(statement)
            if text is None:
                continue
            opening = _OPENING.match(text)
            if opening is not None:
                found = f"opens with {opening[1]!r}: name the component"
                yield Finding(source.path, statement.lineno, "opening", found)
            person = _PERSON.search(text)
            if person is not None:
                found = f"speaks of {person[1]!r}: name the process, the client or the caller"
                yield Finding(source.path, statement.lineno, "person", found)


def other_booleans(source: Source) -> Iterator[Finding]:
    """Yield the docstrings of functions and properties that ask for a yes or no in another form
    than "Whether ..."."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = _BOOLEAN.match(_standing(node.body[0]) or "")
            if found is not None:
                yield source.found(node, "boolean", f"opens with {found[0]!r}: say Whether")


def _standing(statement: ast.stmt) -> str | None:
    """Return the text of a string that stands as a statement."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return None
    value = statement.value.value
    return value if isinstance(value, str) else None


def _is_command(decorator: ast.expr) -> bool:
    """Whether a decorator makes a command of click."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in ("command", "group")
