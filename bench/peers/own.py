"""QuorumLog itself as one of the peers: three nodes of this checkout, through its own SDK.

Owns the driving of our system in a comparison, with the settings that a user gets.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Final

import psutil

from bench.peers.load_driver import drive
from bench.peers.peer import ConsumeResult, PeerFacts, PeerLoad, ProduceResult
from deploy.local import LocalCluster

if TYPE_CHECKING:
    from quorumlog.client import Client

_NODE_COUNT: Final = 3
_QUEUE_COUNT: Final = 4
_IN_FLIGHT_MAX: Final = 32
_TOPICS_AT_ONCE: Final = 32
_TIMEOUT_MS: Final = 30_000


class OwnPeer:
    """Three nodes in raft mode."""

    facts = PeerFacts(
        name="quorumlog",
        durability="synced on 2 of 3",
        client="quorumlog (Python, asyncio)",
        settings="flush=sync, file_size_bytes=64MiB",
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        self._nodes: LocalCluster | None = None
        self._client: Client | None = None
        self._held = AsyncExitStack()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the nodes."""
        assert self._nodes is not None, "not started"
        states = self._nodes.status()
        return {f"node {state.node_id}": state.pid for state in states if state.pid is not None}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the nodes and make the topics."""
        self._nodes = LocalCluster.create(
            directory, _NODE_COUNT, flush="sync", settings={"file_size_bytes": "64MiB"}
        )
        await self._start_nodes()
        await self._connect()
        await self._make_topics(topic_count)

    async def _start_nodes(self) -> None:
        assert self._nodes is not None, "not started"
        await asyncio.to_thread(self._nodes.start)
        await asyncio.to_thread(self._nodes.wait_ready, 2 * _TIMEOUT_MS)

    async def _connect(self) -> None:
        import quorumlog

        assert self._nodes is not None, "not started"
        connecting = quorumlog.connect(self._nodes.bootstrap, timeout_ms=_TIMEOUT_MS)
        self._client = await self._held.enter_async_context(connecting)

    async def _make_topics(self, count: int) -> None:
        admin = self._connected().admin
        queue_count = _QUEUE_COUNT if count == 1 else 1
        numbers = iter(range(count))

        async def make() -> None:
            for number in numbers:
                await admin.create_topic(_topic(number), queue_count=queue_count)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_TOPICS_AT_ONCE):
                tasks.create_task(make())

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Send with one producer; batches of the caller are atomic, it batches single messages."""
        from quorumlog.records.message import OutgoingMessage

        client = self._connected()
        if load.batch_count > 1:
            own = client.producer(in_flight_max=min(load.in_flight_count, _IN_FLIGHT_MAX))
        else:
            own = client.producer()
        async with own as producer:
            numbers, step = count(), load.key_step

            async def send(bodies: Sequence[bytes], topic: int) -> None:
                if step:
                    messages = [
                        OutgoingMessage(body, key=None if n % step else f"key{n}")
                        for body, n in zip(bodies, numbers, strict=False)
                    ]
                    await producer.send_batch(_topic(topic), messages)
                elif len(bodies) == 1:
                    await producer.send(_topic(topic), bodies[0])
                else:
                    await producer.send_batch(_topic(topic), bodies)

            return await drive(send, load)

    async def consume(self) -> ConsumeResult:
        """Read the batches of a pull consumer, bodies decoded and checked."""
        message_count, size_bytes, began_s = 0, 0, time.monotonic()
        reading = self._connected().pull_consumer(_topic(0), position="first", until="end")
        async with reading as consumer:
            async for batch in consumer.batches():
                message_count += len(batch)
                size_bytes += sum(map(len, batch.bodies()))
        return ConsumeResult(message_count, size_bytes, time.monotonic() - began_s)

    async def kill_leader(self) -> float:
        """SIGKILL the leader's process."""
        status = await self._connected().admin.cluster_status()
        assert self._nodes is not None, "connected without nodes"
        moment_s = time.monotonic()
        await asyncio.to_thread(self._nodes.kill, status.leader_id)
        return moment_s

    async def restart(self) -> float:
        """Stop in order, start, connect again."""
        assert self._nodes is not None, "not started"
        await self._held.aclose()
        await asyncio.to_thread(self._nodes.stop)
        moment_s = time.monotonic()
        await self._start_nodes()
        await self._connect()
        return moment_s

    async def kill(self, *, is_of_all: bool) -> tuple[float, int]:
        """See `KillablePeer.kill`."""
        nodes = self._nodes
        assert nodes is not None, "not started"
        killed = nodes.node_ids if is_of_all else (nodes.leader_id(),)
        for node in killed:
            await asyncio.to_thread(nodes.kill, node)
        moment_s = time.monotonic()
        await self._start_nodes()
        seconds = time.monotonic() - moment_s
        pids = [self.pids()[f"node {node}"] for node in killed]
        return seconds, max(psutil.Process(pid).io_counters().read_chars for pid in pids)

    async def stop(self) -> None:
        """End client and nodes."""
        await self._held.aclose()
        if self._nodes is not None:
            await asyncio.to_thread(self._nodes.stop)

    def _connected(self) -> "Client":
        assert self._client is not None, "not started"
        return self._client


def _topic(number: int) -> str:
    return f"bench-{number}"
