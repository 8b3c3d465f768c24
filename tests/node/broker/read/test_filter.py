"""Property filters: what each construct means, what is refused and where."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.broker.read.filter_language import DEPTH_MAX, SIZE_CHARACTERS_MAX, parse
from node.broker.read.filters import SqlFilter
from node.errors.groups import BadFilterError
from store.record.message import decode_message, encode_message

MESSAGE = {
    "a": "7",
    "price": "12.50",
    "name": "O'Neil",
    "flag": "true",
    "big": "1e3",
    "odd": "x",
    "loud": "TRUE",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 7", True),
        ("a = '7'", True),
        ("7 = a", True),
        ("a <> 7", False),
        ("a != 8", True),
        ("a > 6.5 AND a < 8", True),
        ("a >= 7 and a <= 7", True),
        ("a > -1", True),
        ("-7 < a", True),
        ("price = 12.5", True),
        ("price = '12.5'", False),
        ("big > 999", True),
        ("name = 'O''Neil'", True),
        ("name <> 'x'", True),
        ("name = 7", False),
        ("name <> 7", True),
        ("name > 7", None),
        ("NOT name > 7", None),
        ("flag = TRUE", True),
        ("flag <> true", False),
        ("a BETWEEN 7 AND 7", True),
        ("a NOT BETWEEN 7 AND 9", False),
        ("name BETWEEN 1 AND 2", None),
        ("name IN ('x', 'O''Neil')", True),
        ("name NOT IN ('x')", True),
        ("a IN (1, 7.0)", True),
        ("a IN ('7')", True),
        ("odd IN (1)", False),
        ("name CONTAINS 'Ne'", True),
        ("name STARTSWITH 'o'", False),
        ("name NOT ENDSWITH 'il'", False),
        ("gone IS NULL", True),
        ("a IS NULL", False),
        ("a IS NOT NULL", True),
        ("gone = 1", None),
        ("gone <> 1", None),
        ("gone IN (1)", None),
        ("gone CONTAINS 'x'", None),
        ("a = 8 OR a = 7 AND odd = 'x'", True),
        ("(a = 7 OR a = 8) AND odd = 'y'", False),
        ("a = price", False),
        ("odd = odd", True),
        ("TRUE", True),
        ("a = 7 AND FALSE", False),
        ("order IS NULL and android is null AND IN1 IS NULL", True),
        ("$x_1 is null", True),
        ("flag IN (TRUE)", True),
        ("loud = TRUE", True),
        ("loud IN (TRUE)", True),
        ("loud NOT IN (FALSE)", True),
        ("loud IN ('true')", False),
        # Literals as RocketMQ's own grammar has them.
        ("a > .5 AND a < 1.e1", True),
        ("a < 10.", True),
        ("a = 7L AND a IN (7l)", True),
        ("a = 0x7 AND a < 0XfF", True),
        ("a > -0x1", True),
        ("a = /* seven ** */ 7 -- and no more\n AND TRUE -- at all", True),
        ("-a = -7", True),
        ("- a < +6", True),
        ("+a = 7", True),
        ("-name = 1", None),
        ("-gone = 1", None),
    ],
)
def test_each_filter_decides(text: str, expected: bool | None) -> None:
    assert parse(text).decide(MESSAGE) is expected


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("a", 1),
        ("a >", 3),
        ("a > 'x'", 2),
        ("a = TRUE AND b < FALSE", 15),
        ("a == 1", 3),
        ("a = 1; drop", 5),
        ("a = 'x", 4),
        ("a and b", 2),
        ("1 = 1 x", 6),
        ("a in ()", 6),
        ("a between 'x' and 'y'", 10),
        ("__import__('os')", 10),
        ("a = 1 or", 8),
        ("not " * (DEPTH_MAX + 1) + "a = 1", 0),
        ("a = " + "1" * SIZE_CHARACTERS_MAX, SIZE_CHARACTERS_MAX),
        ("a = " + "1" * 301, 4),
        ("a = 0x" + "1" * 301, 4),
        ("a = 0x", 5),
        ("a = .", 4),
        ("a = 1.5L", 7),
        ("a = 7 /* no end", 6),
        # Without regard to case these letters equal i, i, s and k, and no digit is but 0 to 9.
        ("a STARTSWİTH 'x'", 2),
        ("a CONTAıNS 'x'", 2),
        ("ſ = 1", 0),
        ("\u212a = 1", 0),
        ("a = ٣", 4),
    ],
)
def test_a_malformed_filter_is_refused_with_its_place(text: str, at: int) -> None:
    with pytest.raises(BadFilterError) as found:
        parse(text)
    assert found.value.at == at


def test_long_filters_and_deep_brackets_are_fine() -> None:
    many = " OR ".join(f"a = {number}" for number in range(300))
    assert parse(many).decide({"a": "299"}) is True
    assert parse("(" * 1_000 + "a = 1" + ")" * 1_000).decide({"a": "1"}) is True


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    at, decision = 0, None
    try:
        decision = parse(text).decide(MESSAGE)
    except BadFilterError as error:
        at = error.at
    assert 0 <= at <= len(text)
    assert decision in (True, False, None)


@pytest.mark.parametrize(("word", "rule"), [("AND", min), ("OR", max)])
def test_three_values_are_combined_by_the_book(word: str, rule: Callable[..., float]) -> None:
    """True is 1, false 0, unknown 0.5."""
    texts = {1.0: "a = 7", 0.0: "a = 8", 0.5: "gone = 1"}
    meanings = {1.0: True, 0.0: False, 0.5: None}
    for values in product(texts, repeat=3):
        text = f" {word} ".join(texts[value] for value in values)
        assert parse(text).decide(MESSAGE) is meanings[rule(values)], text
        assert parse(f"NOT ({text})").decide(MESSAGE) is meanings[1 - rule(values)], text


def test_records_that_match_are_kept_as_they_are() -> None:
    records = [
        encode_message("orders", 0, b"%d" % n, {"n": str(n), "TAGS": "t"} if n % 3 else {})
        for n in range(9)
    ]
    data, count = SqlFilter("n >= 4 AND TAGS = 't'").keep(b"".join(records))
    assert count == 4
    assert data == b"".join(records[n] for n in (4, 5, 7, 8))
    assert decode_message(data).body == b"4"
    assert SqlFilter("n = 100").keep(b"".join(records)) == (b"", 0)
