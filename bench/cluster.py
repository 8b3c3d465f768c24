"""Measures a cluster from outside, through the SDK: produce, serial appends, consume.

Owns the load and the counting: a message counts as acked only with its receipt. The driver is one
process beside the node processes, as a client is; the figures include encoding, batching and
decoding.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.report import CpuClock, latency

if TYPE_CHECKING:
    from quorumlog.client import Client

TOPIC = "bench"
TARGET_ACKED_MSGS_PER_S = 60_000
TARGET_SERIAL_P50_MS = 0.7
TARGET_CONSUME_MSGS_PER_S = 200_000
TARGET_PEER_RATIO = 3.0

_WARM_UP_S = 0.5
_BODY_VARIETY = 64

Progress = Callable[[str, float, float | None], None]


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Size and shape of a load."""

    seconds: float = 10.0
    serial_seconds: float = 3.0
    body_size_bytes: int = 1024
    batch_count: int = 100
    """Messages in an atomic batch."""
    in_flight_count: int = 16
    """Batches that wait for their receipts at the same time."""
    queue_count: int = 4

    def row(self) -> dict[str, Any]:
        """Return the settings under stable keys."""
        return asdict(self)

    def bodies(self) -> list[list[bytes]]:
        """Return some batches of random bodies, to be used in turn."""
        return [
            [os.urandom(self.body_size_bytes) for _ in range(self.batch_count)]
            for _ in range(max(_BODY_VARIETY // self.batch_count, 2))
        ]


async def make_topic(client: "Client", load: ClusterLoad) -> None:
    """Make the topic, unless it exists."""
    await client.admin.create_topic(TOPIC, queue_count=load.queue_count)


async def produce(
    client: "Client", load: ClusterLoad, show: Progress, *, pids: Mapping[str, int]
) -> dict[str, Any]:
    """Send atomic batches for a while, several in flight, then single messages one by one.

    `pids`: processes of this machine whose processor time is reported; empty if they are elsewhere.
    """
    producer = client.producer(in_flight_max=load.in_flight_count)
    batches = load.bodies()
    acked: dict[str, int] = {}
    latencies_ms: list[float] = []

    async def send(number: int, until: float) -> None:
        turn = number
        while (began := time.perf_counter()) < until:
            bodies = batches[turn % len(batches)]
            receipts = await producer.send_batch(TOPIC, bodies, queue_id=turn % load.queue_count)
            latencies_ms.append((time.perf_counter() - began) * 1e3)
            level = receipts[0].durability.value
            acked[level] = acked.get(level, 0) + len(receipts)
            show("produce", load.seconds - (until - time.perf_counter()), load.seconds)
            turn += load.in_flight_count

    async def run(seconds: float) -> float:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(load.in_flight_count):
                tasks.create_task(send(number, began + seconds))
        return time.perf_counter() - began

    await run(_WARM_UP_S)
    acked.clear()
    latencies_ms.clear()
    clock = CpuClock(pids)
    took_s = await run(load.seconds)
    cpu = clock.rows(sum(acked.values()))
    serial_ms = await _serial(client, load, show)
    await producer.close()
    count = sum(acked.values())
    return {
        "seconds": round(took_s, 3),
        "acked_count": count,
        "acked_msgs_per_s": round(count / took_s, 1),
        "acked_mb_per_s": round(count * load.body_size_bytes / took_s / 1e6, 2),
        "durability": dict(sorted(acked.items())),
        "batch_latency": latency(latencies_ms),
        "serial_appends_per_s": _per_second(serial_ms),
        "serial_latency": latency(serial_ms),
        "cpu": cpu,
    }


async def _serial(client: "Client", load: ClusterLoad, show: Progress) -> list[float]:
    """Append single messages, each after the receipt of the last; return the milliseconds."""
    body = os.urandom(load.body_size_bytes)
    latencies_ms: list[float] = []
    began = time.perf_counter()
    async with client.producer() as producer:
        while (now := time.perf_counter()) - began < load.serial_seconds:
            await producer.send(TOPIC, body, queue_id=0)
            latencies_ms.append((time.perf_counter() - now) * 1e3)
            show("serial appends", now - began, load.serial_seconds)
    return latencies_ms


def _per_second(latencies_ms: Sequence[float]) -> float | None:
    return round(len(latencies_ms) * 1e3 / sum(latencies_ms), 1) if latencies_ms else None


async def fill(client: "Client", load: ClusterLoad, count: int, show: Progress) -> None:
    """Append at least `count` messages, spread over the queues."""
    producer = client.producer(in_flight_max=load.in_flight_count)
    batches = load.bodies()
    total = -(-count // load.batch_count)
    sent = iter(range(total))

    async def send() -> None:
        for turn in sent:
            bodies = batches[turn % len(batches)]
            await producer.send_batch(TOPIC, bodies, queue_id=turn % load.queue_count)
            show("fill", turn * load.batch_count, count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.in_flight_count):
            tasks.create_task(send())
    await producer.close()


async def consume(
    client: "Client", load: ClusterLoad, show: Progress, *, pids: Mapping[str, int]
) -> dict[str, Any]:
    """Read the topic from first to end through batches, repeatedly until the time is over."""
    count, size_bytes, rounds = 0, 0, 0
    clock = CpuClock(pids)
    began = time.perf_counter()
    while time.perf_counter() - began < load.seconds:
        async with client.pull_consumer(TOPIC, position="first", until="end") as consumer:
            async for batch in consumer.batches():
                count += len(batch)
                size_bytes += sum(map(len, batch.bodies()))
                show("consume", min(time.perf_counter() - began, load.seconds), load.seconds)
        rounds += 1
    took_s = time.perf_counter() - began
    return {
        "seconds": round(took_s, 3),
        "round_count": rounds,
        "consumed_count": count,
        "consumed_msgs_per_s": round(count / took_s, 1),
        "consumed_mb_per_s": round(size_bytes / took_s / 1e6, 2),
        "cpu": clock.rows(count),
    }


def target(
    what: str, value: float | None, wanted: float, *, less_is_better: bool = False
) -> dict[str, Any]:
    """Return one line of the verdict; a value that is missing meets no target."""
    met = value is not None and (value <= wanted if less_is_better else value >= wanted)
    return {"what": what, "value": value, "target": wanted, "met": met}
