"""How an image is put together: slow links, sources that change, what is not asked for."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.wire import Frame, ImagePiece
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.image_transfer import (
    PIECE_SIZE_BYTES,
    RETRY_MS,
    ImageReceiver,
    ImageSender,
)
from store.errors import CorruptionError, QueueOrderError, StoreFullError
from tests.patience import eventually


class Connection:
    """Counts what it is asked to send, and is open."""

    peer, queued_size_bytes, close_code = 2, 0, None
    closed = SimpleNamespace(done=lambda: False)

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
    receiver, first, second = ImageReceiver(), connection(), connection()
    receiver.ask_one([], 0)
    receiver.ask_one([first, second], 0)
    receiver.ask_one([first, second], RETRY_MS - 1)
    assert (receiver.source, sent_count(first)) == (first, 1)
    receiver.ask_one([first, second], RETRY_MS)
    assert (receiver.source, sent_count(second)) == (second, 1)
    assert receiver.take(first, ImagePiece(2, 0, b"ab"), RETRY_MS) is None, "too late"
    receiver.take(second, ImagePiece(4, 0, b"ab"), RETRY_MS)
    receiver.ask_one([first, second], 3 * RETRY_MS)
    assert receiver.source is second, "something came from there"
    receiver.forget(second)
    receiver.ask_one([first], 3 * RETRY_MS)
    assert receiver.take(first, ImagePiece(4, 2, b"cd"), 0) is None, "the rest of an older one"
    assert receiver.take(first, ImagePiece(2, 0, b"ok"), 0) == b"ok"


@pytest.mark.parametrize(
    ("error", "is_fatal"),
    [
        (StoreFullError("/disk", 1, 0), False),
        (CorruptionError("f", 10, "crc", "1", "2"), False),
        (QueueOrderError("orders", 0, 5, 7), True),
    ],
)
async def test_an_image_that_cannot_be_made_is_made_for_the_next_request_or_ends_the_process(
    error: Exception, is_fatal: bool
) -> None:
    outcomes: Iterator[Exception | bytes] = iter([error, bytes(PIECE_SIZE_BYTES + 1)])

    async def make_image() -> bytes:
        match next(outcomes):
            case Exception() as failure:
                raise failure
            case data:
                return data

    fatal = list[BaseException]()
    sender, link = ImageSender(make_image, fatal.append), connection()
    sender.begin(link)
    await eventually(lambda: fatal or sender.failed_count)
    assert (fatal, sender.failed_count) == (([error], 0) if is_fatal else ([], 1))
    assert sent_count(link) == 0
    sender.begin(link)
    await eventually(lambda: sent_count(link) == 2)
