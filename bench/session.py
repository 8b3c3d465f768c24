"""One session of a comparison, in a process of its own: start a peer, measure rows, stop it.

Owns the rows and the loads behind them, the same for every peer. Prints each cell as a line of JSON
as soon as it is known, so that a later failure of the peer does not lose it. `bench.side_by_side`
starts it and has the deadline.
"""

import asyncio
import gc
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psutil

from bench.memory import touch_free_memory
from bench.meter import Meter
from bench.peers.measured import best_in_flight
from bench.peers.peer import (
    KillablePeer,
    MeasuredPeer,
    NotOfferedError,
    PeerLoad,
    ProduceResult,
)
from bench.peers.registry import ENTRIES
from bench.plan import KEYS
from bench.report import latency, machine_limits
from store.config import GIB

_SIZES: Final = {"1 KiB": 1024, "100 B": 100, "64 KiB": 65_536}
_BATCH_COUNTS: Final = {"1 KiB": 100, "100 B": 100, "64 KiB": 16}
_IN_FLIGHT: Final = 64
_FAILOVER_RATE_PER_S: Final = 50.0
_FAILOVER_LEAD_S: Final = 1.0
_FILL_BATCH_COUNT: Final = 100
_BODY_SIZE_BYTES: Final = 1024
_MEMORY_SHARE_MAX: Final = 0.6
_TOUCHED_BYTES_PER_S: Final = GIB
"""More than the nodes of any peer write in a second, together."""
_CHECKPOINTED_S: Final = 15.0
"""Pause before a kill: time for a checkpoint of all that was written."""
_DISK_COPIES: Final = 3 * 2.0
"""Bytes on disk for a stored byte: three nodes, each with its log beside its store."""

_Measure = Callable[[], Awaitable[None]]


def say(row: str, unit: str, value: float | None, **more: Any) -> None:
    """Write one cell; without a value it has a reason."""
    print(json.dumps({"row": row, "unit": unit, "value": value, **more}), flush=True)


def _check_memory(needed_bytes: float, what: str) -> None:
    """Raise NotOfferedError when that is most of the free memory of this machine."""
    if needed_bytes > psutil.virtual_memory().available * _MEMORY_SHARE_MAX:
        needed = f"{needed_bytes / GIB:.0f} GiB of memory"
        raise NotOfferedError(f"three nodes would need {needed} {what}")


