"""Hostile senders at the framed port: bounded memory, a clear end, and others are served."""

import struct
from pathlib import Path
from random import Random

import pytest

from quorumlog.pb.log_pb2 import PullRequest
from tests.loopback import host_and_port
from tests.node.framed.clients import (
    KIND,
    PULL,
    ROUTE,
    FramedClient,
    request,
)
from tests.node.processes import SingleNode
from tests.node.services.bounds.half_senders import MIB, metric, resident_size_bytes
from tests.patience import wait_for

HALF, WAITING = 'held_bytes{kind="frames"}', 'held_bytes{kind="answers"}'


@pytest.mark.long
def test_a_real_node_outlives_hostile_senders(tmp_path: Path) -> None:
    """Announced gigabytes, half frames, answers that are never read: memory stays bounded."""
    random = Random(7)
    with SingleNode(tmp_path / "data", file_size_bytes="64MiB") as node, node.client() as client:
        client.create_topic("orders")
        for _ in range(4):
            client.append("orders", bytes(3 * MIB))
        before = resident_size_bytes(node)
        at = host_and_port("127.0.0.1" + node.node_json()["framed_address"])
        hostile = [FramedClient(at) for _ in range(300)]
        pull = PullRequest(topic="orders", max_size_bytes=4 * MIB).SerializeToString()
        for n, one in enumerate(hostile):
            match n % 3:
                case 0:  # The largest frame is announced, and a part of it sent.
                    one.send(struct.pack(">II", 4 * MIB, KIND << 24 | 12) + bytes(200_000))
                case 1:  # Much is asked for, and nothing taken.
                    one.send(b"".join(request(PULL, k, pull) for k in range(50)))
                case _:
                    one.send(b"\xff\xff\xff\xff" + random.randbytes(20))

        wait_for("half frames", lambda: metric(node, HALF) >= 100 * 200_000)
        wait_for("answers that wait", lambda: metric(node, WAITING) > 100 * MIB)
        assert metric(node, WAITING) <= 256 * MIB
        with FramedClient(at) as good:
            wait_for("an answer", lambda: not good.call(PULL, 1, pull).flags & 2)
            assert len(good.call(ROUTE, 2, b"").message) > 0
        assert resident_size_bytes(node) < before + 700 * MIB
        for one in hostile:
            one.close()
        wait_for("the end of all", lambda: metric(node, "framed_connections") == 0)
        wait_for("their calls, which end in turns", lambda: not metric(node, 'held{kind="calls"}'))
        assert (metric(node, HALF), metric(node, WAITING)) == (0, 0)
        log = node.log_path.read_text()
        assert "framed connection closed" in log
        assert log.count("framed connection closed") < 50
        assert "node.internal" not in log
        assert "Traceback" not in log
