"""N16 in master-slave mode: a byte changed on the wire ends the connection and changes nothing.

Real links over loopback, with a relay in between that flips one bit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from deploy.local_process import free_ports
from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaStanding
from node.replication.ha.core.wire import (
    Ack,
    Admit,
    Bind,
    Bound,
    DownFrame,
    DownParser,
    Frame,
    HaFrameError,
    Handshake,
    HandshakeReply,
    Hello,
    ImagePiece,
    ImageRequest,
    Transfer,
    UpFrame,
    UpParser,
    body_check,
    encode,
    transfer_head,
)
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.link import HaLink
from raft.messages import NO_INDEX
from tests.loopback import HOST
from tests.node.links import LIMITS, NoLives, identity
from tests.node.replication.ha.link.test_link import Contacts
from tests.patience import eventually

BODY = bytes(range(251)) * 3
UP: list[UpFrame] = [
    Handshake(1),
    Ack(0x0123456789AB),
    Hello(1, 7, "group"),
    Bound(HaBinding(9, 2, 1 << 60), 8, 500, 400, 450, HaStanding.FULL, 77),
    ImageRequest(),
]
DOWN: list[DownFrame] = [
    HandshakeReply(4096, 5, (EpochStart(3, 0), EpochStart(5, 1024))),
    Transfer(1024, 5, 1024, 900, BODY),
    Transfer(1030, 5, 1024, 1030),
    Bind(HaBinding(9, 1, 255), AckMode.ASYNC),
    Admit(9, 77),
    ImagePiece(2000, 0, BODY),
]
FRAMES: list[Frame] = [*UP, *DOWN]


def parser_for(frame: Frame) -> UpParser | DownParser:
    is_up = isinstance(frame, UpFrame)
    return UpParser() if is_up else DownParser()


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


def test_a_body_from_the_mapping_is_the_same_frame() -> None:
    frame = Transfer(1024, 5, 1024, 900, BODY)
    head = transfer_head(frame._replace(body=b""), len(BODY))
    assert head + BODY + body_check(BODY) == encode(frame)


class Relay:
    """Between a dialler and a listener: passes bytes on, and flips one bit when told to."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self.flip_up: int | None = None
        self.flip_down: int | None = None
        """Bit to flip, counted from the next byte of that direction on."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, HOST, port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        both = (
            self._pass(reader, far_writer, "flip_up"),
            self._pass(far_reader, writer, "flip_down"),
        )
        self._tasks = {asyncio.ensure_future(each) for each in both}
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, far_writer):
            each.close()
        for task in self._tasks:
            task.cancel()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, which: str
    ) -> None:
        try:
            while data := bytearray(await reader.read(1 << 16)):
                flip = getattr(self, which)
                if flip is not None:
                    if flip // 8 < len(data):
                        data[flip // 8] ^= 1 << flip % 8
                        flip = None
                    else:
                        flip -= 8 * len(data)
                    setattr(self, which, flip)
                writer.write(data)
        except OSError:
            pass


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[HaLink, Contacts, HaLink, Contacts, Relay]]:
    """Link 1 dials link 2 through a relay; link 2 dials into the void."""
    port1, port2, between = free_ports(3)
    on_contact = Contacts(), Contacts()
    relay = Relay((HOST, port2))
    peers = ({1: (HOST, port1), 2: (HOST, between)}, {1: (HOST, 1), 2: (HOST, port2)})
    links = [
        HaLink(
            identity(node),
            peers[node - 1],
            on_contact[node - 1],
            lambda: NO_INDEX,
            lives=NoLives(),
            limits=LIMITS,
        )
        for node in (1, 2)
    ]
    server = await relay.start(between)
    try:
        await links[1].start(HOST, port2)
        await links[0].start(HOST, port1)
        await eventually(lambda: on_contact[0].open and on_contact[1].open)
        yield links[0], on_contact[0], links[1], on_contact[1], relay
    finally:
        for link in links:
            await link.stop()
        server.close()


def latest(on_contact: Contacts) -> HaConnection:
    return on_contact.open[-1]


def has_dropped(link: HaLink, count: int) -> bool:
    """Whether so many connections ended for changed bytes; a changed state is of no known frame."""
    counts = link.stats().closed_counts
    return counts.get("bad_checksum", 0) + counts.get("protocol_error", 0) == count


def is_open_again(ends: tuple[Contacts, Contacts], before: tuple[int, int]) -> bool:
    return all(len(end.open) > count for end, count in zip(ends, before, strict=True))


@pytest.mark.parametrize("frame", FRAMES, ids=name)
async def test_a_changed_byte_on_a_real_link_drops_it_and_hands_out_nothing(frame: Frame) -> None:
    async with relayed() as (one, contacts_one, two, contacts_two, relay):
        is_up = isinstance(frame, UpFrame)
        sender, on_contact, link = (
            (contacts_one, contacts_two, two) if is_up else (contacts_two, contacts_one, one)
        )
        latest(sender).send_frame(frame)
        await eventually(lambda: len(on_contact.frames) == 1)
        size_bytes = len(encode(frame))
        # The state, the size or what follows it, the middle, and the check at the end.
        places = sorted({1, 6, 11, size_bytes // 2, size_bytes - 1})
        for number, at in enumerate(places, 1):
            setattr(relay, "flip_up" if is_up else "flip_down", 8 * at + 3)
            count = len(on_contact.open), len(sender.open)
            latest(sender).send_frame(frame)
            await eventually(partial(has_dropped, link, number), f"byte {at}")
            await eventually(partial(is_open_again, (on_contact, sender), count))
        assert len(on_contact.frames) == 1, "nothing of what was changed was handed out"
        assert link.stats().closed_counts["bad_checksum"] >= len(places) - 1
        latest(sender).send_frame(frame)
        await eventually(lambda: len(on_contact.frames) == 2)
        assert on_contact.frames[1][1] == frame
