"""Attacks on a user's local cluster, for the test of an application (`qlog chaos`).

Owns the attacks that need no proxies: signals, lost and late messages by the interceptor of the
nodes themselves, slow syncs by the shim. A load of this suite runs beside that of the application,
and its history is judged as in all trials; the cluster is whole again afterwards, or the verdict
says so.
"""

import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import quorumlog
from chaos.load import GROUP
from chaos.profile import ClusterMode, Profile, ScenarioOptions
from chaos.scenario import ALL_MODES, Scenario, ScenarioContext
from chaos.shim import Shim, SystemCall, compile_shim
from chaos.target import Target
from chaos.trial import Trial, TrialResult
from deploy.local import LocalCluster
from quorumlog.cluster.transport import Transport

Attack = Callable[[ScenarioContext, int, float], Awaitable[None]]


async def kill(x: ScenarioContext, node: int, seconds: float) -> None:
    """End a node by SIGKILL, and start it again."""
    is_leader = node == await x.leader()
    if is_leader:
        x.leader_lost()
    async with x.fault("kill", f"node {node}, for {seconds} s"):
        await x.do(x.target.kill, node)
        x.prove(f"node {node} is dead", not x.target.local.is_alive(node))
        await x.acked()
        await x.linger(seconds)
    await x.do(x.target.start, node)


async def pause(x: ScenarioContext, node: int, seconds: float) -> None:
    """Stop a node from running (SIGSTOP), connections open, and let it go on."""
    if node == await x.leader():
        x.leader_lost()
    async with x.fault("pause", f"node {node}, for {seconds} s"):
        await x.do(x.target.pause, node)
        x.prove(f"node {node} sleeps", (await x.do(x.target.status))[node].state == "paused")
        await x.acked()
        await x.linger(seconds)
        await x.do(x.target.resume, node)


async def partition(x: ScenarioContext, node: int, seconds: float) -> None:
    """Lose all messages between a node and the others; clients still reach all of them."""
    if node == await x.leader():
        x.leader_lost()
    cut = partial(x.target.interceptor.cut, _links(x, node))
    await _disturb(x, "partition", f"node {node}", seconds, cut, "dropped")


async def slow_link(x: ScenarioContext, node: int, seconds: float) -> None:
    """Let all messages between a node and the others be late by up to 300 ms, in any order."""
    slow = partial(x.target.interceptor.slow, _links(x, node), 300)
    await _disturb(x, "slow-link", f"node {node}", seconds, slow, "late")


async def lossy_link(x: ScenarioContext, node: int, seconds: float) -> None:
    """Lose, double and delay a tenth each of all messages between all nodes."""
    lossy = partial(x.target.interceptor.set, drop=0.1, double=0.1, late=0.1, late_ms=300)
    await _disturb(x, "lossy-link", "all nodes", seconds, lossy, "dropped")


async def _disturb(
    x: ScenarioContext,
    kind: str,
    where: str,
    seconds: float,
    begin: Callable[[], None],
    counted: str,
) -> None:
    """Do something to messages for a time; demand that nodes count it."""
    interceptor = x.target.interceptor
    before = interceptor.counts()[counted]
    async with x.fault(kind, f"{where}, for {seconds} s"):
        await x.do(begin)
        await x.linger(seconds)
        await x.acked()
        await x.do(interceptor.clear)
    await x.until(f"messages are {counted}", lambda: interceptor.counts()[counted] > before)
    x.prove(f"messages were {counted}", True)


async def slow_disk(x: ScenarioContext, node: int, seconds: float) -> None:
    """Let every sync of a node take 200 ms longer; it is restarted before and after."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        library = await x.do(compile_shim, Path(name))
        control = Path(name) / "control"
        shim = x.target.shims[node] = Shim(library, x.target.data_directory(node), control, None)
        try:
            await _restart(x, node)
            async with x.fault("slow-disk", f"node {node}, for {seconds} s"):
                shim.delay(SystemCall.SYNC, 200)
                await x.linger(seconds)
                await x.acked()
                x.prove("syncs were slow", shim.hits(SystemCall.SYNC))
                shim.clear()
        finally:
            del x.target.shims[node]
            await _restart(x, node)
            shim.close()


async def _restart(x: ScenarioContext, node: int) -> None:
    await x.do(x.target.stop, node)
    await x.restart(node)


def _links(x: ScenarioContext, node: int) -> list[tuple[int, int]]:
    others = [other for other in x.target.node_ids if other != node]
    return [(node, other) for other in others] + [(other, node) for other in others]


ATTACKS: Final[dict[str, Attack]] = {
    "kill": kill,
    "pause": pause,
    "partition": partition,
    "slow-link": slow_link,
    "lossy-link": lossy_link,
    "slow-disk": slow_disk,
}


async def run(
    cluster: LocalCluster,
    attack: Attack,
    *,
    node: int | None,
    seconds: float,
    seed: int,
    transport: Transport = "auto",
    on_phase: Callable[[str], None],
) -> TrialResult:
    """Attack one node, by default the leader, and judge the clients' history.

    The topic and the group of the clients are deleted after a trial that passed; a failed one is
    looked into. `transport` is that of the clients here, not of the application's. `on_phase` is
    called as a phase of the trial begins."""

    async def body(x: ScenarioContext) -> None:
        await attack(x, node if node is not None else await x.leader(), seconds)

    title = (attack.__doc__ or "").splitlines()[0]
    chosen = Scenario(
        attack.__name__.replace("_", "-"), (), title, body, Profile(), ALL_MODES, False, 0.02
    )
    topic = f"chaos-{time.time_ns():x}"
    target = Target(cluster, cluster.bootstrap)
    options = ScenarioOptions(seed, ClusterMode(cluster.replication), transport=transport)
    result = await Trial(chosen, target, options, seed, topic, on_phase=on_phase).run()
    if result.verdict == "passed":
        async with quorumlog.connect(cluster.bootstrap) as client:
            await client.admin.delete_topic(topic)
            groups = await client.admin.list_groups()
            for group in groups:
                if group.group == f"{GROUP}-{topic}":
                    await client.admin.delete_group(group.group)
    return result
