"""Power losses, with the loss of all data that no sync had covered (fault-matrix D1 to D4, D17).

The shim copies every successful sync of a shadowed node beside its data. A power loss is
SIGKILL, and then files and names as `chaos.power` draws them: all synced data, any part of the
rest.
"""

import asyncio
from functools import partial
from typing import Final

from chaos import power
from chaos.profile import Profile
from chaos.scenario import DEADLINE_S, RAFT, ScenarioContext, scenario
from chaos.scenarios.damage import forget
from chaos.scenarios.process import ROLLING
from chaos.verdict import caught_up

SHADOWED: Final = Profile(is_shadowed=True, settings=ROLLING.settings)
UNSYNCED: Final = Profile(is_shadowed=True, flush="async", settings=ROLLING.settings)


async def _lose_power(x: ScenarioContext, *nodes: int) -> int:
    """Take the power from nodes; return the number of lost pages and names."""
    count = 0
    await asyncio.gather(*(x.do(x.cluster.kill, node) for node in nodes))
    for node in nodes:
        shadow = x.cluster.shims[node].shadow
        assert shadow is not None, "the profile keeps a shadow"
        lost = await x.do(power.lose, x.cluster.data_directory(node), shadow, x.random)
        x.inject("power-loss", f"node {node}: {lost}")
        count += lost.page_count + lost.name_count
    return count


@scenario("power-loss-one", "D1 D3 D4", profile=SHADOWED)
async def power_loss_one(x: ScenarioContext) -> None:
    """Each node in turn loses power, with any part of its unsynced data."""
    await _each_loses_power(x)


@scenario("power-loss-async", "D1", profile=UNSYNCED, modes=RAFT)
async def power_loss_async(x: ScenarioContext) -> None:
    """Nodes that ack before they sync lose power in turn: none counts until it is up to date.

    In the end one does while the only other node that has everything is down."""
    await _each_loses_power(x)
    leader = await x.leader()
    behind, victim = x.random.sample([n for n in x.cluster.node_ids if n != leader], 2)
    shadow = x.cluster.shims[victim].shadow
    assert shadow is not None, "the profile keeps a shadow"
    await forget(x, leader, behind, victim, partial(power.lose, shadow=shadow, random=x.random))


async def _each_loses_power(x: ScenarioContext) -> None:
    lost, client = 0, x.load.clients.client
    for node in x.cluster.node_ids:
        if node == await x.leader():
            x.leader_lost()
        lost += await _lose_power(x, node)
        await x.acked(50)
        await x.restart(node)
        # Without syncs the next loss would take what only this node and the next one hold.
        await caught_up(client, x.cluster.node_ids, DEADLINE_S * x.options.time_scale)
    x.prove(f"{lost} pages and names were lost", lost)


@scenario("power-loss-all", "D2 D3 D4 D17", profile=SHADOWED)
async def power_loss_all(x: ScenarioContext) -> None:
    """All nodes lose power at one instant, twice."""
    lost = 0
    for _ in range(2):
        await x.acked(100)
        lost += await _lose_power(x, *x.cluster.node_ids)
        await x.do(x.cluster.start)
        await x.do(x.cluster.wait_ready)
        await x.acked(50)
    x.prove(f"{lost} pages and names were lost", lost)
