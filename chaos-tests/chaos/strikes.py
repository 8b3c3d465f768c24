"""Faults that remove the leader once; the cluster is whole again at the end of each.

Owns how a leader is killed, held or cut off and comes back; must not know the work that continues
meanwhile. For scenarios that are about this work, and strike several times while it lasts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from chaos.links import Pair
from chaos.profile import ClusterMode
from chaos.scenario import ScenarioContext

CUT_S: Final = 2.0
"""Duration of the cut of a master from its slaves: it continues as master."""
Strike = Callable[[ScenarioContext], Awaitable[None]]


def swallowed(x: ScenarioContext, pairs: Sequence[Pair]) -> int:
    """Return the bytes that went into these links and did not come out, since the start; of the
    links of clients, over the transport in use."""
    counts = x.cluster.links.swallowed(pairs, x.load.transport).values()
    return sum(received - sent for received, sent in counts)


async def bites(x: ScenarioContext, what: str, pairs: Sequence[Pair], before: int) -> None:
    """Demand that the links of a cut took bytes in and gave none out."""
    await x.until(f"{what} swallows bytes", lambda: swallowed(x, pairs) > before)
    x.prove(f"{what} swallowed bytes", True)


@asynccontextmanager
async def cut(
    x: ScenarioContext, kind: str, text: str, pairs: Sequence[Pair]
) -> AsyncIterator[None]:
    """Cut links for the length of a block, silently; demand that they took bytes in and gave none
    out."""
    before = await x.do(swallowed, x, pairs)
    async with x.fault(kind, text):
        await x.do(x.cluster.links.cut, pairs)
        yield
        await bites(x, f"the {kind}", pairs, before)
        await x.do(x.cluster.links.join, pairs)


async def kill_leader(x: ScenarioContext) -> None:
    """Kill the leader by SIGKILL, and start it once another node leads."""
    old = await x.kill_leader()
    await x.new_leader(old)
    await x.restart(old)


async def pause_leader(x: ScenarioContext) -> None:
    """Stop the leader by SIGSTOP until another node leads, and let it continue with stale work."""
    old = await x.leader()
    x.leader_lost()
    async with x.fault("pause", f"the leader, node {old}"):
        await x.do(x.cluster.pause, old)
        await x.new_leader(old)
        await x.acked()
        await x.do(x.cluster.resume, old)
    status = x.cluster.status
    await x.until("the old leader follows", lambda: status()[old].leader_id not in (0, old))
    x.prove("another leads", await x.leader() != old)
    await x.do(x.cluster.wait_ready)


async def cut_leader_off(x: ScenarioContext) -> None:
    """Cut the leader from all other nodes, silently, and not from clients."""
    old, links = await x.leader(), x.cluster.links
    if x.options.mode is ClusterMode.RAFT:
        x.leader_lost()
    pairs = links.between([old], [node for node in links.nodes if node != old])
    async with cut(x, "isolate", f"the leader, node {old}", pairs):
        if x.options.mode is ClusterMode.RAFT:
            await x.new_leader(old)
        await x.linger(CUT_S)
    await x.do(x.cluster.wait_ready)


async def lead(x: ScenarioContext, node: int) -> None:
    """Make a node lead; the request may be refused while the node has not caught up."""
    await x.until_true(f"node {node} comes to lead", gives_lead, x, node)
    await x.acked(100)


async def gives_lead(x: ScenarioContext, node: int) -> bool:
    """Let a node lead if it does not; return whether it did before."""
    if await x.do(x.target.leader) == node:
        return True
    admin = x.load.clients.client.admin
    give = admin.transfer_leadership if x.options.mode is ClusterMode.RAFT else admin.ha_promote
    await give(node)
    return False
