"""NATS JetStream with three replicas, driven by nats-py.

Owns the driving of NATS: one stream for all topics, a subject for each, as its users do it. Acks
come when a quorum has the message in memory or page cache; servers sync on a timer.

A stream or consumer that was just made may be unknown to the server of this client, which learns on
another connection which server takes messages or fetches. Until then its answer is 503, that there
is none; so the first message is repeated, and so is what reading asks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.peers.load_driver import drive
from bench.peers.peer import (
    ConsumeResult,
    PeerFacts,
    PeerFailedError,
    PeerLoad,
    ProduceResult,
)
from bench.peers.processes import Processes, ProcessPeer
from deploy.cache import place
from deploy.local_process import free_ports

_BINARY: Final = "nats-server"
_NODE_COUNT: Final = 3
_STREAM: Final = "bench"
_TIMEOUT_S: Final = 30.0
_FAILOVER_TIMEOUT_S: Final = 3.0
_TRY_S: Final = 5.0
_ANSWER_DEADLINE_S: Final = 30.0
"""Limit of the time in which the answer to a question is 503."""
_POLL_S: Final = 0.05
_FETCH_COUNT: Final = 500
_PENDING_MAX: Final = 65_536
_CONF: Final = """\
server_name: {name}
listen: "127.0.0.1:{client}"
jetstream {{ store_dir: "{directory}", max_mem: 1GB, max_file: 200GB }}
cluster {{ name: bench, listen: "127.0.0.1:{cluster}", routes: [{routes}] }}
"""


class NatsPeer(ProcessPeer):
    """Three servers, one stream with three replicas."""

    facts = PeerFacts(
        name="nats",
        durability="in the page cache of 2 of 3",
        client="nats-py (Python, asyncio)",
        settings="num_replicas=3, file storage, sync_interval as it comes (2 min)",
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()
        self._addresses: list[str] = []
        self._connection: Any = None
        self._stream: Any = None

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the servers and make the stream; a subject needs no preparation."""
        binary = str(place("nats") / _BINARY)
        ports = free_ports(2 * _NODE_COUNT)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[_NODE_COUNT:])
        self._started = Processes(directory)
        for n in range(_NODE_COUNT):
            path = Path(directory) / f"n{n}.conf"
            conf = _CONF.format(
                name=f"n{n}",
                client=ports[n],
                cluster=ports[_NODE_COUNT + n],
                routes=routes,
                directory=path.with_suffix(""),
            )
            path.write_text(conf, "utf-8")
            self._addresses.append(f"nats://127.0.0.1:{ports[n]}")
            self._processes.start(f"n{n}", [binary, "-c", str(path)])
        await self._connect()
        await self._until(self._make_stream, "no stream of three replicas")
        await self._until(self._publish_first, "the stream takes no messages")

    async def _connect(self) -> None:
        import nats

        async def connect() -> None:
            self._connection = await nats.connect(
                self._addresses,
                allow_reconnect=True,
                reconnect_time_wait=0.05,
                max_reconnect_attempts=-1,
                pending_size=64 << 20,
                error_cb=_ignore,
            )
            self._stream = self._connection.jetstream(
                timeout=_TIMEOUT_S, publish_async_max_pending=_PENDING_MAX
            )

        await self._until(connect, "no server answers")

    async def _make_stream(self) -> None:
        async with asyncio.timeout(_TRY_S):
            await self._stream.add_stream(
                name=_STREAM, subjects=[f"{_STREAM}.*"], num_replicas=_NODE_COUNT
            )

    async def _publish_first(self) -> None:
        """Publish a message to a subject that is no topic's."""
        await self._stream.publish(f"{_STREAM}.ready", b"", timeout=_TRY_S)

    async def _until(self, act: Callable[[], Awaitable[object]], what: str) -> None:
        """Repeat an action until it succeeds."""
        import nats.errors

        await self._processes.until(act, what, nats.errors.Error, OSError, TimeoutError)

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Publish and await the ack; a batch is published whole before its acks are awaited."""
        stream = self._stream
        timeout_s = _FAILOVER_TIMEOUT_S if load.tolerates_errors else _TIMEOUT_S

        async def send(bodies: Sequence[bytes], topic: int) -> None:
            subject = f"{_STREAM}.{topic}"
            if len(bodies) == 1:
                await stream.publish(subject, bodies[0], timeout=timeout_s)
                return
            acks = [await stream.publish_async(subject, body) for body in bodies]
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*acks)

        return await drive(send, load)

    async def consume(self) -> ConsumeResult:
        """Read by a pull consumer that fetches hundreds at a time, without acks."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        wanted = await self._message_count()
        count, size_bytes, began_s = 0, 0, time.monotonic()
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, num_replicas=1
        )
        subscription = await self._answered(
            lambda: self._stream.pull_subscribe(f"{_STREAM}.0", stream=_STREAM, config=config)
        )
        while count < wanted:
            fetch_count = min(_FETCH_COUNT, wanted - count)
            messages = await self._answered(partial(subscription.fetch, fetch_count, _TIMEOUT_S))
            count += len(messages)
            size_bytes += sum(len(message.data) for message in messages)
        took_s = time.monotonic() - began_s
        await subscription.unsubscribe()
        return ConsumeResult(count, size_bytes, took_s)

    async def _answered(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask again as long as the server of this client knows no server that answers."""
        from nats.js.errors import ServiceUnavailableError

        deadline = time.monotonic() + _ANSWER_DEADLINE_S
        while True:
            try:
                return await ask()
            except ServiceUnavailableError as error:
                self._processes.check_alive()
                if time.monotonic() > deadline:
                    text = f"JetStream said 503, no server answers, for {_ANSWER_DEADLINE_S:g} s"
                    raise PeerFailedError(text) from error
            await asyncio.sleep(_POLL_S)

    async def _message_count(self) -> int:
        info = await self._answered(
            lambda: self._stream.stream_info(_STREAM, subjects_filter=f"{_STREAM}.0")
        )
        return int((info.state.subjects or {}).get(f"{_STREAM}.0", 0))

    async def kill_leader(self) -> float:
        """SIGKILL the server that leads the stream."""
        info = await self._stream.stream_info(_STREAM)
        return self._processes.kill(info.cluster.leader)

    async def restart(self) -> float:
        """Stop in order and start; wait until the stream takes a message."""
        await self._connection.close()
        moment_s = await self._processes.restart()
        await self._connect()

        async def see_leader() -> None:
            async with asyncio.timeout(_TRY_S):
                info = await self._stream.stream_info(_STREAM)
            if not info.cluster.leader:
                raise TimeoutError("the stream has no leader")

        await self._until(see_leader, "the stream has no leader")
        await self._until(self._publish_first, "the stream takes no messages")
        return moment_s

    async def stop(self) -> None:
        """End client and servers."""
        if self._connection is not None and not self._connection.is_closed:
            await self._connection.close()
        await super().stop()


async def _ignore(_: Exception) -> None:
    """Ignore a lost connection, which nats-py would print; the load counts its effects."""
