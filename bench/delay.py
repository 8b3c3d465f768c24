"""Measures delayed messages from outside: many held, then due at a rate, and their lateness.

Owns the load and the counting. All messages are sent first, due in no order at times behind the end
of the sending; the consumer reads as they come and compares its clock with the due time of each.
Consumer and leader share a machine, so a lateness is from the due time to the hands of the
consumer, delivery, commit and read included. The memory is the leader's own, without mapped files.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.report import CpuClock, latency

if TYPE_CHECKING:
    from quorumlog.client import Client

TOPIC = "bench_delay"
TARGET_LATENESS_P50_MS = 100.0
_DUE_MS = struct.Struct(">q")
_SENDERS = 4
_MIXER = 7_919
"""A prime: neighbours in the order of sending are due far apart."""

Progress = Callable[[str, float, float | None], None]


@dataclass(frozen=True, slots=True)
class DelayLoad:
    """Counts, sizes and times of a load."""

    message_count: int = 1_000_000
    rate: int = 20_000
    """Messages that are due in a second."""
    hold_seconds: float = 120.0
    """From the start of sending to the first due time: sending has to be over by then."""
    body_size_bytes: int = 100
    queue_count: int = 4

    def row(self) -> dict[str, Any]:
        """Return the settings under stable keys."""
        return asdict(self)

    def due_unix_ms(self, number: int, begin_unix_ms: int) -> int:
        """Return the due time of a message."""
        turn = number * _MIXER % self.message_count
        return begin_unix_ms + turn * 1_000 // self.rate


def anonymous_memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, without mapped files."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no RssAnon")


async def measure(
    client: "Client",
    load: DelayLoad,
    show: Progress,
    *,
    pids: Mapping[str, int],
    leader_pid: int | None,
) -> dict[str, Any]:
    """Hold, deliver and consume all messages. `leader_pid`: whose memory to report, if known."""
    await client.admin.create_topic(TOPIC, queue_count=load.queue_count)
    before = anonymous_memory_bytes(leader_pid) if leader_pid else None
    began = time.perf_counter()
    begin_unix_ms = int((time.time() + load.hold_seconds) * 1000)
    offsets = {q.queue_id: q.max_offset for q in await client.queue_offsets(TOPIC)}
    await _hold(client, load, begin_unix_ms, show)
    sent_s = time.perf_counter() - began
    status = (await client.admin.delay_status())[0]
    held_bytes = anonymous_memory_bytes(leader_pid) - before if leader_pid and before else None
    room_s = begin_unix_ms / 1000 - time.time()
    clock = CpuClock(pids)
    lateness_ms, store_lateness_ms, took_s = await _take(client, load, offsets, show)
    return {
        "held_count": status.held_count,
        "held_msgs_per_s": round(load.message_count / sent_s, 1),
        "seconds_to_spare": round(room_s, 1),
        "held_bytes_per_msg": round(held_bytes / load.message_count, 1) if held_bytes else None,
        "delivered_count": len(lateness_ms),
        "delivered_msgs_per_s": round(len(lateness_ms) / took_s, 1),
        "lateness": latency(lateness_ms),
        "store_lateness": latency(store_lateness_ms),
        "early_count": sum(late < 0 for late in store_lateness_ms),
        "cpu": clock.rows(len(lateness_ms)),
    }


async def _hold(client: "Client", load: DelayLoad, begin_unix_ms: int, show: Progress) -> None:
    """Send all; each body begins with its due time."""
    padding = bytes(max(0, load.body_size_bytes - _DUE_MS.size))
    numbers = iter(range(load.message_count))

    async def send() -> None:
        async with client.producer() as producer:
            for number in numbers:
                due_ms = load.due_unix_ms(number, begin_unix_ms)
                await producer.enqueue(
                    TOPIC,
                    _DUE_MS.pack(due_ms) + padding,
                    queue_id=number % load.queue_count,
                    deliver_at=due_ms / 1000,
                )
                if number % 1_000 == 0:
                    show("hold", number, load.message_count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_SENDERS):
            tasks.create_task(send())


async def _take(
    client: "Client", load: DelayLoad, offsets: Mapping[int, int], show: Progress
) -> tuple[list[float], list[float], float]:
    """Consume all. Return the lateness of each message, the lateness of the store time for some,
    and the seconds from the first to the last."""
    lateness_ms: list[float] = []
    store_lateness_ms: list[float] = []
    first_s = last_s = 0.0

    async def read(queue_id: int, count: int) -> None:
        nonlocal first_s, last_s
        offset = offsets.get(queue_id, 0)
        hi = offset + count
        while offset < hi:
            batch = await client.pull(TOPIC, queue_id, offset, wait_ms=5_000)
            now_s = time.time()
            now_ms = now_s * 1000
            offset = batch.next_offset
            if not batch.messages:
                continue
            first_s, last_s = first_s or now_s, now_s
            dues_ms = [_DUE_MS.unpack_from(body)[0] for body in batch.bodies()]
            lateness_ms.extend(now_ms - due_ms for due_ms in dues_ms)
            store_lateness_ms.append(batch.messages[0].store_unix_ms - dues_ms[0])
            show("deliver", len(lateness_ms), load.message_count)

    share, rest = divmod(load.message_count, load.queue_count)
    async with asyncio.TaskGroup() as tasks:
        for queue_id in range(load.queue_count):
            tasks.create_task(read(queue_id, share + (queue_id < rest)))
    return lateness_ms, store_lateness_ms, max(last_s - first_s, 1e-3)
