"""The peer link against wrong nodes, strangers and bad manners: refused by name, bounded, and the
good peers do not notice."""

import asyncio
import contextlib
import errno
import hmac
import os
import socket
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from node.peers import handshake
from node.peers.frames import HANDSHAKE_SIZE_BYTES_MAX, FrameKind
from node.peers.handshake import CloseCode, HandshakeRefusedError
from node.peers.security.proof import is_same, sign
from quorumlog.pb import peer_pb2 as pb
from raft.messages import NodeId
from tests.node.links import (
    LIMITS,
    Node,
    Raw,
    RawListener,
    connected,
    identity,
    introduce,
    nodes,
    raw_to,
    started,
)
from tests.patience import eventually


async def _hello(raw: Raw, to: int = 1, **changes: Any) -> bytes:
    """Read the Challenge and return the header of a Hello that answers it, with these changes."""
    challenge = await raw.next_frame()
    assert challenge is not None
    identity_changes = {key: changes.pop(key) for key in list(changes) if key != "protocol"}
    who = identity(identity_changes.pop("node_id", 2), **identity_changes)
    _, header = handshake.hello(who, challenge[1], to=to, last_index=5)
    if changes:
        made = pb.Hello.FromString(header)
        made.protocol = changes["protocol"]
        header = made.SerializeToString()
    return header


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"cluster_id": "other"}, "wrong_cluster", "cluster 'other' is not the one of this node"),
        ({"group": "other"}, "wrong_group", "group 'other' is not the one of this node"),
        ({"to": 3}, "wrong_node", "node 3 is not here; check the addresses of the peers"),
        ({"node_id": 9}, "unknown_node", "node 9 is not among the peers of this node"),
        ({"node_id": 1}, "unknown_node", "node 1 is not among the peers of this node"),
        ({"secret": b"guessed guessed guessed"}, "bad_auth", "the secrets of the two nodes differ"),
        ({"secret": b""}, "bad_auth", "the secrets of the two nodes differ"),
        (
            {"file_size_bytes": 1 << 30},
            "wrong_file_size",
            "node 2 has log files of 1073741824 B, this node of 1048576 B; set one "
            "file_size_bytes for the group, and start the node that differs with an empty "
            "directory",
        ),
        ({"protocol": 2}, "wrong_protocol", "protocol 2 is not spoken here, only 1"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
async def test_a_wrong_hello_is_refused_by_name(
    changes: dict[str, Any], code: str, text: str
) -> None:
    async with nodes(Node(1), acquainted=False) as (one,):
        one.link.set_peers({1: ("", 0), 2: ("127.0.0.1", 1)})
        async with raw_to(one) as raw:
            await raw.send(FrameKind.HELLO, await _hello(raw, **dict(changes)))
            (frame,) = await raw.ended()
            assert frame[0] is FrameKind.GOODBYE
            assert handshake.read_goodbye(frame[1]) == (code, text)
        assert one.closed_counts[code] == 1
        assert one.events == []


async def test_a_node_behind_the_wrong_address_is_not_taken_for_another() -> None:
    async with nodes(Node(1), Node(2), acquainted=False) as (one, two):
        one.link.set_peers({3: ("127.0.0.1", two.port)})
        await eventually(lambda: one.link.stats().peers[0].last_trouble)
        assert "wrong_node: node 3 is not here" in one.link.stats().peers[0].last_trouble
        # A node that dials itself by mistake finds out, too.
        one.link.set_peers({3: ("127.0.0.1", one.port)})
        await eventually(lambda: CloseCode.WRONG_NODE in one.closed_counts)


@pytest.mark.parametrize("answer", ["wrong node", "wrong secret", "replayed", "garbage", "hello"])
async def test_a_dialler_checks_who_answers(answer: str) -> None:
    expected = {
        "wrong node": CloseCode.WRONG_NODE,
        "wrong secret": CloseCode.BAD_AUTH,
        "replayed": CloseCode.BAD_AUTH,
        "garbage": CloseCode.GARBAGE,
        "hello": CloseCode.PROTOCOL_ERROR,
    }[answer]

    def _welcome(nonce: int) -> bytes:
        who = identity(3 if answer == "wrong node" else 2)
        if answer == "wrong secret":
            who = replace(who, secret=b"not the secret at all")
        signed = nonce ^ 1 if answer == "replayed" else nonce
        return handshake.welcome(who, to=1, nonce=signed, last_index=0)

    with RawListener() as listener:
        async with nodes(Node(1), acquainted=False) as (one,):
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            raw = await listener.accept()
            if answer == "garbage":
                await raw.put(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            else:
                await raw.send(FrameKind.CHALLENGE, handshake.challenge()[1])
                hello = await raw.next_frame()
                assert hello is not None
                kind = FrameKind.HELLO if answer == "hello" else FrameKind.WELCOME
                await raw.send(kind, _welcome(pb.Hello.FromString(hello[1]).nonce))
            await eventually(lambda: one.closed_counts.get(expected, 0) == 1)
            assert one.events == []


async def test_a_hello_that_was_overheard_is_of_no_use() -> None:
    async with nodes(Node(1), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as first, raw_to(one) as second:
            header = await _hello(first)
            await first.send(FrameKind.HELLO, header)
            await eventually(lambda: one.link.is_connected(2))
            assert await second.next_frame() is not None, "it has a challenge of its own"
            await second.send(FrameKind.HELLO, header)
            frames = await second.ended()
            assert handshake.read_goodbye(frames[-1][1])[0] == "bad_auth"
            assert one.link.is_connected(2)


_GARBAGE: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(40),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "oversized": struct.pack(">II", HANDSHAKE_SIZE_BYTES_MAX + 1, FrameKind.HELLO << 24 | 4),
    "append": struct.pack(">II", 100, FrameKind.APPEND << 24 | 4),
    "goodbye": bytes.fromhex("00000008 04 000004") + b"\0\0\0\0",
}


@pytest.mark.parametrize("name", _GARBAGE)
async def test_garbage_ends_the_connection_at_once(name: str) -> None:
    async with nodes(Node(1), Node(2)) as (one, two):
        async with raw_to(one) as raw:
            await raw.put(_GARBAGE[name])
            frames = await raw.ended()
            assert [frame[0] for frame in frames] in ([FrameKind.CHALLENGE], [])
        assert one.closed_counts == {CloseCode.GARBAGE: 1}
        assert one.link.is_connected(2)
        assert one.count("down") + two.count("down") == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 50])
