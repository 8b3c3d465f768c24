"""Processes that die, sleep, restart and starve (fault-matrix 3.2)."""

import asyncio
import os
import signal
from typing import Final

from chaos import strikes
from chaos.ends import KILLED
from chaos.log_files import end_position
from chaos.profile import ClusterMode, Profile
from chaos.receipts import Moment
from chaos.recorder import now_ns
from chaos.scenario import RAFT, ScenarioContext, scenario

ROLLING_FILE_SIZE_BYTES: Final = 256 << 10
ROLLING: Final = Profile(
    settings=(("file_size_bytes", ROLLING_FILE_SIZE_BYTES), ("batch_size_bytes_max", "64KiB"))
)
"""Files so small that a run goes through many of them."""


async def _kill(x: ScenarioContext, node: int, what: str) -> None:
    await x.kill(node, f"{what}, node {node}")
    x.prove(f"node {node} died of SIGKILL", x.cluster.local.exit_code(node) == KILLED)


async def recover(x: ScenarioContext, node: int) -> None:
    """Start a node that was killed without other faults, and record the duration."""
    began_ns = now_ns()
    await x.restart(node)
    x.restarts_ms.append((now_ns() - began_ns) / 1e6)


@scenario("kill-leader", "P1 H1")
async def kill_leader(x: ScenarioContext) -> None:
    """The leader is killed under load, three times."""
    for _ in range(3):
        old = await x.leader()
        x.leader_lost()
        await _kill(x, old, "the leader")
        await x.new_leader(old)
        await x.acked()
        await recover(x, old)


@scenario("kill-follower", "P1 N14", profile=ROLLING)
async def kill_follower(x: ScenarioContext) -> None:
    """Followers are killed under load: acks continue, and the leader stays.

    The last one catches up over several files."""
    for missed_size_bytes in (0, 0, 3 * ROLLING_FILE_SIZE_BYTES):
        leader, victim = await x.leader(), await x.follower()
        await _kill(x, victim, "a follower")
        await x.acked()
        end = await x.do(end_position, x.cluster.data_directory(victim)) + missed_size_bytes
        while await x.do(end_position, x.cluster.data_directory(leader)) < end:
            await x.acked(500)
        x.prove(f"{missed_size_bytes} bytes later the leader stayed", await x.leader() == leader)
        await recover(x, victim)


@scenario("kill-majority", "P1")
async def kill_majority(x: ScenarioContext) -> None:
    """The leader and a follower die at once; nothing is acked until one is back."""
    old, other = await x.leader(), await x.follower()
    is_raft, term = x.options.mode is ClusterMode.RAFT, await x.term()
    await asyncio.gather(_kill(x, old, "of a majority"), _kill(x, other, "of a majority"))
    dead_ns = now_ns()
    # Decisions of the leader just before may still be told; all of them are in its log.
    end = await x.do(end_position, x.cluster.data_directory(old)) if is_raft else None
    await x.linger(2.0)
    x.none_acked("no quorum", Moment(dead_ns, term, end))
    x.prove("no node leads", not await x.do(x.cluster.leader))
    await x.restart(old, other)
    await x.acked()


@scenario("kill-all", "P1")
async def kill_all(x: ScenarioContext) -> None:
    """All nodes are killed at once, twice."""
    for _ in range(2):
        nodes = x.random.sample(x.cluster.node_ids, len(x.cluster.node_ids))
        await asyncio.gather(*(_kill(x, node, "all") for node in nodes))
        await x.restart(*nodes)
        await x.acked()


@scenario("kill-storm", "P5")
async def kill_storm(x: ScenarioContext) -> None:
    """Nodes are killed in turn, 0.5 to 2 s apart, back at once."""
    for turn in range(8):
        victim = x.cluster.node_ids[turn % len(x.cluster.node_ids)]
        await _kill(x, victim, "the next")
        await x.linger(0.1, 0.5)
        await x.do(x.cluster.start, victim)
        await x.linger(0.5, 2.0)
        await x.until("the killed node runs", x.cluster.is_up, victim)
    await x.do(x.cluster.wait_ready)
    await x.acked()


@scenario("pause-leader", "P3")
async def pause_leader(x: ScenarioContext) -> None:
    """The leader sleeps through an election and wakes up deposed, twice."""
    for _ in range(2):
        await strikes.pause_leader(x)
        await x.acked()


