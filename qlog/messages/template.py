"""Templates of `--format`: what stands between the parts of a message, and in which order.

Owns the language, which is that of kcat and rpk where these agree: a letter behind % is a part of a
message, \\n, \\t, \\r, \\\\ and \\xNN are bytes, %% is a percent sign. Nothing is added to it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from qlog.message_rows import SHOWN_ELSEWHERE

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(?P<verb>.?)|\\(x(?P<hex>[0-9a-fA-F]{2})|(?P<escape>.?))", re.DOTALL)
_READ: Final = {"k", "s", "p", "g"}
"""What a line of input may have."""


def _bytes(text: str | None) -> bytes:
    return (text or "").encode("utf-8", "surrogateescape")


def _properties(message: "Message") -> bytes:
    shown = {k: v for k, v in message.properties.items() if k not in SHOWN_ELSEWHERE}
    return b",".join(_bytes(f"{name}={value}") for name, value in shown.items())


_PARTS: Final[Mapping[str, Callable[["Message", bytes], bytes]]] = {
    "s": lambda _message, body: body,
    "S": lambda _message, body: _bytes(str(len(body))),
    "k": lambda message, _body: _bytes(message.key),
    "K": lambda message, _body: _bytes(str(len(_bytes(message.key)))),
    "t": lambda message, _body: _bytes(message.topic),
    "p": lambda message, _body: _bytes(str(message.queue_id)),
    "o": lambda message, _body: _bytes(str(message.queue_offset)),
    "T": lambda message, _body: _bytes(str(message.store_unix_ms)),
    "h": lambda message, _body: _properties(message),
    "g": lambda message, _body: _bytes(message.tag),
    "m": lambda message, _body: _bytes(message.message_id),
}
_SAME: Final = {"v": "s", "V": "S", "d": "T"}
"""Letters of rpk for those of kcat."""


@dataclass(frozen=True, slots=True)
class Template:
    """Letters of parts (text) and what is between them (bytes), in their order."""

    text: str
    pieces: tuple[str | bytes, ...]

    @classmethod
    def parse(cls, text: str, letters: Collection[str] = _PARTS.keys()) -> "Template":
        """Return the template that a text means, of these letters. Raises ValueError."""
        if not text:
            raise ValueError("an empty template writes nothing; use '%s\\n' for bodies")
        pieces: list[str | bytes] = []
        end = 0
        for token in _TOKEN.finditer(text):
            _add(pieces, text[end : token.start()].encode())
            end = token.end()
            verb, escape = token["verb"], token["escape"]
            if verb == "%" or token["hex"] or escape in _ESCAPES:
                _add(pieces, b"%" if verb else _ESCAPES.get(escape) or bytes.fromhex(token["hex"]))
            elif _SAME.get(verb, verb) in letters:
                pieces.append(_SAME.get(verb, verb))
            else:
                same = (letter for letter, other in _SAME.items() if other in letters)
                listed = " ".join(f"%{letter}" for letter in sorted({*letters, *same}))
                raise ValueError(
                    f"{token[0]!r} means nothing here; use {listed} %% \\n \\t \\r \\\\ \\xNN"
                )
        _add(pieces, text[end:].encode())
        return cls(text, tuple(pieces))

    @classmethod
    def parse_input(cls, text: str) -> "Template":
        """Return one that lines of input can be split by, each without its newline. Raises
        ValueError."""
        template = cls.parse(text.removesuffix("\\n"), _READ)
        verbs = [piece for piece in template.pieces if isinstance(piece, str)]
        if "s" not in verbs:
            raise ValueError(f"{text!r} has no %s, which is the body")
        if twice := [verb for verb in verbs if verbs.count(verb) > 1]:
            raise ValueError(f"{text!r} has %{twice[0]} twice")
        kinds = [type(piece) for piece in template.pieces]
        if (str, str) in pairwise(kinds):
            raise ValueError(
                f"{text!r} has nothing between two parts, so they cannot be told apart"
            )
        return template

    def render(self, message: "Message", body: bytes) -> bytes:
        """Return a message, whose body is this, in the form of the template."""
        return b"".join(
            piece if isinstance(piece, bytes) else _PARTS[piece](message, body)
            for piece in self.pieces
        )

    def split(self, line: bytes) -> dict[str, bytes] | None:
        """Return the parts of a line by their letters; each ends where what follows it begins.

        None: the line has not all that the template has between them.
        """
        parts: dict[str, bytes] = {}
        verb, rest = "", line
        for piece in self.pieces:
            if isinstance(piece, str):
                verb = piece
                continue
            before, found, rest = rest.partition(piece)
            if not found or (before and not verb):
                return None
            if verb:
                parts[verb], verb = before, ""
        if verb:
            parts[verb], rest = rest, b""
        return None if rest else parts


def _add(pieces: list[str | bytes], literal: bytes) -> None:
    """Add bytes to the last piece, if it is of bytes."""
    if pieces and isinstance(pieces[-1], bytes):
        pieces[-1] += literal
    elif literal:
        pieces.append(literal)
