"""A real cluster with filled topics for these tests, and what a plain client reads of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local import LocalCluster
from quorumlog import sync
from quorumlog.records.message import Message


@contextmanager
def running(directory: Path) -> Iterator[tuple[LocalCluster, sync.Client]]:
    """Three nodes and a client."""
    with (
        LocalCluster.create(directory, 3) as cluster,
        sync.connect(cluster.bootstrap, timeout_ms=60_000, connect_timeout_ms=60_000) as client,
    ):
        yield cluster, client


def fill(
    client: sync.Client, topic: str, lo: int, hi: int, *, queues: int = 4, size_bytes: int = 20
) -> None:
    """Send messages [lo, hi): some with keys and a tag, others with properties or nothing."""
    with client.producer() as producer:
        for n in range(lo, hi):
            body = b"%d " % n * (size_bytes // len(b"%d " % n) + 1)
            extra: dict[str, Any] = {}
            if n % 3 == 0:
                extra = {"key": f"k{n} also", "tag": f"t{n % 2}"}
            elif n % 3 == 1:
                extra = {"properties": {"n": str(n), "größe": "ü"}}
            producer.send_nowait(topic, body, queue_id=n % queues, **extra)


def read(client: sync.Client, topic: str) -> list[Message]:
    """Read all of a topic, queue by queue."""
    with client.pull_consumer(topic, until="end") as consumer:
        messages = list(consumer)
    return sorted(messages, key=lambda m: (m.queue_id, m.queue_offset))


def sent(messages: list[Message]) -> list[tuple[Any, ...]]:
    """What a producer said of messages."""
    return [(m.queue_id, m.body, m.properties) for m in messages]
