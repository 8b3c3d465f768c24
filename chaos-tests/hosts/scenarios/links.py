"""Links between hosts that are cut, one-way, partial, flapping, or closed to long frames."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from chaos.scenario import ScenarioContext

from hosts.fabric.conditions import LinkCondition
from hosts.fabric.network import CLIENTS, Pair
from hosts.registry import host_scenario, on_hosts
from hosts.target import HostProfile

CUT: Final = LinkCondition(is_cut=True)
SHORT: Final = LinkCondition(frame_size_bytes_max=600)
"""A black hole: heartbeats, acks, votes and the handshake of TCP pass; entries do not."""


@asynccontextmanager
async def cut(x: ScenarioContext, what: str, pairs: Sequence[Pair]) -> AsyncIterator[None]:
    """Cut directions for the length of a block; demand that frames were lost there."""
    network = on_hosts(x).network
    before = network.counts(pairs).cut
    async with x.fault("cut", what):
        network.set(pairs, CUT)
        yield
        lost = network.counts(pairs).cut - before
        x.prove(f"{what}: {lost} frames were lost", lost > 0)
        network.heal()


async def steps_down(x: ScenarioContext, node: int) -> None:
    """Wait until a node does not lead, by its own word."""
    await x.until(f"node {node} steps down", lambda: x.target.status()[node].role != "leader")


def outgoing(pairs: Iterable[Pair], number: int) -> list[Pair]:
    """Return the directions away from a host."""
    return [pair for pair in pairs if pair[0] == number]


@host_scenario("host-isolated", "N1 N18")
async def host_isolated(x: ScenarioContext) -> None:
    """The leader's host is cut from all others and from clients, silently; then a follower's."""
    network = on_hosts(x).network
    old = await x.leader()
    x.leader_lost()
    async with cut(x, f"host {old}, all links", network.around(old, with_clients=True)):
        await x.new_leader(old)
        await x.acked()
        await steps_down(x, old)
        await x.linger(1.0, 2.0)
    await x.do(x.target.wait_ready)
    leader, term, node = await x.leader(), await x.term(), await x.follower()
    async with cut(x, f"host {node}, all links", network.around(node, with_clients=True)):
        await x.linger(3.0)
        await x.acked()
    await x.do(x.target.wait_ready)
    x.prove("the leader stayed", (await x.leader(), await x.term()) == (leader, term))


@host_scenario("one-way", "N4")
async def one_way(x: ScenarioContext) -> None:
    """All that the leader's host sends is lost, while it hears the others; then the other way."""
    network = on_hosts(x).network
    old = await x.leader()
    around = network.around(old, with_clients=False)
    sent = outgoing(around, old)
    x.leader_lost()
    async with cut(x, f"from host {old}", sent):
        await x.new_leader(old)
        await x.acked()
        await steps_down(x, old)
    await x.do(x.target.wait_ready)
    old = await x.leader()
    around = network.around(old, with_clients=False)
    arriving = [pair for pair in around if pair[1] == old]
    term = await x.term()
    x.leader_lost()
    async with cut(x, f"to host {old}", arriving):
        await x.new_leader(old)
        await x.acked()
        await steps_down(x, old)
        await x.linger(2.0)
        x.prove("elections end", await x.term() - term < 8)
    await x.do(x.target.wait_ready)


@host_scenario("partial", "N5 N18")
async def partial(x: ScenarioContext) -> None:
    """Clients are cut from the leader's host, which others reach; then two followers' hosts from
    each other."""
    network = on_hosts(x).network
    leader, term = await x.leader(), await x.term()
    async with cut(x, f"clients and host {leader}", network.pairs([CLIENTS], [leader])):
        await x.linger(4.0)
    x.prove("the leader stayed", (await x.leader(), await x.term()) == (leader, term))
    await x.acked()
    follower, other = [node for node in x.target.node_ids if node != leader]
    async with cut(x, f"hosts {follower} and {other}", network.pairs([follower], [other])):
        await x.linger(4.0)
        await x.acked()
        x.prove("the leader stayed again", (await x.leader(), await x.term()) == (leader, term))
    await x.do(x.target.wait_ready)


@host_scenario("flapping", "N7")
async def flapping(x: ScenarioContext) -> None:
    """All links of the leader's host, and then of a random one, come and go, 0.2 to 1.5 s each."""
    network, term = on_hosts(x).network, await x.term()
    for number in (await x.leader(), x.random.choice(x.target.node_ids)):
        pairs, lost = network.around(number, with_clients=True), 0
        for _ in range(4):
            before = network.counts(pairs).cut
            async with x.fault("flap", f"host {number}"):
                network.set(pairs, CUT)
                await x.linger(0.2, 1.5)
                network.heal()
            lost += network.counts(pairs).cut - before
            await x.linger(0.2, 1.5)
        await x.acked()
        x.prove(f"host {number}: {lost} frames were lost", lost > 0)
    x.prove("the number of terms is bounded", await x.term() - term <= 16)


@host_scenario("mtu-black-hole", "N9 N13")
async def mtu_black_hole(x: ScenarioContext) -> None:
    """Frames above 600 bytes vanish on the way from the leader to a follower; then to all."""
    network = on_hosts(x).network
    leader, node = await x.leader(), await x.follower()
    pairs = [(leader, node)]
    async with x.fault("black hole", f"from host {leader} to {node}"):
        network.set(pairs, SHORT)
        await x.linger(5.0)
        await x.acked()
        lost = network.counts(pairs).too_long
        x.prove(f"{lost} frames were too long", lost > 0)
        network.heal()
    await x.do(x.target.wait_ready)
    old = await x.leader()
    pairs = outgoing(network.around(old, with_clients=False), old)
    before = network.counts(pairs).too_long
    async with x.fault("black hole", f"from host {old} to all others"):
        x.leader_lost()
        network.set(pairs, SHORT)
        await x.acked(300)
        lost = network.counts(pairs).too_long - before
        x.prove(f"{lost} frames were too long", lost > 0)
        network.heal()
    await x.do(x.target.wait_ready)


@host_scenario("five-hosts", "N3", HostProfile(node_count=5))
async def five_hosts(x: ScenarioContext) -> None:
    """Five hosts in two places 10 ms apart are split 2 to 3, the leader on the smaller side."""
    network = on_hosts(x).network
    leader = await x.leader()
    others = [node for node in x.target.node_ids if node != leader]
    x.random.shuffle(others)
    here, there = [leader, others[0]], others[1:]
    between = network.pairs(here, there)
    async with x.fault("latency", f"10 ms between {here} and {there}"):
        network.set(between, LinkCondition(delay_ms=10.0, jitter_ms=2.0))
        await x.acked(300)
        x.prove("frames came later", network.counts(between).delayed > 0)
    x.leader_lost()
    async with cut(x, f"hosts {here} from {there}", between):
        x.prove("the larger side elects", await x.new_leader(leader) in there)
        await x.acked()
        await steps_down(x, leader)
    await x.do(x.target.wait_ready)
