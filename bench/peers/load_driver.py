"""Drives a load through a client of this process: a count in flight, or a rate per second.

Owns the clocks and the samples, uniform for every peer with a client in Python. Must not know the
client: a peer gives one coroutine that hands over a batch and returns when it is acked.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence

from bench.peers.peer import BODY_VARIETY, PeerLoad, ProduceResult

Send = Callable[[Sequence[bytes], int], Awaitable[None]]
"""Sends bodies to the topic of a number; raises when they are not acked."""

_OUTSTANDING_MAX = 4096
"""Limit of unacked batches of a load with a rate: a dead peer must not fill the memory."""


async def drive(
    send: Send, load: PeerLoad, show: Callable[[int], None] = lambda _count: None
) -> ProduceResult:
    """Run a load through `send`; `show` gets the count of acked messages after each batch."""
    run = _Run(send, load, show)
    if load.rate_per_s:
        await run.at_a_rate()
    else:
        await run.in_flight()
    return run.produced


class _Run:
    def __init__(self, send: Send, load: PeerLoad, show: Callable[[int], None]) -> None:
        self._send, self._load, self._show = send, load, show
        variety = max(BODY_VARIETY, load.batch_count)
        bodies = [os.urandom(load.body_size_bytes) for _ in range(variety)]
        self._batches = [
            [bodies[(first + n) % variety] for n in range(load.batch_count)]
            for first in range(variety if load.batch_count == 1 else 2)
        ]
        self._next = 0
        self._left = load.count
        self.produced = ProduceResult(began_s=array("d"), took_s=array("d"))

    def _take(self) -> tuple[Sequence[bytes], int] | None:
        """Return the next batch and its topic; None when the wanted count is handed over."""
        number, size = self._next, self._load.batch_count
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
            if size == 0:
                return None
        self._next += 1
        bodies = self._batches[number % len(self._batches)]
        return bodies if size == len(bodies) else bodies[:size], number % self._load.topic_count

    async def _send_one(self, bodies: Sequence[bytes], topic: int, began_s: float) -> None:
        try:
            await self._send(bodies, topic)
        except Exception:
            if not self._load.tolerates_errors:
                raise
            self.produced.error_count += 1
            return
        self.produced.took_s.append(time.monotonic() - began_s)
        self.produced.began_s.append(began_s)
        self.produced.message_count += len(bodies)
        self._show(self.produced.message_count)  # Outside of the time that was taken.

    async def in_flight(self) -> None:
        began_s = time.monotonic()
        until = began_s + (self._load.seconds or float("inf"))

        async def send_on() -> None:
            # Once in any case: a peer that is slower than the load is long has a sample too.
            while (batch := self._take()) is not None:
                await self._send_one(*batch, time.monotonic())
                if time.monotonic() >= until:
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._load.in_flight_count):
                tasks.create_task(send_on())
        self.produced.seconds = time.monotonic() - began_s

    async def at_a_rate(self) -> None:
        """Send at the rate; latency counts from the due time, so that falling behind shows."""
        assert self._load.seconds is not None, "checked by Load"
        began_s = time.monotonic()
        until, step_s = began_s + self._load.seconds, 1.0 / self._load.rate_per_s
        room = asyncio.Semaphore(_OUTSTANDING_MAX)

        async def send_due(bodies: Sequence[bytes], topic: int, due_s: float) -> None:
            try:
                await self._send_one(bodies, topic, due_s)
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            due_s = began_s
            while due_s < until:
                if (wait_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                await room.acquire()
                batch = self._take()
                assert batch is not None, "a load with a rate has no count"
                tasks.create_task(send_due(*batch, due_s))
                due_s += step_s
        self.produced.seconds = time.monotonic() - began_s
