"""The peer link between well-behaved nodes: frames arrive in order, connections heal."""

import asyncio
import os
import socket
from dataclasses import replace

import pytest

from node.peers.connection import PeerConnection
from node.peers.frames import PAYLOAD_SIZE_BYTES_MAX, FrameKind, encode_head
from node.peers.handshake import CloseCode
from tests.coroutines import LOOPS
from tests.loopback import HOST
from tests.node.links import (
    LIMITS,
    Frame,
    Node,
    RawListener,
    connected,
    identity,
    introduce,
    nodes,
    raw_to,
    send,
    started,
    transport_of,
)
from tests.patience import eventually
from tests.seeds import noise


@pytest.mark.parametrize("loop", LOOPS)  # Nodes run on uvloop; a link needs nothing of it.
async def test_frames_arrive_in_order_and_unchanged(loop: str) -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        frames: list[Frame] = [
            (FrameKind.APPEND, b"%d" % size, noise(size))
            for size in (0, 1, 100, 5000, 100_000, PAYLOAD_SIZE_BYTES_MAX, 3, 300_000)
        ] * 3
        for frame in frames:
            await send(one.link, 2, frame)
        await eventually(lambda: len(two.frames) == len(frames))
        assert two.frames == [(1, frame) for frame in frames]
        stats = one.link.stats().peers[0]
        size_bytes = sum(len(header) + len(payload) for _, header, payload in frames)
        assert stats.sent_size_bytes > size_bytes
        assert two.link.stats().peers[0].received_size_bytes > size_bytes
        assert stats.dropped_unconnected_count == 0


async def test_a_payload_is_valid_during_the_call_only() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        assert one.link.send(2, FrameKind.APPEND, b"h", b"payload")
        await eventually(lambda: two.frames)
        assert two.kept is not None
        with pytest.raises(ValueError, match="released"):
            bytes(two.kept)


async def test_a_peer_is_introduced_once_with_log_and_address() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        assert one.events == [("up", 2, 102, "client-of-2:8081")]
        assert two.events == [("up", 1, 101, "client-of-1:8081")]
        assert one.link.is_connected(2)
        assert not one.link.is_connected(3)


async def test_only_the_side_that_dialled_learns_the_token_of_the_other() -> None:
    """Before the Welcome nobody has proved to be the node that was looked for."""
    with RawListener() as listener:
        async with nodes(Node(1), acquainted=False) as (one,), raw_to(one) as accepted:
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            other = replace(identity(2), forwarding_token=b"token")
            await accepted.shake_hands(other, to=1)
            await eventually(lambda: one.link.is_connected(2))
            assert one.link.forwarding_token(2) == b""
            await (await listener.accept()).welcome(other)
            await eventually(lambda: one.link.forwarding_token(2))
            assert one.link.forwarding_token(2) == b"token"
            assert one.link.forwarding_token(3) == b""


async def test_replies_return_on_the_connection_the_peer_dialled() -> None:
    with RawListener() as listener:
        async with nodes(Node(1), acquainted=False) as (one,):
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            dialled = await listener.accept()
            await dialled.welcome(identity(2))
            async with raw_to(one) as accepted:
                await accepted.shake_hands(identity(2), to=1)
                await eventually(lambda: one.link.stats().peers[0].connection_count == 2)
                for kind in (FrameKind.APPEND, FrameKind.APPEND_REPLY):
                    assert one.link.send(2, kind, b"")
                assert await dialled.next_but_pings() == (FrameKind.APPEND, b"", b"")
                assert await accepted.next_but_pings() == (FrameKind.APPEND_REPLY, b"", b"")


_PATIENT = LIMITS._replace(ping_ms=60_000, silence_ms_max=120_000)
"""For raw sockets, which answer no ping."""


async def test_requests_stay_on_their_connection_until_it_ends() -> None:
    """Frames on a newer connection would overtake those that are on their way."""
    with RawListener() as listener:
        async with nodes(Node(1, _PATIENT), acquainted=False) as (one,), raw_to(one) as accepted:
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            dialled = await listener.accept()
            await accepted.shake_hands(identity(2), to=1)
            assert one.link.send(2, FrameKind.INSTALL_SNAPSHOT, b"")
            await dialled.welcome(identity(2))
            await eventually(lambda: one.link.stats().peers[0].connection_count == 2)
            assert one.link.send(2, FrameKind.SNAPSHOT_CHUNK, b"")
            assert await accepted.next_but_pings() == (FrameKind.INSTALL_SNAPSHOT, b"", b"")
            assert await accepted.next_but_pings() == (FrameKind.SNAPSHOT_CHUNK, b"", b"")
            assert one.count("down") == 0
            accepted.close()
            await eventually(lambda: one.count("down") == 1)
            assert one.link.send(2, FrameKind.INSTALL_SNAPSHOT, b"")
            assert await dialled.next_but_pings() == (FrameKind.INSTALL_SNAPSHOT, b"", b"")


