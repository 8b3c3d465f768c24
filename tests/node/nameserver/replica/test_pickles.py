"""Plain values off the wire: a replica's are read, and what a stranger sends costs little."""

import pickle
import socket
import struct
import tracemalloc
import zlib
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.nameserver.replica.messages import ENTRY_COUNT_MAX, REGULAR, is_sound
from node.nameserver.replica.pickles import UnsafePickleError, safe_dumps, safe_loads
from node.nameserver.replica.pysyncobj_wire import (
    FRAME_VALUE_COUNT_MAX,
    HANDSHAKE_SIZE_BYTES_MAX,
    HANDSHAKE_VALUE_COUNT_MAX,
    STRANGER_COUNT_MAX,
)
from tests.node.nameserver.replica.followers import entry, follower
from tests.node.nameserver.replicas import ReplicaProcess, settings_of

MIB = 1 << 20
_KEYS = st.text(max_size=5)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(_KEYS, inner, max_size=5)
    ),
    max_leaves=20,
)


@given(_VALUES)
def test_values_of_a_replica_are_read_back(value: Any) -> None:
    assert safe_loads(safe_dumps(value), 1_000) == value


def test_the_messages_of_earlier_versions_are_read() -> None:
    """They wrote with the same machine, so that replicas are replaced one by one."""
    entries = [(REGULAR + b"x" * 300, 5, 1), (REGULAR + b"y" * 70_000, 6, 70_000)]
    append = {"type": "append_entries", "term": 2**40, "commit_index": 4, "entries": entries}
    key = bytes(range(32))
    for message in (
        key,
        "127.0.0.1:9876",
        (key, "127.0.0.1:9876"),
        (key, {**append, "prevLogIdx": 4, "prevLogTerm": 1}),
        (key, {**append, "prevLogIdx": None, "prevLogTerm": None}),
        {"type": "append_entries", "serialized": (b"z" * 65_536, True, False), "term": 1},
        {"type": "next_node_idx", "next_node_idx": 9, "reset": False, "success": True},
        {"type": "apply_command", "command": b"\0{}", "request_id": 300},
    ):
        assert safe_loads(pickle.dumps(message, 4), 64) == message


def test_a_handshake_and_the_largest_batch_have_room() -> None:
    assert safe_loads(safe_dumps((bytes(32), "[::1]:9876")), HANDSHAKE_VALUE_COUNT_MAX)
    entries = [(REGULAR + b"x", index, 1) for index in range(5, 5 + ENTRY_COUNT_MAX)]
    message = {"type": "append_entries", "term": 1, "commit_index": 4, "entries": entries}
    message |= {"prevLogIdx": 4, "prevLogTerm": 1}
    loaded = safe_loads(safe_dumps((bytes(32), message)), FRAME_VALUE_COUNT_MAX)[1]
    assert is_sound(loaded)


def _hostile() -> dict[str, bytes]:
    head = b"\x80\x04"
    return {
        "a number in the memo": head + b"Nr" + struct.pack("<I", 0x07FF_FFFF) + b".",
        "the largest one": head + b"Nr" + b"\xff" * 4 + b".",
        "a memo by text": head + b"Np4294967295\n.",
        "bytes that do not follow": head + b"B" + b"\xff" * 4 + b".",
        "bytes of 8": head + b"\x8e" + struct.pack("<Q", 1 << 40) + b".",
        "an array": head + b"\x96" + struct.pack("<Q", 1 << 40) + b".",
        "a text that does not follow": head + b"X" + b"\xff" * 4 + b".",
        "a frame that does not follow": head + b"\x95" + struct.pack("<Q", 1 << 40) + b"N.",
        "a long integer": head + b"\x8b" + b"\xff\xff\xff\x7f" + b".",
        "an integer of 255 bytes": head + b"\x8a\xff" + b"\x7f" * 255 + b".",
        "an integer as text": head + b"I" + b"9" * 4_000 + b"\n.",
        "a name": head + b"cos\nsystem\n(S'true'\ntR.",
        "a name on the stack": head + b"\x8c\x02os\x8c\x06system\x93.",
        "a persistent id": head + b"Pid\n.",
        "an extension": head + b"\x82\x01.",
        "many empty items": head + b"]" + b"(e" * 500_000 + b".",
        "many numbers of one value": head + b"K\x01" + b"\x94" * 1_000_000 + b".",
        "many frames": head + (b"\x95" + bytes(8)) * 100_000 + b"N.",
        "many lists": head + b"]" * 4_000 + b".",
        "many copies": head + b"(" + b"N" * 2_000 + b"t" + b"2" * 2_000 + b".",
        "many marks": head + b"(" * 4_000 + b".",
        "a tuple of tuples as a key": head + b"})" + b"\x85" * 3_000 + b"Ns.",
        "a list in itself": head + b"]\x94h\x00a.",
        "items of no list": head + b"N(Ne.",
        "a table of three": head + b"}(NNNu.",
        "a table with a number as a key": head + b"}K\x01Ns.",
        "nothing": b"",
        "nothing but a head": head,
        "no end": head + b"N",
        "two values": head + b"NN.",
        "more behind the end": head + b"N.N",
        "no stack": head + b"a.",
        "a mark left open": head + b"(N.",
        "another protocol": b"\x80\x02N.",
        "a text that is none": head + b"\x8c\x01\xff.",
    }


