"""Plain values off the wire: a replica's are read, and what a stranger sends costs little."""

import pickle
import socket
import tracemalloc
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.nameserver.replica.messages import ENTRY_COUNT_MAX, REGULAR, is_sound
from node.nameserver.replica.plain_values import decoded_value, encoded_value
from node.nameserver.replica.pysyncobj_wire import (
    FRAME_VALUE_COUNT_MAX,
    HANDSHAKE_SIZE_BYTES_MAX,
    HANDSHAKE_VALUE_COUNT_MAX,
    STRANGER_COUNT_MAX,
)
from tests.node.nameserver.replica.followers import entry, follower
from tests.node.nameserver.replicas import ReplicaProcess, settings_of

MIB = 1 << 20


def test_a_handshake_and_the_largest_batch_have_room() -> None:
    assert decoded_value(encoded_value((bytes(32), "[::1]:9876")), HANDSHAKE_VALUE_COUNT_MAX)
    entries = [(REGULAR + b"x", index, 1) for index in range(5, 5 + ENTRY_COUNT_MAX)]
    message = {"type": "append_entries", "term": 1, "commit_index": 4, "entries": entries}
    message |= {"prevLogIdx": 4, "prevLogTerm": 1}
    frame = encoded_value((bytes(32), message))
    assert is_sound(decoded_value(frame, FRAME_VALUE_COUNT_MAX)[1])


def _hostile() -> dict[str, bytes]:
    return {
        "a pickle": pickle.dumps([1]),
        "a pickle that asks for 2 GiB": b"\x80\x04Nr\xff\xff\xff\x07.",
        "many numbers": b"[" + b"0," * 2_000 + b"0]",
        "many lists": b"[" * 4_000,
        "many objects": b'{"":' * 1_000,
        "many empty lists": b"[" + b"[]," * 1_300 + b"[]]",
        "bytes that are no text": b'{"bytes":5}',
        "bytes that are no base64": b'{"bytes":"*"}',
        "a member twice": b'{"a":1,"a":2}',
        "a long number": b"9" * 4_301,
        "no number": b"NaN",
        "nothing": b"",
        "two values": b"1 1",
        "no UTF-8": b'"\xff"',
    }


@pytest.mark.parametrize("data", _hostile().values(), ids=_hostile())
def test_hostile_bytes_are_refused_at_no_cost(data: bytes) -> None:
    tracemalloc.start()
    try:
        for value_count_max in (HANDSHAKE_VALUE_COUNT_MAX, 1_000):
            with pytest.raises(ValueError, match=r"."):
                decoded_value(data, value_count_max)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("password", [None, "a password of some length"])
def test_a_strangers_few_bytes_cost_a_replica_no_memory(
    tmp_path: Path, password: str | None
) -> None:
    """21 bytes took 2 GiB before anybody had said who he is."""
    (settings,) = settings_of(tmp_path, 1, password)
    replica = ReplicaProcess(settings)
    try:
        replica.start()
        peak = replica.memory_peak_size_bytes()
        for data in _hostile().values():
            assert replica.hangs_up_on(zlib.compress(data)), data[:20]
        much = b'"' + bytes(24 * MIB) + b'"'
        assert replica.hangs_up_on(zlib.compress(much)[:HANDSHAKE_SIZE_BYTES_MAX])
        assert replica.memory_peak_size_bytes() - peak < 16 * MIB
        assert replica.ask("status")["state"] in ("leader", "no_leader")
    finally:
        replica.kill()


@pytest.mark.long
def test_a_frame_that_unpacks_to_more_than_a_handshake_is_refused(tmp_path: Path) -> None:
    with follower(tmp_path / "r") as (_, _, leader):
        for size_bytes in (HANDSHAKE_SIZE_BYTES_MAX + 1, 30 * MIB):
            leader.connect_unnamed()
            leader.send("x" * size_bytes)
            assert leader.is_refused()
        leader.connect()
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]


def test_silent_strangers_make_room_among_themselves_and_for_a_replica(tmp_path: Path) -> None:
    """They held all places for five seconds each, and a replica that dialled was refused."""
    with follower(tmp_path / "r") as (replica, _, leader), ExitStack() as stack:
        port = int(str(replica.selfNode.id).rpartition(":")[2])
        links = []
        for host in ("127.0.0.1", *["127.0.0.2"] * 2 * STRANGER_COUNT_MAX):
            link = socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
            links.append(stack.enter_context(link))
            replica.tick(0.001)
        assert replica.refused_count >= STRANGER_COUNT_MAX
        links[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            links[0].recv(1)
        leader.connect()
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]