async def test_a_peer_that_goes_on_over_another_connection_has_lost_the_one_before() -> None:
    """Its older frames, of which some may be lost, would mix with the newer ones."""
    with RawListener() as listener:
        async with nodes(Node(1, _PATIENT), acquainted=False) as (one,), raw_to(one) as accepted:
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            dialled = await listener.accept()
            await dialled.welcome(identity(2))
            await accepted.shake_hands(identity(2), to=1)
            await eventually(lambda: one.link.stats().peers[0].connection_count == 2)
            for kind in (FrameKind.APPEND_REPLY, FrameKind.APPEND):
                await accepted.send(kind)
            await eventually(lambda: len(one.frames) == 2)
            await dialled.send(FrameKind.APPEND_REPLY)
            await eventually(lambda: len(one.frames) == 3)
            assert one.count("down") == 0, "replies come on any connection"
            await dialled.send(FrameKind.APPEND)
            await eventually(lambda: len(one.frames) == 4)
            assert [event[0] for event in one.events] == ["up", "down", "up"]
            await accepted.ended()
            assert one.closed_counts == {CloseCode.REPLACED: 1}
            assert one.link.send(2, FrameKind.APPEND, b"")
            assert await dialled.next_but_pings() == (FrameKind.APPEND, b"", b"")


async def test_a_restarted_peer_is_connected_again() -> None:
    two, again = Node(2), Node(2)
    two.host = again.host = HOST
    async with nodes(Node(1), two) as (one, _):
        await two.link.stop()
        await eventually(lambda: not one.link.is_connected(2))
        assert [event[0] for event in one.events][-1] == "down"
        assert not one.link.send(2, FrameKind.APPEND, b"")
        assert one.link.stats().peers[0].dropped_unconnected_count == 1
        await started(again, two.port)
        try:
            introduce(one, again)
            await connected(one, again)
            assert one.link.send(2, FrameKind.APPEND, b"again")
            await eventually(lambda: again.frames)
            ups_and_downs = [event[0] for event in one.events]
            assert ups_and_downs[::2] == ["up"] * len(ups_and_downs[::2])
            assert ups_and_downs[1::2] == ["down"] * len(ups_and_downs[1::2])
        finally:
            await again.link.stop()


async def test_a_single_connection_carries_both_directions() -> None:
    async with nodes(Node(1), Node(2), acquainted=False) as (one, two):
        nowhere = socket.socket()
        nowhere.bind(("127.0.0.1", 0))  # Bound and not listening: dialling it is refused.
        one.link.set_peers({2: ("127.0.0.1", two.port)})
        two.link.set_peers({1: nowhere.getsockname()})
        await eventually(lambda: one.link.is_connected(2) and two.link.is_connected(1))
        for kind in (FrameKind.APPEND, FrameKind.APPEND_REPLY):
            assert one.link.send(2, kind, b"")
            assert two.link.send(1, kind, b"")
        await eventually(lambda: len(one.frames) == len(two.frames) == 2)
        assert two.link.stats().peers[0].connection_count == 1
        await eventually(lambda: two.link.stats().peers[0].last_trouble.startswith("unreachable: "))
        nowhere.close()


async def test_a_broken_connection_is_reported_and_the_other_one_serves() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        dialled = one.peer(2).dialled
        assert dialled is not None
        transport_of(dialled).abort()
        await eventually(lambda: one.count("down") == 1)
        assert [event[0] for event in one.events] == ["up", "down", "up"]
        assert one.link.is_connected(2)
        await connected(one, two)
        assert one.link.send(2, FrameKind.APPEND, b"after")
        await eventually(lambda: two.frames)


async def test_a_peer_that_is_removed_or_moves_is_cut_off() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        one.link.set_peers({1: ("127.0.0.1", one.port)})
        assert not one.link.is_connected(2)
        assert one.closed_counts[CloseCode.REMOVED] == 2
        await eventually(lambda: not two.link.is_connected(1))
        await eventually(lambda: one.closed_counts.get(CloseCode.UNKNOWN_NODE, 0) >= 2)
        assert "unknown_node: node 2 is not among" in two.link.stats().peers[0].last_trouble
        introduce(one, two)
        await connected(one, two)

        moved = await started(Node(2))
        try:
            introduce(one, moved)
            await connected(one, moved)
            assert one.link.send(2, FrameKind.APPEND, b"to the new place")
            await eventually(lambda: moved.frames)
            assert two.frames == []
        finally:
            await moved.link.stop()