async def test_a_handshake_that_is_never_finished_ends_at_its_deadline(size: int) -> None:
    limits = LIMITS._replace(handshake_ms_max=50)
    async with nodes(Node(1, limits), acquainted=False) as (one,), raw_to(one) as raw:
        hello = struct.pack(">II", 100, FrameKind.HELLO << 24 | 90) + bytes(92)
        await raw.put(hello[:size])
        await raw.ended()
        assert one.closed_counts == {CloseCode.TIMEOUT: 1}
        await eventually(lambda: one.link.stats().handshake_count == 0)


async def test_a_silent_listener_does_not_hold_up_the_dialler() -> None:
    limits = LIMITS._replace(handshake_ms_max=50)
    with RawListener() as listener:
        async with nodes(Node(1, limits), acquainted=False) as (one,):
            one.link.set_peers({2: ("127.0.0.1", listener.port)})
            first = await listener.accept()
            assert await first.ended() == []
            await listener.accept()
            assert one.closed_counts[CloseCode.TIMEOUT] >= 1


async def test_idle_strangers_are_bounded_and_keep_no_peer_out() -> None:
    limits = LIMITS._replace(handshake_count_max=16, handshake_ms_max=60_000)
    async with nodes(Node(1, limits), Node(2, limits), acquainted=False) as (one, two):
        raws: list[Raw] = []
        try:
            fd_count = len(os.listdir("/proc/self/fd"))
            for number in range(2000):
                raws.append(await Raw().dial(one.port))
                assert one.link.stats().handshake_count <= 16
                if number == 1000:
                    introduce(one, two)
            await connected(one, two)
            await eventually(lambda: one.link.stats().accepted_count >= 2000)
            await eventually(lambda: one.closed_counts.get(CloseCode.DISPLACED, 0) >= 1980)
            own_fd_count = len(os.listdir("/proc/self/fd")) - fd_count - len(raws)
            assert own_fd_count <= 16 + 8, f"{own_fd_count} descriptors for idle strangers"
            for raw in raws[:100]:
                await raw.ended()
        finally:
            for raw in raws:
                raw.close()


async def test_strangers_of_one_address_make_room_among_themselves() -> None:
    limits = LIMITS._replace(handshake_count_max=4, handshake_ms_max=60_000)
    async with nodes(Node(1, limits), acquainted=False) as (one,):
        hosts, links = ["127.0.0.1", *["127.0.0.2"] * 12], []
        try:
            for host in hosts:
                opening = asyncio.open_connection("127.0.0.1", one.port, local_addr=(host, 0))
                links.append(await opening)
            await eventually(lambda: one.closed_counts.get(CloseCode.DISPLACED, 0) == 9)
            kept = [name for _, name in one.link._acceptor.strangers.values()]
            assert sorted(kept) == ["127.0.0.1", *["127.0.0.2"] * 3]
        finally:
            for _, writer in links:
                writer.close()


