"""Requests and messages of streams that never end, at a real node: bounded in number and bytes."""

import socket
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from node.runtime.accounts import LIMITS, Kind
from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from node.services.bounds.request_watch import SLOW_COUNT_MAX, STREAM_COUNT_MAX
from tests.loopback import host_and_port
from tests.node.processes import SingleNode
from tests.node.services.bounds.half_senders import (
    APPEND,
    APPEND_STREAM,
    MIB,
    half_senders,
    metric,
    pour,
    resident_size_bytes,
    still_serves,
)
from tests.node.services.bounds.http2 import HalfSender
from tests.patience import PATIENCE_S, wait_for

PATHS = (
    APPEND,
    "/quorumlog.v1.LogService/Tail",
    "/grpc.health.v1.Health/Check",
    "/apache.rocketmq.v2.MessagingService/SendMessage",
)
STREAMS = list(range(1, 2 * 16, 2))
HALF_SIZE_BYTES_MAX = LIMITS[Kind.FRAMES].size_bytes_max // 2
"""What one address may have."""
HELD = 'held_bytes{kind="half_streams"}'
CONNECTION_COUNT = 10
"""640 MiB, if each stream holds a message of the largest size."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    with SingleNode(tmp_path_factory.mktemp("half") / "data") as node:
        with node.client() as client:
            client.create_topic("orders")
        yield node


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    """A node that gives a client little time."""
    directory = tmp_path_factory.mktemp("brief") / "data"
    with SingleNode(directory, {"request_ms_max": 1_000, "handshake_ms_max": 500}) as node:
        yield node


@pytest.mark.long
def test_half_sent_requests_are_bounded_in_bytes(node: SingleNode) -> None:
    """They were kept for as long as the connection lived, 4 MiB each."""
    before = resident_size_bytes(node)
    streams = list(range(1, 60, 2))
    with half_senders(node, 10) as senders:
        for sender in senders:
            for number, stream in enumerate(streams):
                size_bytes = REQUEST_SIZE_BYTES_MAX - 5
                sender.call(stream, PATHS[number % len(PATHS)], size_bytes=size_bytes)
        sent = pour(senders, streams, lambda: metric(node, "requests_slow") > SLOW_COUNT_MAX / 2)
        still_serves(node)
        sent += pour(senders, streams, lambda: sum(len(one.ended) for one in senders) >= 200)
        assert sent > 64 * MIB
        assert metric(node, "requests_slow") <= SLOW_COUNT_MAX + len(streams) * len(senders) / 2
        wait_for("few slow ones", lambda: metric(node, "requests_slow") <= SLOW_COUNT_MAX)
        assert metric(node, "requests_slow_limit") == SLOW_COUNT_MAX
        assert metric(node, 'requests_given_up_total{reason="too_many"}') > SLOW_COUNT_MAX
        assert resident_size_bytes(node) - before < (SLOW_COUNT_MAX + 16) * REQUEST_SIZE_BYTES_MAX
        still_serves(node)
    wait_for("an empty table", lambda: metric(node, "requests_slow") == 0)


def all_ended(sender: HalfSender, streams: Iterable[int]) -> None:
    def is_so() -> bool:
        sender.look()
        return set(streams) <= set(sender.ended)

    wait_for("the end of all", is_so)


@pytest.mark.long
def test_a_half_sent_request_has_its_time(brief: SingleNode) -> None:
    """It was kept for as long as the connection lived."""
    streams = range(1, 2 * len(PATHS), 2)
    with half_senders(brief, 1) as (sender,):
        for stream, path in zip(streams, PATHS, strict=True):
            sender.call(stream, path, size_bytes=MIB)
        all_ended(sender, streams)
        assert metric(brief, 'requests_given_up_total{reason="too_slow"}') == len(PATHS)
        assert b"grpc-status\x014" in sender.ended[1]
    wait_for("an empty table", lambda: metric(brief, "requests_slow") == 0)


@pytest.mark.long
def test_streams_that_say_nothing_make_room_for_new_ones(node: SingleNode) -> None:
    with half_senders(node, 3) as senders:
        for sender in senders:
            for stream in range(1, 2 * (STREAM_COUNT_MAX // 2), 2):
                sender.call(stream, APPEND_STREAM, size_bytes=MIB)
                if stream % 101 == 0:
                    sender.look()
        wait_for("a full table", lambda: metric(node, "request_streams") >= STREAM_COUNT_MAX - 3)
        wait_for(
            "those that went",
            lambda: metric(node, 'requests_given_up_total{reason="too_many_streams"}') >= 500,
        )
        # One that has to go is there until its method has told why.
        wait_for("no more than fit", lambda: metric(node, "request_streams") <= STREAM_COUNT_MAX)
        still_serves(node)
        assert metric(node, "request_streams_limit") == STREAM_COUNT_MAX
    wait_for("the end of all", lambda: metric(node, "request_streams") == 0)


def test_a_connection_that_says_nothing_is_closed(brief: SingleNode) -> None:
    """gRPC's own limit is two minutes."""
    at = host_and_port(brief.node_json()["address"])
    with socket.create_connection(at, timeout=PATIENCE_S) as link:
        while link.recv(4096):
            pass


