"""Delayed records: what a message is stays the same bytes, into the hold and out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.broker.records.delayed import (
    PROPERTY_UNDELIVERABLE,
    DelayWish,
    DeliveredRecords,
    Held,
    delivered,
    held,
    scheduled,
    undeliverable,
    wish_of,
)
from store import format as fmt
from store.errors import RecordFormatError
from store.record.message import decode_message, encode_message

DUE = 1_700_000_123_456
WISHES = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\1\2"), min_size=1, max_size=8)
PROPERTIES = st.dictionaries(NAMES.filter(lambda n: n not in WISHES), NAMES, max_size=5)
LONG_RETRY_TOPIC = "%RETRY%" + "g" * 150


@given(
    topic=st.sampled_from(["orders", LONG_RETRY_TOPIC]),
    body=st.binary(max_size=200),
    properties=PROPERTIES,
    level=st.integers(0, 19),
    is_v6=st.booleans(),
    property_crc=st.booleans(),
)
def test_a_message_comes_out_as_it_went_in(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    level: int,
    is_v6: bool,
    property_crc: bool,
) -> None:
    record = encode_message(
        topic,
        3,
        body,
        {"KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": "u", **properties},
        flag=7,
        sys_flag=fmt.SYS_FLAG_COMPRESSED | fmt.TRANSACTION_COMMIT,
        born_unix_ms=DUE - 5,
        born_host=("::1", 7) if is_v6 else ("10.0.0.1", 7),
        reconsume_times=2,
        prepared_transaction_position=4711,
        property_crc=property_crc,
    )
    inside = scheduled(record, DUE, level=level)
    message = decode_message(inside, check_crc=False)
    expected = (fmt.SCHEDULE_TOPIC, min(level, 18) - 1) if level else (fmt.TIMER_TOPIC, 0)
    assert (message.topic, message.queue_id) == expected
    assert held(inside) == Held(topic, 3, DUE)
    own, outside = delivered(inside)
    assert (own, outside) == (Held(topic, 3, DUE), record)
    fast = DeliveredRecords()
    later = scheduled(record, DUE + 1, level=level)
    for again, due_ms in ((inside, DUE), (later, DUE + 1), (inside, DUE)):
        assert fast.of(again) == (topic, 3, record, due_ms)


def test_a_wish_is_gone_once_it_is_fulfilled_but_the_time_that_was_asked_for_stays() -> None:
    properties = {"DELAY": "4", "WAIT": "true", "TIMER_DELIVER_MS": str(DUE), "TAGS": "t"}
    _, outside = delivered(scheduled(encode_message("orders", 1, b"b", properties), DUE))
    assert decode_message(outside).properties == {"TIMER_DELIVER_MS": str(DUE), "TAGS": "t"}


def test_a_held_record_has_one_level_and_one_time() -> None:
    record = encode_message("orders", 1, b"b", {"DELAY": "9", "TIMER_OUT_MS": "1"})
    properties = decode_message(scheduled(record, DUE, level=3)).properties
    assert properties == {
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "TIMER_OUT_MS": str(DUE),
        "DELAY": "3",
    }


@pytest.mark.parametrize(
    ("properties", "wish"),
    [
        ({}, None),
        ({"DELAY": "0"}, None),
        ({"DELAY": "3"}, DelayWish(level=3)),
        ({"TIMER_DELAY_SEC": "2"}, DelayWish(delay_ms=2_000)),
        ({"TIMER_DELAY_MS": "25"}, DelayWish(delay_ms=25)),
        ({"TIMER_DELIVER_MS": "77"}, DelayWish(deliver_unix_ms=77)),
        ({"TIMER_DELIVER_MS": "77", "DELAY": "1"}, DelayWish(level=1)),
    ],
)
def test_wishes_of_producers_are_understood(
    properties: dict[str, str], wish: DelayWish | None
) -> None:
    assert wish_of(encode_message("orders", 0, b"b", properties)) == wish


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "9" * 16])
def test_a_wish_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(RecordFormatError, match="TIMER_DELAY_MS"):
        wish_of(encode_message("orders", 0, b"b", {"TIMER_DELAY_MS": value}))


def test_a_record_that_was_never_held_cannot_be_delivered() -> None:
    with pytest.raises(RecordFormatError, match="REAL_TOPIC"):
        delivered(encode_message("orders", 0, b"b"))


def test_an_undeliverable_record_names_its_queue_and_reason() -> None:
    inside = scheduled(encode_message("orders", 2, b"b", {"KEYS": "k"}), DUE, level=1)
    message = decode_message(undeliverable(inside, "topic deleted"))
    assert (message.topic, message.queue_id, message.body) == (fmt.UNDELIVERABLE_TOPIC, 0, b"b")
    assert message.properties == {
        "KEYS": "k",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
        "TIMER_OUT_MS": str(DUE),
        PROPERTY_UNDELIVERABLE: "topic deleted",
    }


def test_without_room_for_the_reason_it_is_undeliverable_all_the_same() -> None:
    room = fmt.PROPERTIES_SIZE_BYTES_MAX - len("X\x01\x02")
    record = encode_message("orders", 0, b"body", {"X": "x" * room})
    message = decode_message(undeliverable(record, "no such topic"))
    assert (message.topic, message.properties) == (fmt.UNDELIVERABLE_TOPIC, {"X": "x" * room})