async def test_descriptors_that_run_out_do_not_end_the_accepting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [errno.EMFILE, errno.ECONNABORTED]
    accept = socket.socket.accept

    async with nodes(Node(1), Node(2), acquainted=False) as (one, two):

        def failing(listener: socket.socket) -> tuple[socket.socket, Any]:
            if failures and listener.getsockname()[1] == one.port:
                raise OSError(failures.pop(0), "as the kernel would say")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", failing)
        async with raw_to(one) as raw:
            await raw.next_frame()
        introduce(one, two)
        await connected(one, two)
        assert failures == []
        assert one.link.stats().accept_failure_count == 2


async def test_a_connection_in_the_turn_of_a_stop_is_closed() -> None:
    for turns in range(6):
        async with nodes(Node(1)) as (one,):
            with socket.create_connection(("127.0.0.1", one.port)) as raw:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await one.link.stop()
                raw.setblocking(False)
                with contextlib.suppress(ConnectionResetError):
                    while await asyncio.get_running_loop().sock_recv(raw, 4096):
                        pass


async def test_a_peer_that_does_not_read_costs_bounded_memory() -> None:
    limits = LIMITS._replace(queued_size_bytes_max=6 << 20, silence_ms_max=60_000)
    async with nodes(Node(1, limits), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as raw:
            await raw.shake_hands(identity(2), to=1)
            payload = bytes(100_000)
            tracemalloc.start()
            sent = 0
            while one.link.send(2, FrameKind.APPEND, b"", payload):
                sent += 1
                # Each turn: what the kernel takes does not count.
                await eventually(lambda: True)
                assert sent < 1000, "the limit does not hold"
            assert one.link.queued_size_bytes(2) <= 6 << 20
            for _ in range(50):
                assert not one.link.send(2, FrameKind.APPEND, b"", payload)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # The loop keeps a copy; there are not more than two.
            assert peak <= 2 * (6 << 20) + (1 << 20)
            assert one.link.stats().peers[0].dropped_full_count == 51
            # Once it reads again, everything that was taken arrives, and there is room.
            for _ in range(sent):
                frame = await raw.next_but_pings()
                assert frame is not None
                assert len(frame[2]) == len(payload)
            assert one.link.send(2, FrameKind.APPEND, b"", payload)


async def test_a_peer_that_does_not_read_does_not_delay_the_stop() -> None:
    limits = LIMITS._replace(silence_ms_max=60_000, close_ms_max=20)
    async with nodes(Node(1, limits), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as raw:
            await raw.shake_hands(identity(2), to=1)
            while one.link.send(2, FrameKind.APPEND, b"", bytes(1_000_000)):
                await eventually(lambda: True)
            await one.link.stop()


async def test_a_second_connection_of_a_peer_replaces_the_first() -> None:
    async with nodes(Node(1), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as first, raw_to(one) as second:
            await first.shake_hands(identity(2), to=1)
            await second.shake_hands(identity(2), to=1)
            frames = await first.ended()
            assert handshake.read_goodbye(frames[-1][1])[0] == "replaced"
            assert [event[0] for event in one.events] == ["up", "down", "up"]
            assert one.link.send(2, FrameKind.APPEND, b"to the second")
            frame = await second.next_but_pings()
            assert frame == (FrameKind.APPEND, b"to the second", b"")
            assert one.link.stats().peers[0].connection_count == 1


@pytest.mark.parametrize("kind", [FrameKind.CHALLENGE, FrameKind.HELLO, FrameKind.WELCOME])
async def test_a_handshake_frame_after_the_handshake_is_a_violation(kind: FrameKind) -> None:
    async with nodes(Node(1), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as raw:
            await raw.shake_hands(identity(2), to=1)
            await raw.send(kind)
            frames = await raw.ended()
            assert handshake.read_goodbye(frames[-1][1])[0] == "protocol_error"
        assert one.closed_counts == {CloseCode.PROTOCOL_ERROR: 1}


async def test_bytes_that_break_the_protocol_later_drop_the_connection() -> None:
    async with nodes(Node(1), acquainted=False) as (one,):
        one.link.set_peers({2: ("127.0.0.1", 1)})
        async with raw_to(one) as raw:
            await raw.shake_hands(identity(2), to=1)
            await raw.send(FrameKind.APPEND, b"good")
            await raw.put(b"GET / HTTP/1.1\r\n")
            frames = await raw.ended()
            assert handshake.read_goodbye(frames[-1][1])[0] == "protocol_error"
        assert [frame[1] for frame in one.frames] == [(FrameKind.APPEND, b"good", b"")]
        assert [event[0] for event in one.events] == ["up", "down"]


async def test_trouble_is_logged_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    limits = LIMITS._replace(log_interval_ms=60_000)
    node = await started(Node(1, limits))
    for _ in range(20):
        async with raw_to(node) as raw:
            await raw.put(_GARBAGE["http"])
            await raw.ended()
    await node.link.stop()
    assert node.closed_counts == {CloseCode.GARBAGE: 20}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "connection of a stranger ended, garbage: 127.0.0.1:" in lines[0]


def test_no_text_of_a_peer_breaks_a_line() -> None:
    header = pb.Goodbye(code="a\nb", message="x\x1b[31m" + "y" * 1000).SerializeToString()
    code, text = handshake.read_goodbye(header)
    assert code == r"a\nb"
    assert text.startswith(r"x\x1b[31myyy")
    assert len(text) <= 210
    assert handshake.read_goodbye(b"\xff\xff") == ("unreadable", "")


def test_a_challenge_of_another_protocol_is_not_answered() -> None:
    for header in (b"", b"\xff", pb.Challenge(protocol=1, nonce=b"short").SerializeToString()):
        with pytest.raises(HandshakeRefusedError):
            handshake.hello(identity(1), header, to=2, last_index=0)
    later = pb.Challenge(protocol=2, nonce=bytes(16)).SerializeToString()
    handshake.hello(identity(1), later, to=2, last_index=0)


def hello_to_1(last_index: int = 5, **changes: Any) -> tuple[bytes, bytes]:
    """Return the nonce of a challenge, and the Hello with which node 2 answers it."""
    nonce, challenge = handshake.challenge()
    who = identity(2, **changes)
    return nonce, handshake.hello(who, challenge, to=1, last_index=last_index)[1]


def judged(nonce: bytes, header: bytes) -> NodeId:
    """Return whom node 1 takes for the sender of a Hello."""
    _, info = handshake.check_hello(identity(1), header, challenge_nonce=nonce, peers={2, 3})
    return info.node_id


def test_every_field_of_a_handshake_is_signed() -> None:
    nonce, header = hello_to_1()
    assert judged(nonce, header) == 2
    good_nonce = pb.Hello.FromString(header).nonce
    other = {"node_id": 3, "version": "9", "address": "elsewhere:1", "last_index": -1}
    for name, value in {**other, "nonce": good_nonce ^ 1}.items():
        changed = pb.Hello.FromString(header)
        setattr(changed, name, value)
        with pytest.raises(HandshakeRefusedError, match="bad_auth"):
            judged(nonce, changed.SerializeToString())


def test_a_peer_of_before_names_no_size_of_files_and_is_taken() -> None:
    assert judged(*hello_to_1(file_size_bytes=0)) == 2
    with pytest.raises(HandshakeRefusedError, match="log files of 1 B"):
        judged(*hello_to_1(file_size_bytes=1))


def test_an_absurd_last_index_is_refused() -> None:
    with pytest.raises(HandshakeRefusedError, match="last index -2"):
        judged(*hello_to_1(-2))


def test_a_peer_without_checksums_is_refused_by_name() -> None:
    nonce, header = hello_to_1()
    old = pb.Hello.FromString(header)
    old.ClearField("checked_frames")
    with pytest.raises(HandshakeRefusedError, match="start it with this version") as caught:
        judged(nonce, old.SerializeToString())
    assert caught.value.code is handshake.CloseCode.WRONG_PROTOCOL


def test_a_proof_is_of_the_sizes_and_bytes_of_its_fields() -> None:
    """Replicas of different builds compare proofs."""
    fields = (b"x", b"ab", b"\xff", b"7")
    signed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    assert sign(b"s", "x", "ab", b"\xff", 7) == hmac.digest(b"s", signed, "sha256")


def test_fields_cannot_be_shifted_into_each_other() -> None:
    assert sign(b"s", "x", "ab", "c") != sign(b"s", "x", "a", "bc")
    assert sign(b"s", "x", "a") != sign(b"s", "y", "a")
    assert sign(b"", "x", "a") == b""
    assert is_same(b"", b"")
    assert not is_same(b"", sign(b"s", "x"))


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(identity(1))