@pytest.mark.long
def test_a_request_that_unpacks_to_much_is_refused(node: SingleNode) -> None:
    """1 MiB that gzip makes of 1 GiB."""
    assert node.process is not None
    Path(f"/proc/{node.process.pid}/clear_refs").write_text("5")  # Sets the peak to what there is.
    before = resident_size_bytes(node)
    packer = zlib.compressobj(wbits=31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
    with half_senders(node, 1) as (sender,):
        sender.call(1, APPEND, size_bytes=len(packed), is_compressed=True)
        left = packed

        def is_over() -> bool:
            nonlocal left
            left = left[sender.send(1, left) :]
            sender.look()
            return 1 in sender.ended or sender.is_closed

        wait_for("the end of the request", is_over)
    (line,) = (
        line
        for line in Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    assert int(line.split()[1]) * 1024 - before < 64 * MIB
    still_serves(node)


# --- Messages of streams ---


def begin_all(senders: list[HalfSender]) -> None:
    for sender in senders:
        for stream in STREAMS:
            sender.call(stream, APPEND_STREAM, size_bytes=REQUEST_SIZE_BYTES_MAX - 5)


@pytest.mark.long
def test_half_sent_messages_of_streams_are_bounded_in_bytes(node: SingleNode) -> None:
    """649 MiB that were sent made the node hold 656 MiB, for ten minutes."""
    still_serves(node)
    before, most = resident_size_bytes(node), 0

    def look() -> bool:
        nonlocal most
        most = max(most, resident_size_bytes(node) - before)
        return False

    with half_senders(node, CONNECTION_COUNT) as senders:
        begin_all(senders)
        sent = pour(senders, STREAMS, look)
        assert sent > HALF_SIZE_BYTES_MAX + 64 * MIB
        # What comes between two looks, and what the allocator keeps, is beside it.
        assert most < HALF_SIZE_BYTES_MAX + 96 * MIB
        assert metric(node, 'requests_given_up_total{reason="half_too_much"}') >= len(STREAMS)
        left = metric(node, "request_streams")
        assert 0 < left < CONNECTION_COUNT * len(STREAMS)
        still_serves(node)
    # The client hears of an end a moment before the method is left.
    wait_for("an empty table", lambda: metric(node, HELD) == 0)
    # gRPC has let go of all that: the same again takes no more, whatever the allocator keeps.
    with half_senders(node, 2) as senders:
        begin_all(senders)
        assert pour(senders, STREAMS, look) > HALF_SIZE_BYTES_MAX - 16 * MIB
        assert most < HALF_SIZE_BYTES_MAX + 96 * MIB
    still_serves(node)


@pytest.mark.long
def test_a_half_sent_message_of_a_stream_has_its_time(tmp_path: Path) -> None:
    with (
        SingleNode(tmp_path / "data", {"half_ms_max": 1_000}) as node,
        half_senders(node, 1) as (sender,),
    ):
        begin_all([sender])
        pour([sender], STREAMS, lambda: False)
        all_ended(sender, STREAMS)
        assert metric(node, 'requests_given_up_total{reason="half_too_slow"}') > 0
        assert b"grpc-status\x0214" in sender.ended[1]
        wait_for("an empty table", lambda: metric(node, HELD) == 0)
