"""Text that others wrote, as a terminal or a log line may show it.

Owns the one rule of all that people read: what is not printable (control characters, escape
sequences, ends of lines, marks of direction, lone surrogates) is shown as its escape, and text that
is too long is cut. Must not know who shows it.
"""

import json
from collections.abc import Callable
from typing import Final

TEXT_LENGTH_MAX: Final = 4_096
"""Characters of one text that are shown; programs read JSON, which is never cut."""
_CUT: Final = "..."


def shown(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    r"""Return a text as a part of one line: `\x1b`, `\n`, `\u202e` and `\udc80` are escapes."""
    if len(text) > length_max:
        text = text[:length_max] + _CUT
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: str) -> str:
    """Return a text of several lines, of any length; tabs stay as well."""
    return _by_line(text, lambda c: c if c == "\t" else c.encode("unicode_escape").decode())


def shown_json(document: str) -> str:
    """Return a JSON document that says the same: what is not printable is an escape of JSON."""
    return _by_line(document, lambda c: json.dumps(c)[1:-1])


def _by_line(text: str, escape: Callable[[str], str]) -> str:
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else escape(c) for c in line)
        for line in text.split("\n")
    )
