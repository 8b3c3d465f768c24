"""Clocks that jump, descriptors that run out, sizes at their limits (fault-matrix 3.4)."""

import asyncio
import contextlib
import resource
import socket
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import psutil

import quorumlog
from chaos.clients import IDEMPOTENT_QUEUES
from chaos.profile import ClusterMode
from chaos.scenario import ScenarioContext, scenario
from chaos.scenarios.network import time_of_acks
from chaos.shim import Shim, SystemCall
from quorumlog.errors import QuorumlogError, TooLargeError

_HOUR_S: Final = 3600
STRANGER_COUNT: Final = 8
_JUMPS_S: Final = (_HOUR_S, -_HOUR_S, 75 * 365 * 24 * _HOUR_S, -20 * 365 * 24 * _HOUR_S)


def _is_clock_read(shim: Shim) -> bool:
    return shim.clock_reads > 0


@scenario("clock-jumps", "C1", needs_shim=True)
async def clock_jumps(x: ScenarioContext) -> None:
    """Wall clocks jump by an hour, to about 2100, to before 2010: this causes no election."""
    leader, term = await x.leader(), await x.term()
    for jump_s in _JUMPS_S:
        node = x.random.choice(x.cluster.node_ids)
        shim = x.cluster.shims[node]
        async with x.fault("clock", f"{jump_s} s, node {node}"):
            shim.set_clock(jump_s)
            await x.acked(200)
            await x.until("the moved clock is read", _is_clock_read, shim)
            x.prove(f"node {node} read the moved clock", True)
            await x.linger(1.5)  # Maintenance checks ages once a second.
            shim.set_clock(0)
    x.prove("the leader stayed", await x.leader() == leader)
    x.prove("the term stayed", await x.term() == term)


@scenario("no-descriptors", "R1")
async def no_descriptors(x: ScenarioContext) -> None:
    """A node has no descriptor left for a while: it may refuse, and must not lose or lie."""
    for node in (await x.follower(), await x.leader()):
        pid = await x.do(x.cluster.pid, node)
        process = psutil.Process(pid)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        log = x.cluster.local.log_path(node)
        http = (await x.do(x.cluster.status))[node].http_address
        before = log.stat().st_size
        taken: list[socket.socket] = []
        async with x.fault("descriptors", f"node {node}"):
            limit = process.num_fds()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
            try:
                # Each needs a descriptor of the node, and has to wait without one.
                taken += [await x.do(_dial, http) for _ in range(STRANGER_COUNT)]
                links = x.cluster.links
                await x.do(links.refuse, links.of_clients(node))
                await x.do(links.accept, links.of_clients(node))
                await x.until("the node was refused a descriptor", is_refused_one, log, before)
                x.prove(f"node {node} had no descriptor left (EMFILE)", True)
                await x.linger(2.0)
                x.prove(f"node {node} lives", x.cluster.local.is_alive(node))
                await x.acked(100)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
                for one in taken:
                    one.close()
        await x.do(x.cluster.wait_ready)


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 30)


def is_refused_one(log: Path, lo: int) -> bool:
    """Whether the node reports that the system gave it no descriptor."""
    said = log.read_bytes()[lo:]
    return any(words in said for words in (b"Too many open files", b"Errno 24", b"EMFILE"))


@scenario("sizes", "R4")
async def sizes(x: ScenarioContext) -> None:
    """Messages of no byte, of one, of the limit and of more, while the leader is killed."""
    client, topic = x.load.clients.client, x.load.clients.topic + "-sizes"
    await client.admin.create_topic(topic, queue_count=1)
    producer = client.producer(timeout_ms=30_000)
    limit = 200 << 10
    sent = [b"", b"x", x.random.randbytes(limit - 4096), b"", x.random.randbytes(limit - 1)]
    kept = []
    old = await x.kill_leader()
    for body in sent:
        receipt = await producer.send(topic, body, queue_id=0)
        kept.append(receipt.queue_offset)
    try:
        await producer.send(topic, bytes(300 << 10), queue_id=0)
    except TooLargeError as error:
        x.prove("too large a message is refused, and not applied", error.outcome.value)
    await producer.close()
    await x.restart(old)
    bodies: list[bytes] = []
    while len(bodies) < len(sent):
        batch = await client.pull(topic, 0, len(bodies), consistency="linearizable")
        bodies += [bytes(body) for body in batch.bodies()]
    x.prove("all came back byte for byte", bodies == sent and kept == list(range(len(sent))))
    await x.acked()


