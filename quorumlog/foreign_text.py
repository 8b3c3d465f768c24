"""Text that others wrote, as a terminal or a log line may show it.

Owns the one rule of all that people read: what is not printable (control characters, escape
sequences, ends of lines, marks of direction, lone surrogates), or is but a blank, is shown as its
escape, and text that is too long is cut. Must not know who shows it.
"""

import json
import re
from collections.abc import Callable
from typing import Final

TEXT_LENGTH_MAX: Final = 4_096
"""Characters of one text that are shown; programs read JSON, which is never cut."""
_CUT: Final = "..."
_BLANK: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")
"""What Unicode calls printable, and no eye sees: joiners and fillers."""


def shown(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    r"""Return a text as a part of one line: `\x1b`, `\n`, `\u202e` and `\udc80` are escapes."""
    if len(text) > length_max:
        text = text[:length_max] + _CUT
    if _is_visible(text):
        return text
    return "".join(c if _is_visible(c) else c.encode("unicode_escape").decode() for c in text)


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _BLANK.search(text))


def shown_lines(text: str) -> str:
    """Return a text of several lines, of any length; tabs stay as well."""
    return _by_line(text, lambda c: c if c == "\t" else c.encode("unicode_escape").decode())


def shown_json(document: str) -> str:
    """Return a JSON document that says the same: what is not printable is an escape of JSON."""
    return _by_line(document, lambda c: json.dumps(c)[1:-1])


def _by_line(text: str, escape: Callable[[str], str]) -> str:
    return "\n".join(
        line if _is_visible(line) else "".join(c if _is_visible(c) else escape(c) for c in line)
        for line in text.split("\n")
    )
