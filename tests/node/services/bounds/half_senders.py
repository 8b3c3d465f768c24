"""Clients that send a part of each request, and what a node says and keeps meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from node.services.bounds.reading_line import REQUEST_SIZE_BYTES_MAX
from tests.node.processes import SingleNode
from tests.node.services.bounds.http2 import HalfSender
from tests.patience import wait_for

MIB: Final = 1 << 20
APPEND: Final = "/quorumlog.v1.LogService/Append"
APPEND_STREAM: Final = "/quorumlog.v1.LogService/AppendStream"
_ELSEWHERE: Final = "127.0.0.2"


@contextmanager
def half_senders(node: SingleNode, count: int) -> Iterator[list[HalfSender]]:
    senders = [HalfSender(node.node_json()["address"], source=_ELSEWHERE) for _ in range(count)]
    try:
        for sender in senders:
            sender.greet()
            sender.look()
        yield senders
    finally:
        for sender in senders:
            sender.close()


def metric(node: SingleNode, name: str) -> float:
    lines = node.http("/metrics")[1].splitlines()
    (row,) = (line for line in lines if line.startswith(f"quorumlog_{name} "))
    return float(row.split()[-1])


def resident_size_bytes(node: SingleNode) -> int:
    assert node.process is not None
    return int(psutil.Process(node.process.pid).memory_info().rss)


def still_serves(node: SingleNode) -> None:
    with node.client() as client:
        client.append("orders", b"x")
        assert client.pull("orders").record_count
        client.append("orders", bytes(3 * MIB))  # Not refused for being large.
    assert node.http("/ready")[0] == 200


def pour(senders: list[HalfSender], streams: list[int], is_enough: Callable[[], bool]) -> int:
    """Send of each request all but its last bytes, as far as the node takes them."""
    left = {
        (at, stream): REQUEST_SIZE_BYTES_MAX - 100
        for at in range(len(senders))
        for stream in streams
    }
    total = 0

    def is_done() -> bool:
        nonlocal total
        for sender in senders:
            sender.look()
        for (at, stream), rest in list(left.items()):
            sender = senders[at]
            if sender.is_closed or stream in sender.ended or not rest:
                del left[at, stream]
                continue
            sent = sender.send(stream, bytes(min(rest, 64 * 1024)))
            left[at, stream] -= sent
            total += sent
        return not left or is_enough()

    wait_for("all to be sent", is_done)
    return total