@scenario("old-reader", "R3")
async def old_reader(x: ScenarioContext) -> None:
    """A reader starts at offset 0 again and again, as fast as it can: receipts do not wait."""
    client, topic = x.load.clients.client, x.load.clients.topic
    await x.acked(1_000)
    quiet_ms = await time_of_acks(x)
    read, is_over = 0, False

    async def read_all() -> None:
        nonlocal read
        while not is_over:
            offset = 0
            while not is_over:
                try:
                    batch = await client.pull(topic, IDEMPOTENT_QUEUES[0], offset)
                except QuorumlogError:
                    continue
                if not batch.messages:
                    break
                read += len(batch.messages)
                offset = batch.next_offset

    async with x.fault("old-reader", "from offset 0"):
        reader = asyncio.create_task(read_all())
        try:
            await x.linger(2.0)
            beside_ms = [await time_of_acks(x) for _ in range(3)]
        finally:
            is_over = True
            await reader
    median_ms = sorted(beside_ms)[1]
    bound_ms = (2 * quiet_ms + SLOWER_MS) * x.factor
    x.prove(f"{read} messages were read again", read > 1_000)
    x.prove(f"receipts took {median_ms:.1f} ms beside it and {quiet_ms:.1f} without, at most "
            f"{bound_ms:.1f}", median_ms <= bound_ms)  # fmt: skip


SLOWER_MS: Final = 10.0
"""Permitted addition of one reader without pauses to a receipt: about two of its pulls."""
IDLE_COUNT: Final = 1_000
FLOOD_CLIENT_COUNT: Final = 8
"""Clients of the flood: each has a connection of its own, and a node reads a limited amount of
each before it lets that client wait."""
FLOOD_SYNC_MS: Final = 150
"""Time of a sync of the followers: the nodes are slower than this process then, however slow the
machine is."""
FLOOD_COUNT: Final = 32
FLOOD_SIZE_BYTES: Final = 192 << 10
FLOOD_WINDOW: Final = 32
"""Pending messages of each producer, each a batch: 32 times 6 MiB are one and a half times
the 128 MiB that a leader holds, in flight and waiting."""
GROWTH_SIZE_BYTES_MAX: Final = 640 << 20
"""Permitted growth of a leader: the 128 MiB twice, since a batch is copied into the log, 16 MiB for
each peer, and the read-ahead of gRPC for each producer."""


@scenario("overload", "R2", needs_shim=True)
async def overload(x: ScenarioContext) -> None:
    """A thousand idle connections, and more than a leader may hold: it refuses, and no node dies.

    The leader reports the refusals. An async master acks each written batch, so it holds none and
    refuses none."""
    holds = x.options.mode is not ClusterMode.ASYNC_MASTER
    client, topic = x.load.clients.client, x.load.clients.topic + "-flood"
    await client.admin.create_topic(topic, queue_count=4)
    leader = await x.leader()
    before = (await x.do(x.cluster.usage))[leader]

    def busy_count() -> float:
        nodes = x.cluster.local.node_ids  # The leadership may move under it.
        return sum(x.cluster.metric(node, "quorumlog_append_busy_total") for node in nodes)

    busy = await x.do(busy_count)
    taken, refused = 0, Counter[str]()
    body = x.random.randbytes(FLOOD_SIZE_BYTES)

    async def send(producer: quorumlog.Producer) -> None:
        nonlocal taken
        while True:
            try:
                await producer.send(topic, body)
                taken += 1
            except QuorumlogError as error:
                refused[error.code] += 1
                x.recorder.errors[error.code] += 1
                await asyncio.sleep(0.05)

    host, _, port = x.cluster.local.address(leader).rpartition(":")
    idle: list[socket.socket] = []
    producers: list[quorumlog.Producer] = []
    fault = x.fault("overload", f"{FLOOD_COUNT} producers, {IDLE_COUNT} idle connections")
    followers = [shim for node, shim in x.cluster.shims.items() if node != leader]
    async with fault, AsyncExitStack() as clients:
        try:
            for shim in followers:
                shim.delay(SystemCall.SYNC, FLOOD_SYNC_MS)
            for _ in range(IDLE_COUNT):
                idle.append(await x.do(socket.create_connection, (host, int(port)), 30))
            for _ in range(FLOOD_CLIENT_COUNT):
                connecting = quorumlog.connect(x.target.bootstrap, transport=x.load.transport)
                flooding = await clients.enter_async_context(connecting)
                producers += [
                    flooding.producer(
                        idempotent=False, timeout_ms=20_000, in_flight_max=FLOOD_WINDOW
                    )
                    for _ in range(FLOOD_COUNT // FLOOD_CLIENT_COUNT)
                ]
            floods = [
                asyncio.create_task(send(producer))
                for producer in producers
                for _ in range(FLOOD_WINDOW)
            ]
            try:
                await x.linger(4.0)
                if holds:
                    await x.until("the leader refuses appends", lambda: busy_count() > busy)
                await x.acked(50)
            finally:
                for task in floods:
                    task.cancel()
                await asyncio.gather(*floods, return_exceptions=True)
        finally:
            for shim in followers:
                shim.clear()
            for one in idle:
                one.close()
            for producer in producers:
                await producer.abort()
    more = await x.do(busy_count) - busy
    x.prove(f"{taken} messages of 192 KiB were taken, {more:.0f} refused; {dict(refused)}",
            taken > 50 and (more > 0) is holds)  # fmt: skip
    grown = (await x.do(x.cluster.usage))[leader].memory_size_bytes - before.memory_size_bytes
    x.prove(f"memory of the leader grew by {grown >> 20} MiB", grown < GROWTH_SIZE_BYTES_MAX)
    await x.acked()