async def test_a_handler_may_refuse_a_frame() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        two.refuse = "an append of nonsense"
        one.link.send(2, FrameKind.APPEND, b"first")
        one.link.send(2, FrameKind.APPEND, b"second, on the same connection")
        await eventually(lambda: two.closed_counts.get(CloseCode.PROTOCOL_ERROR) == 1)
        assert (two.received_count, two.frames) == (1, [])
        await eventually(lambda: one.count("down") == 1)
        trouble = "refused: the peer said protocol_error: an append of nonsense"
        assert one.link.stats().peers[0].last_trouble == trouble
        assert [event[0] for event in one.events if event[0] != "up"] == ["refused", "down"]
        two.refuse = ""
        await connected(one, two)


async def test_a_bug_in_the_handler_reaches_the_loop() -> None:
    troubles: list[BaseException] = []

    async with nodes(Node(1), Node(2)) as (one, two):
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: troubles.append(context["exception"])
        )
        two.fail = AssertionError("a broken invariant")
        one.link.send(2, FrameKind.APPEND, b"")
        await eventually(lambda: troubles)
        two.fail = None
    assert [str(trouble) for trouble in troubles] == ["a broken invariant"]


async def test_silence_is_broken_by_pings_and_a_hung_peer_is_dropped() -> None:
    def _say_nothing(kind: FrameKind, header: bytes, payload: bytes = b"") -> None:
        pass

    async with nodes(Node(1), Node(2)) as (one, two):
        enough = one.link.stats().peers[0].received_size_bytes + 4 * len(
            encode_head(FrameKind.PONG, b"")
        )
        await eventually(lambda: one.link.stats().peers[0].received_size_bytes >= enough)
        assert CloseCode.SILENT not in one.closed_counts
        # From here on node 2 reads, and says nothing.
        for connection in two.peer(1).connections:
            connection.send = _say_nothing  # type: ignore[method-assign]
        await eventually(lambda: one.closed_counts.get(CloseCode.SILENT) == 2)
        await connected(one, two)


async def test_a_sender_on_a_thin_link_hears_that_its_peer_lives() -> None:
    async with nodes(Node(1), acquainted=False) as (one,), raw_to(one) as raw:
        one.link.set_peers({1: ("127.0.0.1", one.port), 2: ("127.0.0.1", 1)})
        await raw.shake_hands(identity(2), to=1)
        frame = encode_head(FrameKind.APPEND, b"", 1000) + bytes(1000)
        await raw.put(frame[:100])
        at = 100
        kinds: list[FrameKind] = []
        while kinds.count(FrameKind.PONG) < 10:
            heard = await raw.next_frame()
            assert heard is not None
            kinds.append(heard[0])
            # One byte for each sign of life: it is never silent itself.
            await raw.put(frame[at : at + 1])
            at += 1
            assert at < len(frame), kinds
        await raw.put(frame[at:])
        await eventually(lambda: one.frames)
        assert one.frames[0][1][0] is FrameKind.APPEND
        # Whole frames alone are no reason to speak: two that are idle would never be quiet.
        while (await raw.next_frame()) != (FrameKind.PING, b"", b""):
            pass


async def test_nagle_is_off() -> None:
    def _nodelay(connection: PeerConnection) -> int:
        fd = transport_of(connection).get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(fd)) as twin:
            return twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    async with nodes(Node(1), Node(2)) as (one, two):
        for node, other in ((one, 2), (two, 1)):
            for connection in node.peer(other).connections:
                assert _nodelay(connection), f"{connection.side}"


async def test_stop_leaves_nothing_open_and_tells_the_peer() -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        before = len(os.listdir("/proc/self/fd"))
        events = list(one.events)
        await one.link.stop()
        assert one.events == events, "the handler was called after stop"
        assert not one.link.send(2, FrameKind.APPEND, b"")
        await eventually(lambda: not two.link.is_connected(1))
        assert "stopping" in two.link.stats().peers[0].last_trouble
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before - 5)


async def test_reconnecting_slows_down_to_its_limit() -> None:
    node = Node(1)
    pauses: list[float] = []
    node.link._random.uniform = lambda a, b: b  # type: ignore[method-assign]
    pause = asyncio.sleep

    async def sleep(delay: float) -> None:
        if asyncio.current_task() is node.peer(2).dialler:
            pauses.append(round(delay * 1000))
        await pause(0.001)

    with pytest.MonkeyPatch.context() as patch, socket.socket() as nowhere:
        nowhere.bind(("127.0.0.1", 0))
        patch.setattr("node.peers.link.asyncio.sleep", sleep)
        await started(node)
        node.link.set_peers({2: nowhere.getsockname()})
        while len(pauses) < 6:
            await pause(0.001)
        await node.link.stop()
    assert pauses[:6] == [5, 10, 20, 40, 40, 40]
    assert (LIMITS.reconnect_ms_min, LIMITS.reconnect_ms_max) == (5, 40)
