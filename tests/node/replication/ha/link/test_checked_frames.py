"""N16 in master-slave mode: a byte changed on the wire ends the connection and changes nothing."""

from functools import partial

import pytest

from node.peers.stream import Side
from node.replication.ha.core.wire import Frame, HaFrameError, UpFrame, encode
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.link import HaLink
from tests.node.replication.ha.core.test_wire import FRAMES, parser_for
from tests.node.replication.ha.link.test_link import Contacts, pair
from tests.patience import eventually


def name(frame: Frame) -> str:
    return type(frame).__name__


@pytest.mark.parametrize("frame", FRAMES, ids=name)
def test_every_flipped_bit_of_every_frame_is_an_error_at_once(frame: Frame) -> None:
    """The frame alone is there, and nothing behind it: no size may make the parser wait."""
    data = encode(frame)
    assert parser_for(frame).feed(data) == [frame]
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(HaFrameError):
                parser_for(frame).feed(bytes(changed))


def latest(contacts: Contacts, side: Side) -> HaConnection:
    return [connection for connection in contacts.open if connection.side is side][-1]


def flip_once(connection: HaConnection, at: int) -> None:
    """Flip one bit of the next bytes on their way out."""

    def flipped(parts: list[bytes]) -> list[bytes]:
        connection.harm = None
        data = bytearray(b"".join(parts))
        data[at] ^= 8
        return [bytes(data)]

    connection.harm = flipped


def has_dropped(link: HaLink, count: int) -> bool:
    """Whether so many connections ended for changed bytes; a changed state is of no known frame."""
    counts = link.stats().closed_counts
    return counts.get("bad_checksum", 0) + counts.get("protocol_error", 0) == count


@pytest.mark.parametrize("frame", FRAMES, ids=name)
async def test_a_changed_byte_on_a_real_link_drops_it_and_hands_out_nothing(frame: Frame) -> None:
    from_side, to_side = Side.DIALLED, Side.ACCEPTED
    if not isinstance(frame, UpFrame):
        from_side, to_side = to_side, from_side
    async with pair() as (_, sender, link, receiver):
        latest(sender, from_side).send_frame(frame)
        await eventually(lambda: len(receiver.frames) == 1)
        size_bytes = len(encode(frame))
        # The state, the size or what follows it, the middle, and the check at the end.
        places = sorted({1, 6, 11, size_bytes // 2, size_bytes - 1})
        for number, at in enumerate(places, 1):
            flip_once(latest(sender, from_side), at)
            count = len(sender.open), len(receiver.open)
            latest(sender, from_side).send_frame(frame)
            await eventually(partial(has_dropped, link, number), f"byte {at}")
            await eventually(lambda: len(sender.open) > count[0])  # noqa: B023 - awaited here.
            await eventually(lambda: len(receiver.open) > count[1])  # noqa: B023
        assert len(receiver.frames) == 1, "nothing of what was changed was handed out"
        assert link.stats().closed_counts["bad_checksum"] >= len(places) - 1
        latest(sender, from_side).send_frame(frame)
        await eventually(lambda: len(receiver.frames) == 2)
        assert receiver.frames[1] == (to_side, frame)
