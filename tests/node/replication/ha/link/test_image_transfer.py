"""How an image is put together: slow links, sources that change, what is not asked for."""

from typing import cast

import pytest

from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.wire import Frame, ImagePiece
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.image_transfer import RETRY_MS, ImageReceiver


class Connection:
    """Counts what it is asked to send."""

    def __init__(self) -> None:
        self.sent_count = 0

    def send_frame(self, _frame: Frame) -> None:
        self.sent_count += 1


def connection() -> HaConnection:
    return cast(HaConnection, Connection())


def sent_count(one: HaConnection) -> int:
    return cast(Connection, one).sent_count


def test_a_slow_link_brings_an_image_all_the_same() -> None:
    """Its sender goes on with what it has begun, however often it is asked."""
    receiver, link, now_ms = ImageReceiver(), connection(), 0
    receiver.ask(link, now_ms)
    for at in range(5):
        assert receiver.take(link, ImagePiece(6, at, b"%d" % at), now_ms) is None
        now_ms += RETRY_MS
        receiver.ask_one([link], now_ms)
    assert receiver.take(link, ImagePiece(6, 5, b"5"), now_ms) == b"012345"
    assert sent_count(link) == 6


def test_an_image_that_begins_again_takes_the_place_of_its_part() -> None:
    receiver, link = ImageReceiver(), connection()
    receiver.ask(link, 0)
    receiver.take(link, ImagePiece(4, 0, b"ab"), 0)
    receiver.ask(link, RETRY_MS)
    receiver.take(link, ImagePiece(3, 0, b"xy"), RETRY_MS)
    assert receiver.take(link, ImagePiece(3, 2, b"z"), RETRY_MS) == b"xyz"
    receiver.ask(link, RETRY_MS)
    receiver.take(link, ImagePiece(4, 0, b"ab"), RETRY_MS)
    with pytest.raises(HaProtocolError):
        receiver.take(link, ImagePiece(4, 3, b"d"), RETRY_MS)


def test_a_silent_source_of_an_image_is_replaced() -> None:
    receiver, one, two = ImageReceiver(), connection(), connection()
    receiver.ask_one([], 0)
    receiver.ask_one([one, two], 0)
    receiver.ask_one([one, two], RETRY_MS - 1)
    assert (receiver.source, sent_count(one)) == (one, 1)
    receiver.ask_one([one, two], RETRY_MS)
    assert (receiver.source, sent_count(two)) == (two, 1)
    assert receiver.take(one, ImagePiece(2, 0, b"ab"), RETRY_MS) is None, "too late"
    receiver.take(two, ImagePiece(4, 0, b"ab"), RETRY_MS)
    receiver.ask_one([one, two], 3 * RETRY_MS)
    assert receiver.source is two, "something came from there"
    receiver.forget(two)
    receiver.ask_one([one], 3 * RETRY_MS)
    assert receiver.take(one, ImagePiece(4, 2, b"cd"), 0) is None, "the rest of an older one"
    assert receiver.take(one, ImagePiece(2, 0, b"ok"), 0) == b"ok"
