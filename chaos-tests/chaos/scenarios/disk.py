"""Disks that fail, hang, are slow or full (fault-matrix 3.3)."""

import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chaos.clients import LOG_QUEUES, SHORT_MS
from chaos.ends import EXIT_BROKEN, EXIT_SYNC_FAILED
from chaos.errors import NotSoError
from chaos.profile import DISK_SIZE_BYTES, ClusterMode, Profile
from chaos.scenario import DEADLINE_S, ScenarioContext, scenario
from chaos.scenarios.process import ROLLING
from chaos.shim import Shim, SystemCall
from quorumlog.errors import QuorumlogError

RESERVE_SIZE_BYTES: Final = 4 << 20
"""Reserve as set by the profiles."""
SMALL_FILES: Final = (("file_size_bytes", "1MiB"), ("batch_size_bytes_max", "256KiB"))
SMALL_DISK: Final = Profile(disk_size_bytes=DISK_SIZE_BYTES, settings=SMALL_FILES, is_own=True)
"""No file is deleted to make room, so the next scenario would find less of it."""
WATCHED: Final = Profile(settings=(("sync_hang_limit_ms", 30_000),))
"""Far longer than the shorter hangs, also on a slow machine."""
HANG_TIMEOUT_S: Final = 120.0


def _is_hit(shim: Shim, call: SystemCall, before: int) -> bool:
    return shim.hits(call) > before


def _all_hit(x: ScenarioContext, before: dict[int, int]) -> bool:
    """Whether a fault took effect on syncs of all these nodes."""
    return all(_is_hit(x.cluster.shims[node], SystemCall.SYNC, before[node]) for node in before)


@asynccontextmanager
async def _failing(
    x: ScenarioContext, node: int, kind: str, call: SystemCall, error: int
) -> AsyncIterator[None]:
    """Let calls of a node fail; the body begins once one has failed."""
    shim = x.cluster.shims[node]
    before, text = shim.hits(call), f"{errno.errorcode[error]}, node {node}"
    async with x.fault(kind, text):
        shim.fail(call, error)
        await x.until(f"{kind}: {text}", _is_hit, shim, call, before)
        x.prove(f"a call failed with {text}", True)
        yield
        shim.clear()


# --- Errors, delays, hangs ---


@scenario("sync-error", "D11", needs_shim=True)
async def sync_error(x: ScenarioContext) -> None:
    """One sync fails, and the next would succeed: the process ends with 74 and acks nothing."""
    for node in (await x.follower(), await x.leader()):
        is_leader = node == await x.leader()
        if is_leader:
            x.leader_lost()
        log = x.cluster.local.log_path(node)
        is_alive = True
        while is_alive:
            shim, size_bytes = x.cluster.shims[node], log.stat().st_size
            before = shim.hits(SystemCall.SYNC)
            x.inject("sync-error", f"EIO, node {node}")
            shim.fail(SystemCall.SYNC, errno.EIO, times=1)
            await x.until("a sync fails and a process ends", _ends, x, node, size_bytes)
            x.prove("one sync failed", shim.hits(SystemCall.SYNC) == before + 1)
            # An error in its name server ends only that, which keeps no message.
            is_alive = x.cluster.local.is_alive(node)
        await x.ended(node, EXIT_SYNC_FAILED, f"node {node} ended with 74")
        await x.acked()
        await x.restart(node)


def _ends(x: ScenarioContext, node: int, size_bytes: int) -> bool:
    """Whether a node has ended, or its name server has since its log had `size_bytes`."""
    is_alive = x.cluster.local.is_alive(node)
    return not is_alive or x.says(node, size_bytes, "the name server is off")


@scenario("slow-disk", "D15", needs_shim=True)
async def slow_disk(x: ScenarioContext) -> None:
    """Syncs take 50 to 300 ms longer on one follower, on the leader, on a majority."""
    leader, follower = await x.leader(), await x.follower()
    for slow in ([follower], [leader], [leader, follower]):
        delay_ms = x.random.randrange(50, 300)
        hits = {node: x.cluster.shims[node].hits(SystemCall.SYNC) for node in slow}
        async with x.fault("slow-sync", f"{delay_ms} ms, nodes {slow}", count=len(slow)):
            for node in slow:
                x.cluster.shims[node].delay(SystemCall.SYNC, delay_ms)
            await x.acked(100)
            await x.until("syncs were slow", _all_hit, x, hits)
            x.prove(f"syncs of {slow} were slow", True)
            if slow == [follower]:
                x.prove("the leader stayed", await x.leader() == leader)
            for node in slow:
                x.cluster.shims[node].clear()


