"""Measures a cluster from outside, through the SDK: produce, serial appends, consume.

Owns the load and the counting: a message counts as acked only with its receipt. The driver is one
process beside the node processes, as a client is; the figures include encoding, batching and
decoding.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.peers.load_driver import Send, drive
from bench.peers.peer import PeerLoad, ProduceResult
from bench.report import CpuClock, latency

if TYPE_CHECKING:
    from quorumlog.client import Client

TOPIC = "bench"
TARGET_ACKED_MSGS_PER_S = 60_000
TARGET_SERIAL_P50_MS = 0.7
TARGET_CONSUME_MSGS_PER_S = 200_000
TARGET_PEER_RATIO = 3.0

_WARM_UP_S = 0.5

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

    def batches(self, seconds: float | None = None, count: int | None = None) -> PeerLoad:
        """Return the batches for a time, or for a count of messages; a topic stands for a queue."""
        return PeerLoad(
            seconds=seconds,
            count=count,
            body_size_bytes=self.body_size_bytes,
            batch_count=self.batch_count,
            in_flight_count=self.in_flight_count,
            topic_count=self.queue_count,
        )


async def make_topic(client: "Client", load: ClusterLoad) -> None:
    """Make the topic, unless it exists."""
    await client.admin.create_topic(TOPIC, queue_count=load.queue_count)


async def produce(
    client: "Client", load: ClusterLoad, show: Progress, *, pids: Mapping[str, int]
) -> dict[str, Any]:
    """Send atomic batches for a while, several in flight, then single messages one by one.

    `pids`: processes of this machine whose processor time is reported; empty if they are elsewhere.
    """
    levels: Counter[str] = Counter()
    async with client.producer(in_flight_max=load.in_flight_count) as producer:

        async def send(bodies: Sequence[bytes], queue_id: int) -> None:
            receipts = await producer.send_batch(TOPIC, bodies, queue_id=queue_id)
            levels[receipts[0].durability.value] += len(receipts)

        await drive(send, load.batches(_WARM_UP_S))
        levels.clear()
        clock = CpuClock(pids)
        batched = await _drive("produce", send, load.batches(load.seconds), show)
        cpu = clock.rows(batched.message_count)
    serial_ms = await _serial(client, load, show)
    return {
        "seconds": round(batched.seconds, 3),
        "acked_count": batched.message_count,
        "acked_msgs_per_s": round(batched.per_second, 1),
        "acked_mb_per_s": round(batched.per_second * load.body_size_bytes / 1e6, 2),
        "durability": dict(sorted(levels.items())),
        "batch_latency": latency(batched.latencies_ms()),
        "serial_appends_per_s": round(len(serial_ms) * 1e3 / sum(serial_ms), 1)
        if serial_ms
        else None,
        "serial_latency": latency(serial_ms),
        "cpu": cpu,
    }


async def _drive(what: str, send: Send, load: PeerLoad, show: Progress) -> ProduceResult:
    """Run a load, and show how far it is."""
    began_s = time.monotonic()
    step = f"{what} (s)" if load.count is None else what

    def show_acked(count: int) -> None:
        passed_s = time.monotonic() - began_s
        show(step, passed_s if load.count is None else count, load.seconds or load.count)

    return await drive(send, load, show_acked)


async def _serial(client: "Client", load: ClusterLoad, show: Progress) -> list[float]:
    """Append single messages, each after the receipt of the last; return the milliseconds."""
    if not load.serial_seconds:
        return []
    async with client.producer() as producer:

        async def send(bodies: Sequence[bytes], _queue_id: int) -> None:
            await producer.send(TOPIC, bodies[0], queue_id=0)

        single = PeerLoad(seconds=load.serial_seconds, body_size_bytes=load.body_size_bytes)
        return (await _drive("serial appends", send, single, show)).latencies_ms()


async def fill(client: "Client", load: ClusterLoad, count: int, show: Progress) -> None:
    """Append `count` messages, spread over the queues."""
    async with client.producer(in_flight_max=load.in_flight_count) as producer:

        async def send(bodies: Sequence[bytes], queue_id: int) -> None:
            await producer.send_batch(TOPIC, bodies, queue_id=queue_id)

        await _drive("fill", send, load.batches(count=count), show)


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
                show("consume (s)", min(time.perf_counter() - began, load.seconds), load.seconds)
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
