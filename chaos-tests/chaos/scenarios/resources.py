"""Clocks that jump, descriptors that run out, sizes at their limits (fault-matrix 3.4)."""

import asyncio
import resource
import socket
from typing import Final

import psutil

from chaos.clients import PLAIN_QUEUE
from chaos.scenario import Context, scenario
from chaos.shim import Shim
from quorumlog.errors import QuorumlogError, TooLargeError

_HOUR_S: Final = 3600
_JUMPS_S: Final = (_HOUR_S, -_HOUR_S, 75 * 365 * 24 * _HOUR_S, -20 * 365 * 24 * _HOUR_S)


def _is_clock_read(shim: Shim) -> bool:
    return shim.clock_reads > 0


@scenario("clock-jumps", "C1", needs_shim=True)
async def clock_jumps(x: Context) -> None:
    """Wall clocks jump by an hour, to about 2100, to before 2010: nobody is elected for it."""
    leader, term = await x.leader(), await x.term()
    for jump_s in _JUMPS_S:
        node = x.random.choice(x.cluster.node_ids)
        shim = x.cluster.shims[node]
        async with x.fault("clock", f"{jump_s} s, node {node}"):
            shim.set_clock(jump_s)
            await x.acked(200)
            await x.until("the moved clock is read", _is_clock_read, shim)
            x.prove(f"node {node} read the moved clock", True)
            await x.linger(1.5)  # Upkeep looks at ages once a second.
            shim.set_clock(0)
    x.prove("the leader stayed", await x.leader() == leader)
    x.prove("the term stayed", await x.term() == term)


@scenario("no-descriptors", "R1")
async def no_descriptors(x: Context) -> None:
    """A node has no descriptor left for a while: it may refuse, and must not lose or lie."""
    for node in (await x.follower(), await x.leader()):
        pid = await x.do(x.cluster.pid, node)
        process = psutil.Process(pid)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        async with x.fault("descriptors", f"node {node}"):
            limit = process.num_fds() + 1
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
            links = x.cluster.links
            await x.do(links.refuse, links.of_clients(node))
            await x.do(links.accept, links.of_clients(node))
            await x.linger(2.0)
            x.prove(f"node {node} has hardly a descriptor left", process.num_fds() >= limit - 24)
            await x.acked(100)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        await x.do(x.cluster.wait_ready)


@scenario("sizes", "R4")
async def sizes(x: Context) -> None:
    """Messages of no byte, of one, of the limit and of more, while the leader is killed."""
    client, topic = x.load.clients.client, x.load.clients.topic + "-sizes"
    await client.admin.create_topic(topic, queue_count=1)
    producer = client.producer(timeout_ms=30_000)
    limit = 200 << 10
    sent = [b"", b"x", x.random.randbytes(limit - 4096), b"", x.random.randbytes(limit - 1)]
    kept = []
    old = await x.leader()
    x.leader_lost()
    x.inject("kill", f"the leader, node {old}")
    await x.do(x.cluster.kill, old)
    for body in sent:
        receipt = await producer.send(topic, body, queue_id=0)
        kept.append(receipt.queue_offset)
    try:
        await producer.send(topic, bytes(300 << 10), queue_id=0)
    except TooLargeError as error:
        x.prove("too large a message is refused, and not applied", error.outcome.value)
    await producer.close()
    await x.do(x.cluster.start, old)
    await x.do(x.cluster.wait_ready)
    found: list[bytes] = []
    while len(found) < len(sent):
        batch = await client.pull(topic, 0, len(found), consistency="linearizable")
        found += [bytes(body) for body in batch.bodies()]
    x.prove("all came back byte for byte", found == sent and kept == list(range(len(sent))))
    await x.acked()


@scenario("old-reader", "R3")
async def old_reader(x: Context) -> None:
    """A reader starts at offset 0 again and again, and one reads a hundredth of what comes."""
    client, topic = x.load.clients.client, x.load.clients.topic
    await x.acked(1_000)
    read = 0
    async with x.fault("old-reader", "from offset 0"):
        for _ in range(20):
            offset = 0
            while True:
                try:
                    batch = await client.pull(topic, PLAIN_QUEUE, offset)
                except QuorumlogError:
                    continue
                if not batch.messages:
                    break
                read += len(batch.messages)
                offset = batch.next_offset
            await x.linger(0.05)
        await x.acked(100)
    x.prove(f"{read} messages were read again", read > 100)


IDLE_COUNT: Final = 1_000
FLOOD_COUNT: Final = 48
FLOOD_SIZE_BYTES: Final = 64 << 10
GROWTH_SIZE_BYTES_MAX: Final = 400 << 20


@scenario("overload", "R2")
async def overload(x: Context) -> None:
    """A thousand idle connections, and ten times as much as the nodes can take: nobody dies."""
    client, topic = x.load.clients.client, x.load.clients.topic + "-flood"
    await client.admin.create_topic(topic, queue_count=4)
    leader = await x.leader()
    process = psutil.Process(await x.do(x.cluster.pid, leader))
    before = process.memory_info().rss
    sent, refused = 0, 0

    async def flood() -> None:
        nonlocal sent, refused
        producer = client.producer(idempotent=False, timeout_ms=2_000, linger_ms=0)
        body = x.random.randbytes(FLOOD_SIZE_BYTES)
        try:
            while True:
                try:
                    await producer.send(topic, body)
                    sent += 1
                except QuorumlogError as error:
                    refused += 1
                    x.recorder.errors[error.code] += 1
                    await asyncio.sleep(0.05)
        finally:
            await producer.abort()

    host, _, port = x.cluster.local.address(leader).rpartition(":")
    idle: list[socket.socket] = []
    async with x.fault("overload", f"{FLOOD_COUNT} producers, {IDLE_COUNT} idle connections"):
        try:
            for _ in range(IDLE_COUNT):
                idle.append(await x.do(socket.create_connection, (host, int(port)), 30))
            floods = [asyncio.create_task(flood()) for _ in range(FLOOD_COUNT)]
            try:
                await x.linger(6.0)
                await x.acked(50)
            finally:
                for task in floods:
                    task.cancel()
                await asyncio.gather(*floods, return_exceptions=True)
        finally:
            for one in idle:
                one.close()
    x.prove(f"{sent} messages of 64 KiB were taken, {refused} were not", sent > 200)
    grown = process.memory_info().rss - before
    x.prove(f"memory of the leader grew by {grown >> 20} MiB", grown < GROWTH_SIZE_BYTES_MAX)
    await x.acked()
