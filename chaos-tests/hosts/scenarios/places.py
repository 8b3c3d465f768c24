"""Hosts that are not where, or when, others take them to be: other clocks, another address."""

from pathlib import Path
from typing import Final

from chaos.recorder import now_ns
from chaos.scenario import ScenarioContext
from chaos.strikes import kill_leader

from hosts.registry import host_scenario, on_hosts
from hosts.target import HostProfile

CLOCK_OFFSETS_S: Final = (0, 3_600_000, 40_000_000)
"""Hosts that were started at different times have clocks of elapsed time that say so: here by 41
days and by 15 months."""
_ROUND_COUNT: Final = 2
MOVED_WITHIN_S: Final = 30.0
"""Limit until 100 appends are acked: a dead connection is noticed within 10 s, and a call that was
sent over it has its own time."""


@host_scenario(
    "clock-offsets", "C2", HostProfile(needs=("clocks",), clock_offsets_s=CLOCK_OFFSETS_S)
)
async def clock_offsets(x: ScenarioContext) -> None:
    """The clocks of elapsed time of three hosts are days and months apart; leaders are killed."""
    for node, offset_s in zip(x.target.node_ids, CLOCK_OFFSETS_S, strict=True):
        path = Path(f"/proc/{x.target.pid(node)}/timens_offsets")
        words = (await x.do(path.read_text, "ascii")).split()
        seen = int(words[words.index("monotonic") + 1])
        x.prove(f"the clock of host {node} is {seen:,} s ahead", seen == offset_s)
    for _ in range(_ROUND_COUNT):
        await kill_leader(x)
        await x.acked()


@host_scenario("address-changed", "N13")
async def address_changed(x: ScenarioContext) -> None:
    """A follower's host comes back at another address, and its name leads there; the leader's host
    gets a new device, and then another address under its running node."""
    network = on_hosts(x).network
    node = await x.follower()
    before = network.hosts[node].address
    async with x.fault("address", f"host {node} while its node is stopped"):
        await x.do(x.target.stop, node)
        after = await x.do(network.move, node)
        await x.restart(node)
        x.prove(f"host {node} left {before} for {after}", before != after)
        await x.acked()
    leader = await x.leader()
    old = network.hosts[leader].hardware_address
    async with x.fault("device", f"host {leader}"):
        new = await x.do(network.replace_device, leader)
        x.prove(f"host {leader} has {new} instead of {old}", new != old)
        await x.acked(300)
    await x.do(x.target.wait_ready)
    leader = await x.leader()
    before = network.hosts[leader].address
    async with x.fault("address", f"host {leader} while its node leads"):
        x.leader_lost()
        after = await x.do(network.move, leader)
        # Another leads, or the same one again, to which no connection of before leads.
        await x.acked(timeout_s=MOVED_WITHIN_S)
        x.prove(f"host {leader} left {before} for {after}", before != after)
    await x.do(x.target.wait_ready)


@host_scenario("clients-moved", "N13")
async def clients_moved(x: ScenarioContext) -> None:
    """Clients get another address: their connections are dead without notice, and no node is."""
    network = on_hosts(x).network
    leader, term = await x.leader(), await x.term()
    async with x.fault("address", "clients"):
        before = now_ns()
        after = await x.do(network.move_clients)
        await x.acked(timeout_s=MOVED_WITHIN_S)
        took_s = (now_ns() - before) / 1e9
        x.prove(f"clients are at {after}, and were silent for {took_s:.1f} s", took_s > 1.0)
    x.prove("the leader stayed", (await x.leader(), await x.term()) == (leader, term))
