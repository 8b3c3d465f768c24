"""Hostile senders at the framed port: bounded memory, a clear end, and others are served."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import psutil
import pytest

from quorumlog.pb.log_pb2 import PullRequest
from tests.node.framed.clients import (
    KIND,
    PULL,
    ROUTE,
    FramedClient,
    frame,
    request,
)
from tests.node.framed.servers import Served, put, served
from tests.node.processes import SingleNode
from tests.node.services.bounds.half_senders import metric
from tests.patience import wait_for

MIB = 1 << 20
HALF, WAITING = 'held_bytes{kind="frames"}', 'held_bytes{kind="answers"}'
loops = pytest.mark.parametrize("loop", ["uvloop"])


async def still_serves(it: Served) -> None:
    """A client that behaves gets its answer."""
    client = await it.client()
    await put(client, 1, 0, 1)
    client.close()


@loops
@pytest.mark.long
async def test_random_bytes_end_connections_and_nothing_else(tmp_path: Path) -> None:
    random = Random(20)
    async with served(tmp_path) as it:
        for n in range(150):
            client = await it.client()
            kind = KIND if n % 2 else random.randrange(256)
            size_bytes = random.choice((0, 1, 5, 12, 40, 3000))
            data = frame(kind, random.randbytes(size_bytes), random.randbytes(size_bytes))
            if n % 3 == 0:
                data = random.randbytes(size_bytes + 8)
            client.send(data)
            client.writer.write_eof()
            await client.read_to_the_end()
        assert it.append_count == 0
        await still_serves(it)


def address_of(node: SingleNode) -> tuple[str, int]:
    """Return where a node serves frames."""
    return "127.0.0.1", int(node.node_json()["framed_address"].rpartition(":")[2])


@pytest.mark.long
def test_a_real_node_outlives_hostile_senders(tmp_path: Path) -> None:
    """Announced gigabytes, half frames, answers that are never read: memory stays bounded."""
    random = Random(7)
    with SingleNode(tmp_path / "data", file_size_bytes="64MiB") as node, node.client() as client:
        client.create_topic("orders")
        for _ in range(4):
            client.append("orders", bytes(3 * MIB))
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        before = process.memory_info().rss
        at = address_of(node)
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
        assert process.memory_info().rss < before + 700 * MIB
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
