"""Streams whose next message never ends, at the client port of a real node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.accounts import LIMITS, Kind
from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from tests.node.processes import SingleNode
from tests.node.services.bounds.half_senders import (
    APPEND_STREAM,
    MIB,
    half_senders,
    metric,
    pour,
    resident_size_bytes,
    still_serves,
)
from tests.patience import wait_for

pytestmark = pytest.mark.long
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


def test_half_sent_messages_of_streams_are_bounded_in_bytes(node: SingleNode) -> None:
    """649 MiB that were sent made the node hold 656 MiB, for ten minutes."""
    still_serves(node)
    before, most = resident_size_bytes(node), 0

    def look() -> bool:
        nonlocal most
        most = max(most, resident_size_bytes(node) - before)
        return False

    with half_senders(node, CONNECTION_COUNT) as senders:
        for sender in senders:
            for stream in STREAMS:
                sender.call(stream, APPEND_STREAM, size_bytes=REQUEST_SIZE_BYTES_MAX - 5)
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
        for sender in senders:
            for stream in STREAMS:
                sender.call(stream, APPEND_STREAM, size_bytes=REQUEST_SIZE_BYTES_MAX - 5)
        assert pour(senders, STREAMS, look) > HALF_SIZE_BYTES_MAX - 16 * MIB
        assert most < HALF_SIZE_BYTES_MAX + 96 * MIB
    still_serves(node)


def test_a_half_sent_message_of_a_stream_has_its_time(tmp_path: Path) -> None:
    with (
        SingleNode(tmp_path / "data", {"half_ms_max": 1_000}) as node,
        half_senders(node, 1) as (sender,),
    ):
        for stream in STREAMS:
            sender.call(stream, APPEND_STREAM, size_bytes=REQUEST_SIZE_BYTES_MAX - 5)

        def all_ended() -> bool:
            sender.look()
            return set(STREAMS) <= set(sender.ended)

        pour([sender], STREAMS, lambda: False)
        wait_for("the end of all", all_ended)
        assert metric(node, 'requests_given_up_total{reason="half_too_slow"}') > 0
        assert b"grpc-status\x0214" in sender.ended[1]
        wait_for("an empty table", lambda: metric(node, HELD) == 0)
