"""Masters and slaves that lose each other (fault-matrix 3.6).

The name server inside the nodes chooses the master, over links of its own that are not cut here:
a master that has lost its slaves continues as master.
"""

import asyncio
import shutil
from typing import Final

from chaos.log_files import end_position
from chaos.losses import reported
from chaos.profile import ClusterMode
from chaos.receipts import Moment, acked_count
from chaos.recorder import now_ns
from chaos.scenario import HA, ScenarioContext, scenario
from quorumlog.admin.types import HaLoss
from quorumlog.cluster.nameserver import NameServers

CUT_S: Final = 3.0


async def _acks_are_right(x: ScenarioContext, what: str, slaves: list[int]) -> None:
    """Demand that a sync master without slaves acks no call that begins now, and of earlier calls
    only records that a slave has; an async one goes on."""
    alone_ns, epoch = now_ns(), await x.term()
    await x.linger(CUT_S)
    if x.options.mode is ClusterMode.SYNC_MASTER:
        ends = [await x.do(end_position, x.cluster.data_directory(node)) for node in slaves]
        x.none_acked(f"{what}: no copies", Moment(alone_ns, epoch, max(ends)))
        x.prove(f"{what}: the epoch is still {epoch}", await x.term() == epoch)
    else:
        count = acked_count(x.recorder.operations, since_ns=alone_ns, term=epoch)
        x.prove(f"{what}: {count} receipts of the master alone", count > 0)


@scenario("master-cut", "H2 N1", modes=HA)
async def master_cut(x: ScenarioContext) -> None:
    """The master is cut from its slaves, and not from clients or the name server."""
    links, master = x.cluster.links, await x.leader()
    async with x.fault("isolate", f"the master, node {master}"):
        pairs = await x.do(links.isolate, master)
        await _acks_are_right(x, "cut", [node for node in links.nodes if node != master])
        await x.do(links.join, pairs)
    await x.acked()


@scenario("slaves-killed", "H5", modes=HA)
async def slaves_killed(x: ScenarioContext) -> None:
    """All slaves die; acks then follow the mode, and the slaves catch up."""
    master = await x.leader()
    slaves = [node for node in x.cluster.node_ids if node != master]
    x.inject("kill", f"all slaves, {slaves}", count=len(slaves))
    await asyncio.gather(*(x.do(x.cluster.kill, node) for node in slaves))
    await _acks_are_right(x, "dead", slaves)
    await x.restart(*slaves)
    await x.acked()


@scenario("lagging-slaves", "H4 H6", modes=HA)
async def lagging_slaves(x: ScenarioContext) -> None:
    """The slaves lag behind thin links when the master dies, or sleeps; it comes back with more."""
    if x.options.mode is ClusterMode.ASYNC_MASTER:
        # The paused master knows all its acks, so its report is exact.
        losses = await _lost_by_lagging(x, is_killed=False)
        x.prove("who slept knows exactly", any(loss.is_exact for loss in losses))
    await _lost_by_lagging(x, is_killed=True)


async def _lost_by_lagging(x: ScenarioContext, *, is_killed: bool) -> set[HaLoss]:
    """Let the slaves lag, take the master away, bring it back; return the reported losses."""
    client = x.load.clients.client
    before, is_async = set(await reported(client)), x.options.mode is ClusterMode.ASYNC_MASTER
    master = await lose_by_lagging(x, is_killed=is_killed)
    await x.do(x.cluster.start if is_killed else x.cluster.resume, master)
    await x.do(x.cluster.wait_ready)
    await x.acked()
    losses: set[HaLoss] = set()
    if is_async:
        # The old master reports the loss once it has met the new log.
        async def is_reported() -> bool:
            losses.update(set(await reported(client)) - before)
            return bool(losses)

        await x.until_true("a loss is reported", is_reported)
        statements = [f"{loss.acked_record_count} acked of epoch {loss.epoch}" for loss in losses]
        x.prove(f"a loss is reported: {statements}", statements)
    return losses


async def lose_by_lagging(x: ScenarioContext, *, is_killed: bool = True) -> int:
    """Let the slaves lag and take the master away: an async one has records that no other has.
    Return it once another one serves."""
    links, master = x.cluster.links, await x.leader()
    slaves = [node for node in links.nodes if node != master]
    pairs, is_async = links.between([master], slaves), x.options.mode is ClusterMode.ASYNC_MASTER
    async with x.fault("bandwidth", f"8 KB/s from node {master}", count=len(pairs)):
        await x.do(links.add, pairs, "bandwidth", rate=8)
        await x.linger(3.0)
        if is_async:
            # Bytes in a thin link still arrive when their sender is dead.
            x.inject("one-way", f"what node {master} sends to slaves is lost", count=len(slaves))
            for slave in slaves:
                await x.do(links.cut_direction, master, slave)
            await x.acked()
        x.leader_lost()
        x.inject("kill" if is_killed else "pause", f"the master, node {master}")
        await x.do(x.cluster.kill if is_killed else x.cluster.pause, master)
        await x.do(links.heal)
    x.prove("another node is master", await x.new_leader(master) != master)
    await x.acked()
    return master


