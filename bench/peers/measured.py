"""One peer beside a run of `qlog bench produce`: batches, then one message at a time.

Owns the short form of a comparison, and the choice of the count in flight; `bench/run` is the long
form.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from bench.cluster import ClusterLoad
from bench.peers.peer import MeasuredPeer, NotOfferedError, PeerFailedError, PeerLoad
from bench.peers.registry import ENTRIES
from bench.report import latency

_TRIAL_S: Final = 1.0
_IN_FLIGHT_TRIALS: Final = (4, 16, 32)


async def best_in_flight(peer: MeasuredPeer, *, trial_s: float, batch_count: int) -> int:
    """Return the count of 1 KiB batches in flight that suits the peer best, by short trials."""
    rates = {}
    for count in _IN_FLIGHT_TRIALS:
        load = PeerLoad(seconds=trial_s, in_flight_count=count, batch_count=batch_count)
        rates[count] = (await peer.produce(load)).per_second
    return max(rates, key=lambda count: rates[count])


async def measure(
    name: str, directory: str, load: ClusterLoad, on_step: Callable[[str], None]
) -> dict[str, Any]:
    """Start a peer below a directory and drive it; return one row, or one with a reason."""
    entry = ENTRIES[name]
    why = entry.why_missing()
    if why is not None:
        return {"peer": name, "missing": why}
    peer = entry.make()
    root = tempfile.mkdtemp(prefix=f"{name}-", dir=directory)
    try:
        on_step("start")
        await peer.start(root)
        on_step("trials")
        in_flight = await best_in_flight(peer, trial_s=_TRIAL_S, batch_count=load.batch_count)
        load = replace(load, in_flight_count=in_flight, queue_count=1)
        on_step("batches")
        batched = await peer.produce(load.batches(load.seconds))
        on_step("one at a time")
        serial = await peer.produce(
            PeerLoad(seconds=load.serial_seconds, body_size_bytes=load.body_size_bytes)
        )
    except (NotOfferedError, PeerFailedError) as error:
        return {"peer": name, "missing": str(error)}
    finally:
        await peer.stop()
        shutil.rmtree(root)
    return {
        "peer": name,
        "durability": peer.facts.durability,
        "batch_count": load.batch_count,
        "in_flight_count": in_flight,
        "seconds": round(batched.seconds, 3),
        "acked_count": batched.message_count,
        "acked_msgs_per_s": round(batched.per_second, 1),
        "acked_mb_per_s": round(batched.per_second * load.body_size_bytes / 1e6, 2),
        "batch_latency": latency(batched.latencies_ms()),
        "serial_latency": latency(serial.latencies_ms()),
    }
