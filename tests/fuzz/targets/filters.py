"""Targets of filters: the SQL language, and the tags of RocketMQ's clients."""

from contextlib import suppress
from random import Random
from typing import Final

from google.protobuf.message import DecodeError

from node.broker.read.filter_language import DEPTH_MAX, parse
from node.broker.read.filters import TagFilter
from node.errors.common import BadRequestError
from node.errors.groups import BadFilterError
from node.rocketmq.protocol.names import TAG_COUNT_MAX, filter_of
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import FilterExpression, FilterType
from tests.fuzz.structure import mutated_message, text
from tests.fuzz.target import KIB, FuzzTarget, claim

_PROPERTIES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "5", "n": "1e9", "TAGS": "x'y"},
    {"a": "abc", "b": "TRUE", "n": "-0"},
)
_WORDS: Final = (
    *b"AND OR NOT IN IS NULL TRUE FALSE BETWEEN CONTAINS STARTSWITH ENDSWITH".split(),
    *b"= <> != < <= > >= ( ) , ' '' 'a' 1 -1 1.5 1e9 9e999 a $b _c".split(),
    b" ",
    "İ".encode(),
    "ı".encode(),
    "ſ".encode(),
    "٣".encode(),
)


def _sql(data: bytes) -> None:
    expression = data.decode("utf-8", "replace")
    # Not the cached way: it would keep each text.
    node = parse.__wrapped__(expression)
    claim(node.depth <= DEPTH_MAX, f"depth {node.depth}")
    for properties in _PROPERTIES:
        decided = node.decide(properties)
        claim(decided in (True, False, None), f"it decides {decided!r}")


def _sql_examples(random: Random) -> list[bytes]:
    return [
        b"a = 5 AND b IS NOT NULL OR NOT (n BETWEEN 1 AND 9)",
        b"TAGS IN ('a', 'b', 3) AND a CONTAINS 'x' AND b NOT STARTSWITH 'y''z'",
        b"a > -1.5e3 OR TRUE <> b OR 'x' = a AND a NOT ENDSWITH 'c'",
        b"(" * random.randint(1, 40) + b"a=1" + b")" * random.randint(1, 40),
        b"NOT " * random.randint(1, 40) + b"a=1",
    ]


_ODD_CASES: Final = {"i": "ıİ", "s": "ſ", "k": "\u212a", "1": "١²"}
"""Letters and digits that equal others in some respect."""


def _mutated_sql(random: Random, data: bytes) -> bytes:
    """Replace, add or leave out a word, or change the case of a letter in one."""
    expression = data.decode("utf-8", "replace")
    if expression and random.random() < 0.3:
        odd = [at for at, letter in enumerate(expression) if letter.lower() in _ODD_CASES]
        at = random.choice(odd) if odd else random.randrange(len(expression))
        letter = expression[at]
        others = letter.swapcase() + _ODD_CASES.get(letter.lower(), "")
        return (expression[:at] + random.choice(others) + expression[at + 1 :]).encode()
    words = data.replace(b"(", b" ( ").replace(b")", b" ) ").split()
    at = random.randrange(len(words) + 1)
    words[at : at + random.choice((0, 1, 1))] = random.choices(_WORDS, k=random.randrange(3))
    return b" ".join(words)


def _tags(data: bytes) -> None:
    found = filter_of(FilterExpression.FromString(data))
    claim(not (found.tags and found.sql), "tags and SQL at once")
    claim(len(found.tags) <= TAG_COUNT_MAX, f"{len(found.tags)} tags")
    if found.tags:
        with suppress(BadRequestError):  # Of too many characters together.
            TagFilter(found.tags, TAG_COUNT_MAX)


def _tag_examples(random: Random) -> list[bytes]:
    return [
        FilterExpression(type=kind, expression=expression).SerializeToString()
        for kind in (FilterType.TAG, FilterType.SQL)
        for expression in ("*", "a", "a || b", " || ".join(map(str, range(70))), text(random))
    ]


TARGETS: Final = (
    FuzzTarget(
        "filter-sql",
        "a filter is refused with the place of the fault, or decides about any properties",
        _sql,
        (
            "node.broker.read.filter_language",
            "node.broker.read.filter_tree",
            "lark.lexer",
            "lark.parsers.lalr_parser_state",
        ),
        _sql_examples,
        (BadFilterError,),
        mutated=_mutated_sql,
        words=_WORDS,
        step_factor=1 * KIB,
        memory_factor=1 * KIB,
    ),
    FuzzTarget(
        "filter-tags",
        "a filter expression is refused with a code, or names at most 64 tags",
        _tags,
        ("node.rocketmq.protocol.names",),
        _tag_examples,
        (CallRefusedError, DecodeError),
        mutated=mutated_message(FilterExpression),
    ),
)