@scenario("master-link-storm", "H10", modes=HA)
async def master_link_storm(x: ScenarioContext) -> None:
    """The links of the slaves are closed again and again: a slave counts once."""
    links, master = x.cluster.links, await x.leader()
    pairs = links.between([master], [node for node in links.nodes if node != master])
    before = x.load.clients.acked_count
    for _ in range(10):
        async with x.fault("refuse", str(pairs), count=len(pairs)):
            await x.do(links.refuse, pairs)
            await x.linger(0.05, 0.3)
            await x.do(links.accept, pairs)
        await x.linger(0.1, 0.4)
    await x.acked()
    x.prove("acks went on", x.load.clients.acked_count > before)


@scenario("master-one-way", "N4 N5 H2 H13", modes=HA)
async def master_one_way(x: ScenarioContext) -> None:
    """Bytes of the master to one slave are lost, then that slave's, then all the master sends."""
    links, master = x.cluster.links, await x.leader()
    slave, other = [node for node in links.nodes if node != master]
    lost = [[(master, slave)], [(slave, master)], [(master, slave), (master, other)]]
    for cuts in lost:
        before = x.load.clients.acked_count
        async with x.fault("one-way", f"lost is {cuts}", count=len(cuts)):
            for source, target in cuts:
                await x.do(links.cut_direction, source, target)
            if len(cuts) == 1:
                await x.acked()
                x.prove(f"{cuts}: the other slave is enough", True)
            else:
                await _acks_are_right(x, f"{cuts}", [slave, other])
            await x.do(links.heal)
        await x.acked()
        x.prove("acks went on", x.load.clients.acked_count > before)
    x.prove("the master stayed", await x.leader() == master)


@scenario("lost-controller", "H8", modes=HA)
async def lost_controller(x: ScenarioContext) -> None:
    """The name servers lose all their data while all nodes are down: epochs go on from the last."""
    epoch = await x.term()
    nodes = x.cluster.node_ids
    for node in nodes:
        await x.kill(node)
        await x.do(shutil.rmtree, x.cluster.data_directory(node) / "nameserver")
        x.inject("lose", f"what the name server of node {node} knows")
    await x.do(x.cluster.start, *nodes)  # No fail-over: no node could have led.
    await x.do(x.cluster.wait_ready)
    await x.acked()
    term = await x.term()
    x.prove(f"epoch {term} follows {epoch}", term > epoch)


@scenario("no-controller", "H9", modes=HA)
async def no_controller(x: ScenarioContext) -> None:
    """Two of three name servers are damaged: there is no controller, and all else goes on.

    Then the one remaining directory is kept, and there is a controller again."""
    master, epoch = await x.leader(), await x.term()
    slaves = [node for node in x.cluster.node_ids if node != master]
    for node in slaves:
        await x.kill(node)
        journal = x.cluster.data_directory(node) / "nameserver" / "journal"
        await x.do(journal.write_bytes, b"junk" * 100)
        x.inject("damage", f"the journal of the name server of node {node}")
        await x.restart(node)
    for node in slaves:
        details = (await x.load.clients.client.admin.node_status(node)).detail
        x.prove(f"node {node}: {details}", "name server: " in details)
    await x.linger(5.0)  # Longer than the silence after which a controller would decide.
    await x.acked(300)
    x.prove("the master stayed", await x.leader() == master and await x.term() == epoch)
    await _keep_one_directory(x, master, *slaves)
    await x.acked(100)
    old = await x.kill_leader("the master")
    x.prove("a controller made another node the master", await x.new_leader(old))
    await x.restart(old)


async def _keep_one_directory(x: ScenarioContext, kept: int, *lost: int) -> None:
    """Restore a name server of which only one replica has its files, as in docs/operations.md
    under "A replica of the name server without memory"."""
    for node in (kept, *lost):
        await x.do(x.cluster.kill, node)
    directory = x.cluster.data_directory(kept) / "nameserver"
    for name in ("lives.0", "lives.1"):
        await x.do((directory / name).unlink, missing_ok=True)
    for node in lost:
        await x.do(shutil.rmtree, x.cluster.data_directory(node) / "nameserver")
    first, *rest = lost
    await x.do(x.cluster.start, kept, first)
    addresses = [x.cluster.local.address(node) for node in (kept, first)]
    async with NameServers(addresses) as names:

        async def is_led() -> bool:
            return any(replica.leader for replica in await names.status())

        await x.until_true("a replica of the name server leads", is_led)
    await x.restart(*rest)
