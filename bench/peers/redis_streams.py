"""Redis streams: one primary with two replicas, appended to with XADD and confirmed with WAIT.

Owns the driving of Redis. `appendfsync always` syncs on the primary before it answers; WAIT
confirms how many replicas received it, and Redis 7.0 has no way to ask whether they synced it.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.peers.load_driver import drive
from bench.peers.peer import (
    ConsumeResult,
    NotOfferedError,
    PeerFacts,
    PeerFailedError,
    PeerLoad,
    PeerMissingError,
    ProduceResult,
)
from bench.peers.processes import Processes
from deploy.local_process import free_ports

_BINARY: Final = "redis-server"
_NODE_COUNT: Final = 3
_WAIT_MS: Final = 30_000
_CONNECTION_COUNT_MAX: Final = 128
_PAGE_COUNT: Final = 1_000


def why_missing() -> str | None:
    """Return the reason why there is no Redis; None if there is one."""
    if shutil.which(_BINARY) is None:
        return "no redis-server in PATH; run bench/peers/install"
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:
        return "no redis-py; run bench/peers/install"
    return None


class RedisPeer:
    """Three servers; the first is the primary."""

    def __init__(self, wait_count: int = 1) -> None:
        """`wait_count`: replicas that must have received an append."""
        received = "one replica" if wait_count == 1 else "both replicas"
        self.facts = PeerFacts(
            name=f"redis-wait{wait_count}",
            durability=f"synced on the primary, received by {received}",
            client="redis-py (Python, asyncio)",
            settings=f"appendonly yes, appendfsync always, save '', WAIT {wait_count}",
            memory_share=float(_NODE_COUNT) * 1.2,
        )
        self._wait_count = wait_count
        self._processes: Processes | None = None
        self._ports: list[int] = []
        self._client: Any = None

    def pids(self) -> dict[str, int]:
        """Return the process ids of the servers."""
        return self._processes.pids() if self._processes is not None else {}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the servers; a stream is a key, and made by the first append."""
        binary = shutil.which(_BINARY)
        if binary is None:
            raise PeerMissingError(why_missing())
        self._ports = free_ports(_NODE_COUNT)
        self._processes = Processes(directory)
        for n, port in enumerate(self._ports):
            root = os.path.join(directory, f"n{n}")
            os.mkdir(root)
            words = [
                binary,
                *("--port", str(port), "--bind", "127.0.0.1", "--dir", root),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
                *("--repl-diskless-sync-delay", "0", "--repl-backlog-size", "256mb"),
            ]
            if n > 0:
                words += ["--replicaof", "127.0.0.1", str(self._ports[0])]
            self._processes.start(f"n{n}", words)
        await self._connect()

    async def _connect(self) -> None:
        """Wait until the primary is loaded and has its replicas."""
        import redis.asyncio
        import redis.exceptions

        assert self._processes is not None, "not started"
        # A caller waits for a connection: with a rate there may be more callers than connections.
        pool = redis.asyncio.BlockingConnectionPool(
            host="127.0.0.1",
            port=self._ports[0],
            max_connections=_CONNECTION_COUNT_MAX,
            timeout=2 * _WAIT_MS / 1e3,
            socket_timeout=2 * _WAIT_MS / 1e3,
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        deadline = time.monotonic() + 2 * _WAIT_MS / 1e3
        while True:
            self._processes.check_alive()
            try:
                info = await self._client.info("replication")
                states = [info.get(f"slave{n}", {}).get("state") for n in range(_NODE_COUNT - 1)]
                if all(state == "online" for state in states):
                    return
            except redis.exceptions.RedisError:
                pass  # Not up yet, or still loading; the deadline below bounds it.
            if time.monotonic() > deadline:
                raise PeerFailedError(f"the primary has no two replicas after {2 * _WAIT_MS} ms")
            await asyncio.sleep(0.05)

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Send a pipeline of XADDs and one WAIT: batches in flight share connections of a pool."""
        client, wait_count = self._client, self._wait_count

        async def send(bodies: Sequence[bytes], topic: int) -> None:
            async with client.pipeline(transaction=False) as pipeline:
                for body in bodies:
                    pipeline.xadd(f"bench-{topic}", {b"b": body})
                pipeline.wait(wait_count, _WAIT_MS)
                received_count = (await pipeline.execute())[-1]
            if received_count < wait_count:
                raise PeerFailedError(f"{received_count} replicas received it, not {wait_count}")

        return await drive(send, load)

    async def consume(self) -> ConsumeResult:
        """XREAD a thousand entries at a time."""
        count, size_bytes, began_s = 0, 0, time.monotonic()
        last: bytes | str = "0"
        while True:
            found = await self._client.xread({"bench-0": last}, count=_PAGE_COUNT)
            if not found:
                return ConsumeResult(count, size_bytes, time.monotonic() - began_s)
            entries = found[0][1]
            last = entries[-1][0]
            count += len(entries)
            size_bytes += sum(len(fields[b"b"]) for _, fields in entries)

    async def kill_leader(self) -> float:
        """Raise NotOfferedError: replication alone promotes no replica."""
        raise NotOfferedError("no automatic failover: it takes Sentinel or Cluster, which promote "
                              "a replica that may lack what WAIT confirmed")  # fmt: skip

    async def restart(self) -> float:
        """Stop in order and start."""
        assert self._processes is not None, "not started"
        await self._client.aclose()
        await asyncio.to_thread(self._processes.stop)
        moment_s = time.monotonic()
        for n in range(_NODE_COUNT):
            self._processes.start_again(f"n{n}")
        await self._connect()
        return moment_s

    async def stop(self) -> None:
        """End client and servers."""
        if self._client is not None:
            await self._client.aclose()
        if self._processes is not None:
            self._processes.kill_all()