@scenario("hanging-sync", "D16", profile=WATCHED, needs_shim=True)
async def hanging_sync(x: ScenarioContext) -> None:
    """A sync hangs for 6 s on a follower, then on the leader, then on a leader permanently.

    Heartbeats continue at first; in the end the others continue, and the process ends with 74."""
    for node in (await x.follower(), await x.leader()):
        shim = x.cluster.shims[node]
        # After slow syncs the node leaves them to its flush thread; otherwise its loop would hang
        # as well, and the others would notice.
        shim.delay(SystemCall.SYNC, 20)
        await x.acked(200)
        before, term = shim.hits(SystemCall.SYNC), await x.term()
        async with x.fault("hang", f"node {node}"):
            if node == await x.leader():
                x.leader_lost()
            shim.hang(SystemCall.SYNC)
            await x.until("a sync hangs", _is_hit, shim, SystemCall.SYNC, before)
            await x.linger(6.0)
            await x.acked()
            shim.clear()
        x.prove(f"a sync of node {node} hung", True)
        x.prove("elections are few", await x.term() - term <= 3)
        await x.do(x.cluster.wait_ready)
    await _hangs_for_good(x)


async def _hangs_for_good(x: ScenarioContext) -> None:
    node = await x.leader()
    shim = x.cluster.shims[node]
    shim.delay(SystemCall.SYNC, 20)
    await x.acked(200)
    async with x.fault("hang", f"the leader, node {node}, permanently"):
        x.leader_lost()
        shim.hang(SystemCall.SYNC)
        await x.new_leader(node)
        await x.acked()
        await x.do(x.cluster.wait_ended, node, EXIT_SYNC_FAILED, timeout_s=HANG_TIMEOUT_S)
        x.prove(f"node {node}, whose sync hung, ended with 74", True)
        shim.clear()
    await x.acked()
    await x.restart(node)


@scenario("allocation-errors", "D13", profile=ROLLING, needs_shim=True)
async def allocation_errors(x: ScenarioContext) -> None:
    """Files cannot be allocated or made on one node, then on the leader; both get over it."""
    for node in (await x.follower(), await x.leader()):
        async with _failing(x, node, "no-space", SystemCall.ALLOCATE, errno.ENOSPC):
            await x.acked(300)
        x.prove(f"node {node} lives", x.cluster.local.is_alive(node))


@scenario("rename-errors", "D13", needs_shim=True)
async def rename_errors(x: ScenarioContext) -> None:
    """No file can be renamed on a follower: checkpoints fail, the log does not."""
    async with _failing(x, await x.follower(), "rename", SystemCall.RENAME, errno.EIO):
        await x.acked(300)


# --- Full ---


@scenario("full-disk", "D13 D14", profile=SMALL_DISK)
async def full_disk(x: ScenarioContext) -> None:
    """The disk of a follower fills up, then that of the leader, which hands over if it can."""
    follower = await x.follower()
    async with x.fault("full", f"follower, node {follower}"):
        x.prove("the disk is full", await x.do(x.cluster.fill, follower) > 0)
        await x.acked(500)
        x.prove(f"the full node {follower} does not lead", await x.leader() != follower)
        await x.do(x.cluster.make_room, follower)
    await x.do(x.cluster.wait_ready)
    leader = await x.leader()
    before = await x.do(_refused_count, x, leader)
    async with x.fault("full", f"leader, node {leader}"):
        await x.do(x.cluster.fill, leader)
        if x.options.mode is ClusterMode.RAFT:
            # Possibly before it had to refuse an append: its queues may be unable to grow.
            await x.new_leader(leader)
            await x.acked(2_000)
            x.prove(f"node {leader} has handed over", await x.leader() != leader)
        else:
            await x.until("it refuses appends", lambda: _refused_count(x, leader) > before)
            x.prove(f"the full master {leader} refuses, and stays", await x.leader() == leader)
        await x.do(x.cluster.make_room, leader)
    await x.acked()
    x.prove("no node died", all(map(x.cluster.local.is_alive, x.cluster.node_ids)))