class Session:
    """A running peer, and the scale of its measurements."""

    def __init__(self, peer: MeasuredPeer, directory: str, scale: dict[str, Any]) -> None:
        """`scale` as `PlanScale.row` gives it."""
        self._peer, self._directory, self._scale = peer, directory, scale
        self._in_flight = 16

    async def _cell(self, row: str, unit: str, measure: _Measure) -> None:
        """Measure, or write the reason why there is no measurement."""
        try:
            await measure()
        except NotOfferedError as error:
            say(row, unit, None, reason=str(error))

    async def _produce(self, load: PeerLoad) -> ProduceResult:
        """Run a load that is measured."""
        await self._touch_memory()
        return await self._peer.produce(load)

    async def _touch_memory(self) -> None:
        size_bytes = int(self._scale["seconds"] * _TOUCHED_BYTES_PER_S)
        await asyncio.to_thread(touch_free_memory, size_bytes)

    async def _run(self, load: PeerLoad) -> tuple[ProduceResult, dict[str, float]]:
        await self._touch_memory()
        meter = Meter(self._peer.pids())
        produced = await self._peer.produce(load)
        return produced, meter.read().per_million(produced.message_count)

    async def rates(self, *, with_failover: bool) -> None:
        """Measure each size in each mode, reading, the tail at half of the rate, and a failover."""
        await self._warm_up()
        half_per_s = 0.0
        for name, size_bytes in _SIZES.items():
            single = PeerLoad(seconds=self._scale["seconds"], body_size_bytes=size_bytes)
            many = replace(single, in_flight_count=_IN_FLIGHT)
            batches = replace(
                single, in_flight_count=self._in_flight, batch_count=_BATCH_COUNTS[name]
            )
            with_cost = size_bytes == _BODY_SIZE_BYTES
            await self._one_at_a_time(f"{name}, one in flight", single)
            row = f"{name}, {_IN_FLIGHT} in flight"
            rate = await self._many(row, many, with_cost=with_cost)
            half_per_s = half_per_s or rate / 2
            await self._many(f"{name}, batches", batches, with_cost=with_cost)
            if with_cost:
                await self._consume(f"{name}, consume from the start")
        await self._tail(half_per_s)
        if with_failover:
            await self._failover()

    def _batches(self, seconds: float) -> PeerLoad:
        """Return batches for a time, as many in flight as suit the peer."""
        return PeerLoad(
            seconds=seconds, in_flight_count=self._in_flight, batch_count=_FILL_BATCH_COUNT
        )

    async def _warm_up(self) -> None:
        """Run each kind of load once, then find the count in flight that suits the peer."""
        seconds = self._scale["warm_up_s"]
        for in_flight_count, batch_count in ((1, 1), (_IN_FLIGHT, 1), (16, 100)):
            load = PeerLoad(
                seconds=seconds, in_flight_count=in_flight_count, batch_count=batch_count
            )
            await self._peer.produce(load)
        self._in_flight = await best_in_flight(
            self._peer, trial_s=self._scale["trial_s"], batch_count=_FILL_BATCH_COUNT
        )
        # Else full collections of all that a driver in Python imported stop it for 10 ms at a time.
        gc.collect()
        gc.freeze()

    async def _one_at_a_time(self, row: str, load: PeerLoad) -> None:
        figures = latency((await self._produce(load)).latencies_ms())
        say(f"{row}, p50", "ms", figures["p50_ms"], detail=figures)

    async def _many(self, row: str, load: PeerLoad, *, with_cost: bool) -> float:
        """Write one row for the rate and, if wanted, rows for its costs; return the rate."""
        rate = 0.0

        async def measure() -> None:
            nonlocal rate
            produced, cost = await self._run(load)
            rate = produced.per_second
            detail = {
                **latency(produced.latencies_ms()), **cost, "in_flight_count": load.in_flight_count,
                "batch_count": load.batch_count,
            }  # fmt: skip
            say(row, "msg/s", round(rate, 1), detail=detail)
            if with_cost and cost:
                say(f"{row}, processor time of a million", "s", cost["cpu_s_per_million"])
                written = cost["written_gb_per_million"]
                if written:
                    say(f"{row}, written to disk for a million", "GB", written)
                sent = cost["loopback_gb_per_million"]
                say(f"{row}, over the loopback device for a million", "GB", sent)

        await self._cell(row, "msg/s", measure)
        return rate

    async def _consume(self, row: str) -> None:
        async def measure() -> None:
            consumed = await self._peer.consume()
            rate = consumed.message_count / consumed.seconds
            detail = {"message_count": consumed.message_count, "size_bytes": consumed.size_bytes}
            say(row, "msg/s", round(rate, 1), detail=detail)

        await self._cell(row, "msg/s", measure)

    async def _tail(self, rate_per_s: float) -> None:
        """Measure single messages at half of its rate with 64 in flight, in even steps."""
        row = "1 KiB, at half of the rate of 64 in flight"
        if not rate_per_s:
            say(f"{row}, p99", "ms", None, reason="there was no rate to take half of")
            return
        load = PeerLoad(seconds=2 * self._scale["seconds"], rate_per_s=rate_per_s)
        # Memory is not touched: what follows in the host stops everything for 0.3 s at times.
        figures = latency((await self._peer.produce(load)).latencies_ms())
        detail = {**figures, "rate_per_s": round(rate_per_s, 1)}
        say(f"{row}, p50", "ms", figures["p50_ms"], detail=detail)
        say(f"{row}, p99", "ms", figures["p99_ms"], detail=detail)

    async def _failover(self) -> None:
        """SIGKILL the leader under 50 messages a second; measure the time to a later ack."""
        row, seconds = "failover: kill to the next ack", self._scale["failover_s"]

        async def measure() -> None:
            load = PeerLoad(
                seconds=seconds + _FAILOVER_LEAD_S,
                rate_per_s=_FAILOVER_RATE_PER_S,
                tolerates_errors=True,
            )
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._peer.produce(load))
                await asyncio.sleep(_FAILOVER_LEAD_S)
                killed_s = await self._peer.kill_leader()
            acked_s = running.result().first_ack_after(killed_s)
            if acked_s is None:
                say(row, "s", None, reason=f"nothing was acked within {seconds:.0f} s")
                return
            errors = running.result().error_count
            say(row, "s", round(acked_s - killed_s, 3), detail={"error_count": errors})

        try:
            await measure()
        except* NotOfferedError as group:
            say(row, "s", None, reason=str(group.exceptions[0]))

    async def growth(self) -> None:
        """Fill the log step by step: rates at each size, and a restart at one of them."""
        await self._warm_up()
        kept_count = 0
        for size_bytes in self._scale["log_sizes_bytes"]:
            name = f"log of {size_bytes / GIB:g} GiB"
            try:
                kept_count = await self._fill(size_bytes, kept_count)
            except NotOfferedError as error:
                say(f"{name}, batches", "msg/s", None, reason=str(error))
                say(f"{name}, one in flight, p50", "ms", None, reason=str(error))
                if size_bytes == self._scale["restart_size_bytes"]:
                    say(f"{name}, restart", "s", None, reason=str(error))
                continue
            seconds = self._scale["seconds"]
            await self._many(f"{name}, batches", self._batches(seconds), with_cost=False)
            await self._one_at_a_time(f"{name}, one in flight", PeerLoad(seconds=seconds))
            if size_bytes == self._scale["restart_size_bytes"]:
                await self._cell(f"{name}, restart", "s", partial(self._restart, name, size_bytes))

    async def _restart(self, name: str, size_bytes: int) -> None:
        _check_memory(size_bytes * self._peer.facts.restart_memory_share, "to start again with it")
        began_s = await self._peer.restart()
        made = await self._peer.produce(PeerLoad(count=1))
        seconds = made.began_s[0] + made.took_s[0] - began_s
        say(f"{name}, restart", "s", round(seconds, 3))

    async def kills(self, peer: KillablePeer, key_step: int) -> None:
        """Fill the log, and SIGKILL the leader, then all nodes, at each size from that of the
        restart on: the time until all are ready, and what the node that reads most has read."""
        kept_count, keys = 0, next(name for name, step in KEYS.items() if step == key_step)
        sizes = self._scale["log_sizes_bytes"]
        for size_bytes in (s for s in sizes if s >= self._scale["restart_size_bytes"]):
            row = f"log of {size_bytes / GIB:g} GiB, {keys} keys, SIGKILL of"
            try:
                kept_count = await self._fill(size_bytes, kept_count, key_step)
            except NotOfferedError as error:
                for what in ("the leader", "all"):
                    say(f"{row} {what}", "s", None, reason=str(error))
                continue
            for is_of_all, what in ((False, "the leader"), (True, "all")):
                await asyncio.sleep(_CHECKPOINTED_S)
                seconds, read_bytes = await peer.kill(is_of_all=is_of_all)
                detail = {"read_mib": read_bytes >> 20}
                say(f"{row} {what}", "s", round(seconds, 3), detail=detail)

    def _check_room(self, size_bytes: int, kept_size_bytes: int) -> None:
        """Raise NotOfferedError when this machine could not hold the peer's log.

        `kept_size_bytes` of it are stored already."""
        _check_memory(size_bytes * self._peer.facts.memory_share, "to keep it")
        on_disk = (size_bytes - kept_size_bytes) * _DISK_COPIES
        free = shutil.disk_usage(self._directory).free
        if on_disk > free:
            needs, has = on_disk / GIB, free / GIB
            raise NotOfferedError(f"{needs:.0f} GiB of disk are needed, {has:.0f} are free")

    async def _fill(self, size_bytes: int, kept_count: int, key_step: int = 0) -> int:
        """Append until the log has a size; first a part, to see whether it would take too long.
        Return the messages that it has then. `key_step` as in PeerLoad."""
        self._check_room(size_bytes, kept_count * _BODY_SIZE_BYTES)
        count = size_bytes // _BODY_SIZE_BYTES - kept_count
        trial = self._batches(self._scale["trial_s"])
        rate = (await self._peer.produce(trial)).per_second
        needed_s = count / rate if rate else float("inf")
        if needed_s > self._scale["fill_s_max"]:
            raise NotOfferedError(f"at {rate:.0f} msg/s it would take {needed_s:.0f} s to fill")
        await self._peer.produce(replace(trial, seconds=None, count=count, key_step=key_step))
        return kept_count + count

    async def topics(self, count: int) -> None:
        """Measure single messages to all topics in turn, after each had one."""
        await self._peer.produce(PeerLoad(count=max(count, 1000), in_flight_count=_IN_FLIGHT,
                                      topic_count=count))  # fmt: skip
        load = PeerLoad(
            seconds=self._scale["seconds"], in_flight_count=_IN_FLIGHT, topic_count=count
        )
        await self._many(f"1 KiB, {_IN_FLIGHT} in flight, {count:,} topics", load, with_cost=False)


async def main(spec: dict[str, Any]) -> None:
    """Run the session that is described."""
    directory, scale = spec["directory"], spec["scale"]
    if spec["scenario"] == "limits":
        limits = machine_limits(directory)
        say("the machine alone copies into a warm map", "MB/s", limits["copy_mb_per_s"])
        say("the machine alone writes a page and syncs it", "1/s", limits["syncs_per_s"])
        return
    peer = ENTRIES[spec["peer"]].make()
    session = Session(peer, directory, scale)
    try:
        await peer.start(directory, topic_count=spec["topic_count"])
        match spec["scenario"]:
            case "rates":
                await session.rates(with_failover=spec["round"] == 0)
            case "growth" if spec["key_step"]:
                assert isinstance(peer, KillablePeer), f"{spec['peer']} has no keys"
                await session.kills(peer, spec["key_step"])
            case "growth":
                await session.growth()
            case "topics":
                await session.topics(spec["topic_count"])
            case other:
                raise AssertionError(f"there is no scenario {other}")
    finally:
        await peer.stop()


if __name__ == "__main__":
    from quorumlog.cluster.grpc_engine import choose_engine

    choose_engine()
    import uvloop

    uvloop.run(main(json.loads(sys.argv[1])))
