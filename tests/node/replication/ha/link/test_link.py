"""The HA link: who may speak, what strangers get, and bytes that arrive in any pieces."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.local_process import free_ports
from node.peers import handshake
from node.peers.frames import FrameKind, FrameParser, encode_head
from node.peers.stream import Side
from node.replication.ha.core.types import HaBinding
from node.replication.ha.core.wire import Ack, Bind, Frame, Hello, Transfer, encode
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.link import HaLink
from raft.messages import NO_INDEX
from tests.loopback import HOST
from tests.node.links import LIMITS, SECRET, NoLives, identity
from tests.patience import eventually


class Contacts:
    """Takes what comes and remembers it."""

    def __init__(self) -> None:
        self.open: list[HaConnection] = []
        self.closed: list[HaConnection] = []
        self.frames: list[tuple[Side, Frame]] = []
        self.is_full = False

    def on_open(self, connection: HaConnection) -> None:
        self.open.append(connection)
        connection.begin()

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        if self.is_full:
            return False
        self.frames.append((connection.side, frame))
        return True

    def on_closed(self, connection: HaConnection) -> None:
        self.closed.append(connection)

    def dialled(self) -> HaConnection:
        return next(c for c in self.open if c.side is Side.DIALLED)

    def accepted(self) -> HaConnection:
        return next(c for c in self.open if c.side is Side.ACCEPTED)


@asynccontextmanager
async def pair(**changes: Any) -> AsyncIterator[tuple[HaLink, Contacts, HaLink, Contacts]]:
    """Links of replicas 1 and 2, which have met unless there are `changes` of the identity of 2."""
    ports = free_ports(2)
    peers = {node: (HOST, port) for node, port in zip((1, 2), ports, strict=True)}
    on_contact = Contacts(), Contacts()
    links = [
        HaLink(
            identity(node, **(changes if node == 2 else {})),
            peers,
            lambda *_: None,
            lambda: NO_INDEX,
            lives=NoLives(),
            limits=LIMITS,
        )
        for node in (1, 2)
    ]
    try:
        for link, port, contacts in zip(links, ports, on_contact, strict=True):
            link.attach(contacts.on_open, contacts.on_frame, contacts.on_closed)
            await link.start(HOST, port)
        if not changes:
            await eventually(lambda: len(on_contact[0].open) == len(on_contact[1].open) == 2)
        yield links[0], on_contact[0], links[1], on_contact[1]
    finally:
        for link in links:
            await link.stop()
        for one in on_contact:
            for connection in one.open:
                assert connection.closed.done()


async def test_each_dials_the_other_and_frames_go_both_ways() -> None:
    async with pair() as (one, contacts_one, _, contacts_two):
        assert one.is_connected(2)
        body = bytes(range(256)) * 2000
        down: list[Frame] = [
            Bind(HaBinding(3, 1, 9)),
            Transfer(64, 3, 0, 10, body),
            Transfer(5, 3, 0, 10),
        ]
        for frame in down:
            contacts_one.accepted().send_frame(frame)
        up: list[Frame] = [Hello(1, 7, "g"), Ack(77)]
        for frame in up:
            contacts_one.dialled().send_frame(frame)
        await eventually(lambda: len(contacts_two.frames) == 5)
        assert [f for side, f in contacts_two.frames if side is Side.DIALLED] == down
        ups = [f for side, f in contacts_two.frames if side is Side.ACCEPTED]
        assert ups == up
        (stats,) = one.stats().peers
        assert (stats.is_connected, stats.connection_count) == (True, 2)
        assert stats.sent_size_bytes > len(body)


async def test_a_receiver_without_room_stops_reading_until_it_has_some() -> None:
    async with pair() as (_, contacts_one, _, contacts_two):
        contacts_two.is_full = True
        source = contacts_one.accepted()
        frames = [Transfer(n, 1, 0, n, b"x" * 60_000) for n in range(200)]
        for frame in frames:
            source.send_frame(frame)
        await eventually(lambda: source.queued_size_bytes > 0)
        assert contacts_two.frames == []
        contacts_two.is_full = False
        contacts_two.dialled().resume()
        await eventually(lambda: len(contacts_two.frames) == len(frames))
        assert [frame for _, frame in contacts_two.frames] == frames


async def test_a_link_that_is_closed_is_dialled_again() -> None:
    async with pair() as (one, contacts_one, _, contacts_two):
        first = contacts_one.dialled()
        one.close(first, "a reason")
        await eventually(lambda: len(contacts_one.open) == 3)
        assert contacts_one.closed == [], "who asked is not told"
        await eventually(lambda: len(contacts_two.closed) == 1)
        assert one.stats().peers[0].last_trouble == "protocol_error: a reason"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "other"}, "wrong_cluster"),
        ({"group": "group (raft)"}, "wrong_group"),
        ({"secret": b"another secret here"}, "bad_auth"),
        ({"node_id": 3}, "unknown_node"),
    ],
)
async def test_a_node_that_does_not_belong_here_is_refused_by_name(
    changes: dict[str, Any], code: str
) -> None:
    async with pair(**changes) as (one, contacts_one, _, contacts_two):
        await eventually(lambda: one.stats().closed_counts.get(code, 0) > 0, code)
        assert contacts_one.open == contacts_two.open == []


@pytest.mark.long
async def test_strangers_cost_little_and_go_soon() -> None:
    async with pair() as (one, contacts_one, two, _):
        port = two.stats().peers[0].port  # Where replica 2 finds replica 1.
        garbage = [
            b"GET / HTTP/1.1\r\n\r\n" * 10,
            b"\xff" * 5000,
            encode(Hello(2, 7, "g")),
            encode_head(FrameKind.APPEND, b"x"),
            encode_head(FrameKind.GOODBYE, handshake.goodbye(handshake.CloseCode.LOST, "x")),
        ]
        for data in garbage:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(data)
            greeting = await reader.read()  # The challenge, and the end.
            assert len(greeting) < 200
            writer.close()
        silent = [await asyncio.open_connection(HOST, port) for _ in range(80)]
        assert one.stats().handshake_count <= LIMITS.handshake_count_max
        for reader, writer in silent:
            await reader.read()
            writer.close()
        assert one.stats().handshake_count == 0
        assert len(contacts_one.open) == 2
        assert contacts_one.frames == []


async def test_bytes_that_are_no_frame_end_a_known_link() -> None:
    async with pair() as (one, contacts_one, two, contacts_two):
        contacts_one.accepted().send(b"\x00\x00\x00\x63 is no state")
        await eventually(lambda: two.stats().closed_counts.get("protocol_error"))
        await eventually(lambda: len(contacts_two.open) == 3, "and it is dialled again")
        assert contacts_two.frames == []
        await eventually(lambda: one.is_connected(2), "the other side has met it, too")


async def test_a_second_hello_is_a_breach() -> None:
    async with pair() as (one, _, two, _):
        port = two.stats().peers[0].port
        reader, writer = await asyncio.open_connection(HOST, port)
        parser = FrameParser()
        data = await reader.read(1000)
        parser.buffer()[: len(data)] = data
        parser.filled(len(data))
        frame = parser.next_frame()
        assert frame is not None
        mine = identity(2, secret=SECRET)
        _, hello = handshake.hello(mine, frame[1], to=1, last_index=NO_INDEX)
        writer.write(encode_head(FrameKind.HELLO, hello) * 2)
        await reader.read()
        await eventually(lambda: one.stats().closed_counts.get("protocol_error"))
        writer.close()


@pytest.mark.parametrize("sizes", [[4_000], [2_000, 2_000], [64] * 60])
async def test_a_handshake_behind_optional_frames_of_a_later_version_is_taken(
    sizes: list[int],
) -> None:
    class Owner:
        frames: tuple[tuple[FrameKind, bytes], ...] = ()

        def on_made(self, _connection: object) -> None:
            pass

        def on_handshake_frame(self, _connection: object, kind: FrameKind, header: bytes) -> None:
            self.frames += ((kind, bytes(header)),)

    owner: Any = Owner()
    connection = HaConnection(owner, LIMITS, Side.DIALLED, 2)
    later: Any = 200  # A kind that no build has yet.
    optional = b"".join(encode_head(later, bytes(size)) for size in sizes)
    connection.data_received(optional + encode_head(FrameKind.CHALLENGE, b"y" * 100))
    assert owner.frames == ((FrameKind.CHALLENGE, b"y" * 100),)
