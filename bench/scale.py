"""Measures what many groups and queues cost those who produce: `python -m bench.scale`.

Owns the load and the comparison. Two clusters of one node each run side by side; one has a topic
and nothing else, the other one besides it all the queues and groups, each group waiting by pop for
what a slow producer sends. Producing is measured in turns, one cluster after the other, so the
ratio of a round is of two neighbouring moments. The consumers are a process of their own: what they
cost beside the node is machine time that a machine with more cores would have to spare.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cluster import ClusterLoad, make_topic, produce
from bench.report import CpuClock
from deploy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quorumlog.client import Client

TARGET_RATIO = 0.8
READY = "ready"
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts and rates of a load."""

    group_count: int = 1_000
    topic_count: int = 100
    queue_count: int = 100
    """Queues of each topic."""
    rate: float = 10.0
    """Messages in a second to all topics together; each goes to all groups of its topic."""

    def topic(self, number: int) -> str:
        """Return the name of a topic."""
        return f"scale{number % self.topic_count:03}"


async def fill(client: "Client", scale: Scale) -> None:
    """Make all topics, with a message in each queue."""
    from quorumlog.records.message import OutgoingMessage

    async with client.producer() as producer:

        async def make(number: int) -> None:
            topic = scale.topic(number)
            await client.admin.create_topic(topic, queue_count=scale.queue_count)
            bodies = [OutgoingMessage(b"first", queue_id=q) for q in range(scale.queue_count)]
            await producer.send_batch(topic, bodies)

        await _some_at_once([make(number) for number in range(scale.topic_count)])


async def consume(bootstrap: str, scale: Scale) -> None:
    """Have every group take all messages, report that, then take new ones, for ever."""
    import quorumlog

    async with quorumlog.connect(bootstrap) as client:
        consumers = [
            client.pop_consumer(f"group{n:04}", scale.topic(n)) for n in range(scale.group_count)
        ]

        async def drain(number: int) -> None:
            while found := await consumers[number].receive(wait=0):
                await consumers[number].ack(found)

        async def go_on(number: int) -> None:
            while True:
                found = await consumers[number].receive(wait=20)
                if found:
                    await consumers[number].ack(found)

        await _some_at_once([drain(number) for number in range(scale.group_count)])
        print(READY, flush=True)
        await asyncio.gather(*(go_on(number) for number in range(scale.group_count)))


async def drip(client: "Client", scale: Scale) -> None:
    """Send slowly to some queue of some topic, for ever."""
    source = random.Random(1)
    async with client.producer() as producer:
        while True:
            topic, queue_id = (
                source.randrange(scale.topic_count),
                source.randrange(scale.queue_count),
            )
            await producer.send(scale.topic(topic), b"next", queue_id=queue_id)
            await asyncio.sleep(1 / scale.rate)


async def _some_at_once(works: Sequence[Any]) -> None:
    semaphore = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Any) -> None:
        async with semaphore:
            await work

    await asyncio.gather(*map(one, works))


@asynccontextmanager
async def _node(directory: Path) -> "AsyncIterator[tuple[LocalCluster, Client]]":
    import quorumlog

    cluster = LocalCluster.create(directory, 1)
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with quorumlog.connect(cluster.bootstrap) as client:
            yield cluster, client
    finally:
        await asyncio.to_thread(cluster.stop)


@asynccontextmanager
async def _consumers(bootstrap: str, scale: Scale) -> "AsyncIterator[None]":
    """Run a process in which all groups consume; the block begins when it has taken everything."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.scale", "--consume", bootstrap),
        *("--groups", str(scale.group_count), "--topics", str(scale.topic_count)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if line.strip() != READY.encode():
            raise RuntimeError(f"the consumers ended before they were ready: {line!r}")
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _pid(cluster: LocalCluster) -> int:
    pid = cluster.status()[0].pid
    assert pid is not None, "the node runs"
    return pid


async def _idle_cpu(cluster: LocalCluster) -> float:
    """Return the share of a core that a node takes while no message is produced."""
    clock, seconds = CpuClock({"node": _pid(cluster)}), 5.0
    await asyncio.sleep(seconds)
    return round(float(clock.rows(0)[0]["cpu_s"]) / seconds, 3)


async def measure(
    directory: Path, scale: Scale, load: ClusterLoad, round_count: int
) -> dict[str, Any]:
    """Return the rates of both clusters, round by round, and the median of their ratios."""
    async with AsyncExitStack() as stack:
        alone, with_many = [
            await stack.enter_async_context(_node(directory / name)) for name in ("alone", "many")
        ]
        for _, client in (alone, with_many):
            await make_topic(client, load)
        began = time.perf_counter()
        await fill(with_many[1], scale)
        await stack.enter_async_context(_consumers(with_many[0].bootstrap, scale))
        filled_s = time.perf_counter() - began
        dripping = asyncio.create_task(drip(with_many[1], scale))
        rates: dict[str, list[float]] = {"alone": [], "many": []}
        cpu_us: dict[str, list[float]] = {"alone": [], "many": []}
        idle = [await _idle_cpu(cluster) for cluster, _ in (alone, with_many)]
        try:
            for number in range(round_count):
                sides = [("alone", *alone), ("many", *with_many)]
                for name, cluster, client in sides if number % 2 else reversed(sides):
                    pids = {"node": _pid(cluster)}
                    found = await produce(client, load, lambda *_: None, pids=pids)
                    rates[name].append(found["acked_msgs_per_s"])
                    cpu_us[name].append(found["cpu"][0]["us_per_msg"])
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        info = await with_many[1].admin.list_groups()
    ratios = [many / one for one, many in zip(rates["alone"], rates["many"], strict=True)]
    return {
        "group_count": len(info),
        "queue_count": scale.topic_count * scale.queue_count,
        "lag_count": sum(group.lag_count for group in info),
        "filled_s": round(filled_s, 1),
        "acked_msgs_per_s": rates,
        "node_cpu_us_per_msg": cpu_us,
        "node_cpu_without_producing": {"alone": idle[0], "many": idle[1]},
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 3),
        "target": TARGET_RATIO,
    }


def main() -> None:
    """Measure and print JSON, or be the consumers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--dir", dest="directory", default=tempfile.gettempdir())
    parser.add_argument("--consume", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = Scale(options.groups, options.topics, rate=options.rate)
    if options.consume:
        asyncio.run(consume(options.consume, scale))
        return
    load = ClusterLoad(seconds=options.seconds, serial_seconds=0.0)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="qlog-scale-") as directory:
        result = asyncio.run(measure(Path(directory), scale, load, options.rounds))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
