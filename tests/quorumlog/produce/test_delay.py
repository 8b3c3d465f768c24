"""Delayed messages in the SDK: what a wish may be, and how batches of them differ."""

import math
from typing import Any

import pytest

from quorumlog.cluster.retry import Deadline
from quorumlog.errors import (
    InvalidRequestError,
)
from quorumlog.pb import log_pb2
from quorumlog.produce.delivery import Batch
from quorumlog.produce.outgoing_messages import (
    HAS_DELAYED,
    HELD_SIZE_BYTES,
    all_with_wish,
    with_wish,
)
from quorumlog.records.batch import Entry, size_bytes_of, topic_template
from quorumlog.records.message import OutgoingMessage


@pytest.mark.parametrize(
    ("wish", "properties"),
    [
        ({"delay": 0}, {"TIMER_DELAY_MS": "0"}),
        ({"delay": 1.0001}, {"TIMER_DELAY_MS": "1001"}),
        ({"deliver_at": 1_700_000_000.25}, {"TIMER_DELIVER_MS": "1700000000250"}),
        ({"level": 18}, {"DELAY": "18"}),
    ],
)
def test_a_wish_is_a_property(wish: dict[str, Any], properties: dict[str, str]) -> None:
    given = {"delay": None, "level": None, "deliver_at": None, **wish}
    assert with_wish(None, **given) == properties
    assert with_wish({"a": "b"}, **given) == {**properties, "a": "b"}


@pytest.mark.parametrize(
    "wish",
    [
        {"delay": 1, "level": 1},
        {"delay": 1, "deliver_at": 1},
        {"level": 0},
        {"level": 19},
        {"delay": -0.001},
        {"delay": math.nan},
        {"delay": math.inf},
        {"deliver_at": -1},
        {"deliver_at": 1_700_000_000_000},
    ],
)
def test_a_wish_that_means_nothing_is_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        with_wish(None, **{"delay": None, "level": None, "deliver_at": None, **wish})


def test_a_property_beside_a_wish_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="DELAY"):
        with_wish({"DELAY": "3"}, 1, None, None)


def test_messages_with_properties_of_their_own_are_delayed_like_the_others() -> None:
    bodies: list[bytes | str | OutgoingMessage] = [b"1"]
    bodies += [OutgoingMessage(b"2"), OutgoingMessage(b"3", properties={"a": "b"})]
    first, second, third = all_with_wish(bodies, 2, None, None)
    assert (first, second) == (b"1", OutgoingMessage(b"2"))
    assert isinstance(third, OutgoingMessage)
    assert third.properties == {"TIMER_DELAY_MS": "2000", "a": "b"}


def test_a_held_message_grows_by_no_more_than_is_reckoned_with() -> None:
    # The name of its own topic only moves, into the property.
    added = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "REAL_TOPIC__", "REAL_QID__2147483647")
    grown = sum(map(len, (*added, "TIMER_OUT_MS__1700000000000", "DELAY_18_")))
    assert grown - len("SCHEDULE_TOPIC_XXXX") <= HELD_SIZE_BYTES
    assert log_pb2.AppendRequest.FromString(HAS_DELAYED).has_delayed


def test_a_receipt_of_a_held_message_has_no_queue_offset_yet() -> None:
    batch = Batch(Deadline(1_000), lambda _: None, is_atomic=True)
    entries: list[Entry] = [(topic_template("orders"), 0, None, b"x", b"", 0, 0)] * 2
    batch.add_all(entries, sum(map(size_bytes_of, entries)))
    batch.encode(lambda _: 1, lambda _: 0)
    batch.acknowledge(
        log_pb2.AppendResponse(
            record_count=2, positions=[700, 900], due_unix_ms=[5, 6], store_host=bytes(8)
        )
    )
    receipts = [batch.receipt(i) for i in range(2)]
    places = [(r.queue_offset, r.log_position, r.due_unix_ms) for r in receipts]
    assert places == [(-1, 700, 5), (-1, 900, 6)]