@scenario("full-majority", "D14", profile=SMALL_DISK)
async def full_majority(x: ScenarioContext) -> None:
    """All disks fill up, first but for half of the reserve, then to the last byte.

    Appends are refused, reads continue, no node dies, and free room is enough to recover."""
    nodes, topic = x.cluster.node_ids, f"{x.load.clients.topic}-full"
    await x.load.clients.client.admin.create_topic(topic, queue_count=1)
    async with x.load.clients.client.producer() as producer:
        for number in range(20):
            await producer.send(topic, f"before {number}".encode(), queue_id=0)
    before = {node: await x.do(_refused_count, x, node) for node in nodes}
    for left in (RESERVE_SIZE_BYTES // 2, 0):
        async with x.fault("full", f"all nodes, {left} bytes are left", count=len(nodes)):
            for node in nodes:
                x.prove(f"room of node {node} is taken", await x.do(x.cluster.fill, node, left))
            await is_refused(x, topic)
            await x.until("the leader refuses appends", leader_refuses, x, before)
            x.prove("the leader counts what it refuses", True)
            for node in nodes:
                pulled = await x.load.clients.client.pull(
                    topic, 0, 0, consistency="local", node_id=node
                )
                x.prove(f"node {node} serves {len(pulled.messages)} messages", pulled.messages)
            if left:
                # Without a free byte committed entries get no queue, so these wait (track record).
                await _reads_go_on(x)
            await x.linger(2.0)
            x.prove("no node died", all(map(x.cluster.local.is_alive, nodes)))
            for node in nodes:
                await x.do(x.cluster.make_room, node)
        await x.acked()
        await _reads_go_on(x)
        before = {node: await x.do(_refused_count, x, node) for node in nodes}


async def _reads_go_on(x: ScenarioContext) -> None:
    before = x.load.clients.read_count
    await x.until("linearizable reads go on", lambda: x.load.clients.read_count > before)
    x.prove("linearizable reads go on", True)


async def is_refused(x: ScenarioContext, topic: str) -> None:
    """Append until an append is refused by name, as not applied."""
    deadline, answer = time.monotonic() + DEADLINE_S * x.options.time_scale, "nothing"
    while time.monotonic() < deadline:
        producer = x.load.clients.client.producer(idempotent=False, timeout_ms=SHORT_MS)
        try:
            while time.monotonic() < deadline:
                await producer.send(topic, bytes(1 << 10), queue_id=0)
        except QuorumlogError as error:
            answer = f"{error.code}, {error.outcome.value}, retryable {error.retryable}: {error}"
        finally:
            await producer.abort()
        if "store.full" in answer and "not_applied, retryable True" in answer:
            x.prove(f"an append was refused: {answer}", True)
            return
    raise NotSoError(f"no append was refused with store.full and not_applied, the last {answer}")


def leader_refuses(x: ScenarioContext, before: dict[int, float]) -> bool:
    leader = x.target.leader()
    return bool(leader) and _refused_count(x, leader) > before[leader]


def _refused_count(x: ScenarioContext, node: int) -> float:
    """Return the number of appends that a node refused since its disk is full."""
    return x.target.metric(node, "quorumlog_store_full_total")


@scenario("read-errors", "D12", profile=ROLLING, needs_shim=True)
async def read_errors(x: ScenarioContext) -> None:
    """Reads of a follower's disk fail, then of the leader's: an error or an end, no wrong data."""
    client, topic = x.load.clients.client, x.load.clients.topic
    await x.acked(1_500)
    for node in (await x.follower(), await x.leader()):
        shim = x.cluster.shims[node]
        before, refused = shim.hits(SystemCall.READ), 0
        x.cluster.may_end(node, EXIT_BROKEN)  # The node needs entries it cannot read.
        async with x.fault("read-error", f"EIO, node {node}"):
            shim.fail(SystemCall.READ, errno.EIO)
            # Complete files are not mapped: they are read from the disk.
            for queue in LOG_QUEUES:
                try:
                    await client.pull(topic, queue, 0, consistency="local", node_id=node)
                except QuorumlogError:
                    refused += 1
            await x.until("reads fail", _is_hit, shim, SystemCall.READ, before)
            shim.clear()
        x.prove(f"reads of node {node} failed, {refused} calls with them", refused)
        if not x.cluster.local.is_alive(node):
            x.recorder.note("node", f"{node} ended with {x.cluster.local.exit_code(node)}")
            await x.do(x.cluster.start, node)
        await x.do(x.cluster.wait_ready)
        await x.acked()


@scenario("no-new-files", "D19", profile=ROLLING, needs_shim=True)
async def no_new_files(x: ScenarioContext) -> None:
    """No file can be made, on a read-only file system, without rights or inodes: no node dies."""
    for error in (errno.EROFS, errno.EACCES, errno.ENOSPC):
        for node in (await x.follower(), await x.leader()):
            async with _failing(x, node, "no-new-files", SystemCall.CREATE, error):
                await x.linger(0.5)
            await x.do(x.cluster.wait_ready)
            await x.acked()