@scenario("pause-follower", "P4 N13")
async def pause_follower(x: ScenarioContext) -> None:
    """A follower sleeps longer than any silence that is tolerated; the two others continue."""
    leader, victim = await x.leader(), await x.follower()
    async with x.fault("pause", f"a follower, node {victim}"):
        await x.do(x.cluster.pause, victim)
        # The link gives a silent connection up after 4 s.
        await x.linger(5.0)
        await x.acked()
        x.prove("it sleeps", (await x.do(x.cluster.status))[victim].state == "paused")
        x.prove("the leader stayed", await x.leader() == leader)
        await x.do(x.cluster.resume, victim)


@scenario("stutter", "P6 P10")
async def stutter(x: ScenarioContext) -> None:
    """Event loops, then interpreters of all nodes are held; last, the leader is starved.

    Each is held for 1.5 to 5 s; the starved leader runs a tenth of the time."""
    links, term = x.cluster.interceptor, await x.term()
    for what, part in (("loop", "loop"), ("interpreter", "lock")):
        # The leader comes last: it may be another one afterwards.
        leader = await x.leader()
        for node in [*(other for other in x.cluster.node_ids if other != leader), leader]:
            held, duration_ms = links.counts()["held"], x.random.randrange(1_500, 5_000)
            async with x.fault("hold", f"the {what} of node {node} for {duration_ms} ms"):
                began_ns = now_ns()
                await x.do(links.hold, node, part, duration_ms)
                # The node reports it once it can again: its loop, which was held, writes the count.
                await x.until("it was held", _has_held_more, x, held)
                took_ms = (now_ns() - began_ns) / 1e6
                await x.acked(50)
            await x.do(x.cluster.wait_ready)
            x.prove(f"the {what} of node {node} was held: it spoke after {took_ms:.0f} ms",
                    took_ms >= duration_ms)  # fmt: skip
    x.prove("elections are few", await x.term() - term <= 4)
    leader, before, term = await x.leader(), x.load.clients.acked_count, await x.term()
    async with x.fault("starve", f"node {leader} runs 10 ms of each 100"):
        for _ in range(30):
            await x.do(x.cluster.pause, leader)
            await x.linger(0.09)
            await x.do(x.cluster.resume, leader)
            await x.linger(0.01)
    x.prove("acks went on", x.load.clients.acked_count > before)
    await x.acked()
    x.prove("the number of terms is bounded", await x.term() - term <= 6)


def _has_held_more(x: ScenarioContext, before: int) -> bool:
    return x.cluster.interceptor.counts()["held"] > before


@scenario("abort", "P7")
async def abort(x: ScenarioContext) -> None:
    """Nodes end by SIGABRT, and by SIGBUS when their active log file shrinks under them."""
    victim = await x.follower()
    x.inject("abort", f"SIGABRT, node {victim}")
    await x.do(x.cluster.send, victim, signal.SIGABRT)
    await _dies_of(x, victim, signal.SIGABRT)
    victim = await x.leader()
    x.leader_lost()
    x.inject("abort", f"SIGBUS, node {victim}")
    await x.do(x.cluster.send, victim, signal.SIGBUS)
    await _dies_of(x, victim, signal.SIGBUS)


async def _dies_of(x: ScenarioContext, node: int, number: signal.Signals) -> None:
    """Wait for the death of a node, and start it once the others go on."""
    await x.ended(node, -number, f"node {node} died of {number.name}")
    await x.new_leader(node)
    await x.acked()
    await x.restart(node)


@scenario("shrunk-map", "P7 D9", modes=RAFT)
async def shrunk_map(x: ScenarioContext) -> None:
    """The mapped log file of a follower is cut to nothing while it runs: SIGBUS, then repair."""
    victim = await x.follower()
    status = await x.load.clients.client.admin.node_status(victim)
    files = x.cluster.data_directory(victim).glob("dledger-*/data/0*")
    mapped = [path for path in files if path.name.isdecimal()]
    active = max(path for path in mapped if int(path.name) <= status.end_log_position)
    x.inject("shrink", f"{active.name} of node {victim}")
    await x.do(os.truncate, active, 0)
    await _dies_of(x, victim, signal.SIGBUS)


@scenario("rolling-restart", "P8")
async def rolling_restart(x: ScenarioContext) -> None:
    """Every node is restarted in turn with SIGTERM: no append of a patient producer fails."""
    before = dict(x.recorder.outcomes)
    for node in x.cluster.node_ids:
        x.inject("restart", f"node {node}")
        await x.do(x.cluster.stop, node)
        x.prove(f"node {node} ended with 0", x.cluster.local.exit_code(node) in (0, None))
        await x.acked(50)
        await x.restart(node)
    failed = {
        name: count - before.get(name, 0)
        for name, count in x.recorder.outcomes.items()
        if name in ("put unknown", "put not applied") and count > before.get(name, 0)
    }
    x.prove("no put failed", not failed)
