"""The language of property filters, a subset of SQL92 as RocketMQ's: from text to a tree.

Owns grammar and limits; `filter_tree` owns the meaning. lark reads the text (LALR: in time that
grows with its length, without recursion) and knows the place of an error; nothing is ever executed
as code.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, v_args
from lark.exceptions import VisitError

from node.broker.read import filter_tree as tree
from node.broker.read.filter_tree import EQUALITIES, Node, Operand, Property, number_in
from node.errors.groups import BadFilterError

SIZE_CHARACTERS_MAX: Final = 4_096
DEPTH_MAX: Final = 32
CACHED_COUNT: Final = 1_024
"""Parsed filters that are kept; a reader sends its own with each pull."""

_HEX_DIGITS_MAX: Final = 16  # RocketMQ's are 64 bits.

_GRAMMAR: Final = r"""
    ?start: or_
    ?or_: and_ (_OR and_)*
    ?and_: not_ (_AND not_)*
    ?not_: NOT not_ -> negation
        | "(" or_ ")" -> nested
        | test
    ?test: operand COMPARISON operand -> comparison
        | PROPERTY NOT? _BETWEEN number _AND number -> between
        | PROPERTY NOT? _IN "(" constant ("," constant)* ")" -> membership
        | PROPERTY NOT? TEXT_TEST STRING -> text_test
        | PROPERTY _IS NOT? _NULL -> null_test
        | TRUTH -> truth
    ?operand: SIGN? PROPERTY -> property
        | constant
    ?constant: number
        | STRING -> string
        | TRUTH -> boolean
    number: SIGN? NUMBER

    COMPARISON: /<>|!=|<=|>=|=|<|>/
    STRING: /'(?:[^']|'')*'/
    NUMBER: /0[xX][0-9a-fA-F]+|[0-9]+[lL]|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
    SIGN: /[+-]/
    PROPERTY: /[a-zA-Z_$][a-zA-Z0-9_$]*/
    NOT.2: "keyword NOT"
    TRUTH.2: "keyword TRUE|FALSE"
    TEXT_TEST.2: "keyword CONTAINS|STARTSWITH|ENDSWITH"
    _OR.2: "keyword OR"
    _AND.2: "keyword AND"
    _BETWEEN.2: "keyword BETWEEN"
    _IN.2: "keyword IN"
    _IS.2: "keyword IS"
    _NULL.2: "keyword NULL"
    COMMENT.3: /--[^\n\r]*|\/\*(?:[^*]|\*(?!\/))*\*\//
    %ignore /\s+/
    %ignore COMMENT
"""


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Called by the parser for each rule, innermost first."""

    def or_(self, *parts: Node) -> Node:
        return tree.junction(parts, _depth(parts), deciding=True)

    def and_(self, *parts: Node) -> Node:
        return tree.junction(parts, _depth(parts), deciding=False)

    def negation(self, _not: Token, inner: Node) -> Node:
        return tree.negation(inner, _depth([inner]))

    def nested(self, inner: Node) -> Node:
        return inner

    def comparison(self, left: Operand, sign: Token, right: Operand) -> Node:
        if sign not in EQUALITIES:
            for operand in (left, right):
                if isinstance(operand, str | bool):
                    raise BadFilterError(f"{sign} compares numbers only", sign.start_pos or 0)
        return tree.comparison(str(sign), left, right)

    def between(self, name: Token, *rest: Any) -> Node:
        lo, hi = rest[-2:]
        return _maybe_not(tree.between(str(name), lo, hi), rest)

    def membership(self, name: Token, *rest: Any) -> Node:
        constants = [one for one in rest if not isinstance(one, Token)]
        return _maybe_not(tree.in_list(str(name), constants), rest)

    def text_test(self, name: Token, *rest: Token) -> Node:
        kind, text = rest[-2:]
        return _maybe_not(tree.text_test(str(name), kind.upper(), self.string(text)), rest)

    def null_test(self, name: Token, *rest: Token) -> Node:
        return _maybe_not(Node(lambda properties: name not in properties), rest)

    def truth(self, word: Token) -> Node:
        is_true = self.boolean(word)
        return Node(lambda _properties: is_true)

    def property(self, *parts: Token) -> Operand:
        return Property(str(parts[-1]), parts[0] == "-")

    def string(self, text: Token) -> str:
        return text[1:-1].replace("''", "'")

    def boolean(self, word: Token) -> bool:
        return word.upper() == "TRUE"

    def number(self, *parts: Token) -> float:
        text, sign = parts[-1].rstrip("lL"), -1 if parts[0] == "-" else 1
        parsed: float | None
        if text[:2] in ("0x", "0X"):
            digits = text[2:]
            parsed = sign * int(digits, 16) if len(digits) <= _HEX_DIGITS_MAX else None
        else:
            whole, dot, rest = text.partition(".")
            more = "0" if dot and not rest[:1].isdigit() else ""  # `10.` and `10.e3` leave it out.
            parsed = number_in(f"{'-' * (sign < 0)}{whole or '0'}{dot}{more}{rest}")
        if parsed is None:
            raise BadFilterError("a number with too many digits", parts[0].start_pos or 0)
        return parsed


def _maybe_not(node: Node, rest: Sequence[Any]) -> Node:
    is_not = bool(rest) and isinstance(rest[0], Token) and rest[0].type == "NOT"
    return tree.negation(node, node.depth) if is_not else node


def _depth(parts: Sequence[Node]) -> int:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise BadFilterError(f"nested deeper than {DEPTH_MAX}", 0)
    return depth


def _keyword(match: "re.Match[str]") -> str:
    """Return a pattern for a keyword, in any case, that is not the beginning of a longer name.

    Without regard to case Unicode has more spellings of a letter than two, such as the dotted
    capital I of STARTSWITH: those are no keywords."""
    return f"/(?a:{match[1]})(?a:(?![a-z0-9_$]))/i"


_PARSER: Final = Lark(
    re.sub(r'"keyword ([A-Z|]+)"', _keyword, _GRAMMAR),
    parser="lalr",
    transformer=_Builder(),
    maybe_placeholders=False,
)


@lru_cache(maxsize=CACHED_COUNT)
def parse(text: str) -> Node:
    """Return the tree of a filter. Raises BadFilterError with the place of the fault."""
    if len(text) > SIZE_CHARACTERS_MAX:
        what = f"{len(text)} characters, the limit is {SIZE_CHARACTERS_MAX}"
        raise BadFilterError(what, SIZE_CHARACTERS_MAX)
    try:
        return cast(Node, _PARSER.parse(text))  # The builder made it.
    except UnexpectedCharacters as error:
        at = cast(int, error.pos_in_stream)  # lark declares it as None.
        raise BadFilterError(f"{text[at]!r} makes no sense here", at) from None
    except UnexpectedInput as error:
        token = getattr(error, "token", None)
        if token is None or token.type == "$END":
            raise BadFilterError("it ends too early", len(text)) from None
        raise BadFilterError(f"{str(token)!r} makes no sense here", token.start_pos) from None
    except VisitError as error:
        if isinstance(error.orig_exc, BadFilterError):
            raise error.orig_exc from None
        raise