@pytest.mark.parametrize("data", _hostile().values(), ids=_hostile())
def test_a_foreign_pickle_is_refused_at_no_cost(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnsafePickleError):
            safe_loads(data, HANDSHAKE_VALUE_COUNT_MAX)
        with pytest.raises(UnsafePickleError):
            safe_loads(data, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (data, b"\x80\x04" + data, b"\x80\x04" + data + b"."):
        try:
            safe_loads(text, 100)
        except UnsafePickleError:
            pass


def test_changed_messages_are_read_or_refused() -> None:
    random = Random(31)
    message = {"type": "append_entries", "term": 1, "entries": [(b"abc", 5, 1), (b"d" * 300, 6, 2)]}
    sound = safe_dumps((bytes(32), message))
    for _ in range(20_000):
        data = bytearray(sound)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            safe_loads(bytes(data), 100)
        except UnsafePickleError:
            pass


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
        much = b"\x80\x04B" + struct.pack("<I", 24 * MIB) + bytes(24 * MIB) + b"."
        assert replica.hangs_up_on(zlib.compress(much)[:HANDSHAKE_SIZE_BYTES_MAX])
        assert replica.memory_peak_size_bytes() - peak < 16 * MIB
        assert replica.ask("status")["state"] in ("leader", "no_leader")
    finally:
        replica.kill()


@pytest.mark.long
def test_a_frame_that_unpacks_to_more_than_a_handshake_is_refused(tmp_path: Path) -> None:
    with follower(tmp_path / "r") as (replica, _, leader):
        for size_bytes in (HANDSHAKE_SIZE_BYTES_MAX + 1, 30 * MIB):
            leader.connect_unnamed()
            leader.send("x" * size_bytes)
            assert leader.is_refused()
        leader.connect()
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]
        assert replica.failure is None


def test_strangers_of_one_address_make_room_among_themselves(tmp_path: Path) -> None:
    with follower(tmp_path / "r") as (replica, _, _), ExitStack() as stack:
        port = int(str(replica.selfNode.id).rpartition(":")[2])
        hosts = ["127.0.0.1", *["127.0.0.2"] * 2 * STRANGER_COUNT_MAX]
        links = []
        for host in hosts:
            link = socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
            links.append(stack.enter_context(link))
            replica.tick(0.001)
        assert replica.refused_count > 0
        links[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            links[0].recv(1)


@pytest.mark.long
def test_silent_strangers_keep_no_replica_out(tmp_path: Path) -> None:
    """They held all places for five seconds each, and a replica that dialled was refused."""
    with follower(tmp_path / "r") as (replica, _, leader), ExitStack() as stack:
        port = int(str(replica.selfNode.id).rpartition(":")[2])
        for _ in range(3 * STRANGER_COUNT_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            replica.tick(0.001)
        leader.connect()
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]
        assert replica.refused_count >= STRANGER_COUNT_MAX
