"""Nodes that die at a named step of their work (fault-matrix P2, P7).

Owns which steps are passed under load, by mode. Each of them is hit in each run of its scenario:
the node is started with the point armed, and its death proves that it came by.
"""

from typing import Final

from chaos.ends import EXIT_BROKEN, KILLED
from chaos.errors import NotSoError
from chaos.profile import Mode
from chaos.scenario import RAFT, Context, scenario
from chaos.scenarios.membership import FORGETFUL, behind_retention
from chaos.scenarios.process import ROLLING, restart
from quorumlog.errors import QuorumlogError
from store.mapped_file import TEMPORARY_SUFFIX

_CALLS: Final = (
    "fs.sync", "fs.rename", "fs.open", "fs.allocate", "fs.write", "fs.unlink", "fs.sync_directory",
    "fs.map",
)  # fmt: skip
_PASSES: Final = {"fs.sync": (20, 60), "fs.sync_directory": (4, 16)}
"""Of what comes at once and often; a log makes few names."""
_STEPS: Final = (
    "flush.after_sync", "flush.before_tell", "mapped_file_queue.roll", "meta_file.before_rename",
    "durable_mark.write", "consume_queue.write", "dispatch.before_mark",
    "state_checkpoint.before_manifest", "state_checkpoint.before_rename",
)  # fmt: skip
_OF_RAFT: Final = ("ledger.before_append", "ledger.after_append")
_OF_SLAVES: Final = ("shipped_log.before_append", "shipped_log.after_append")
_OF_SNAPSHOTS: Final = (
    "snapshot.before_stage", "snapshot.staged", "snapshot.before_installed", "snapshot.installed",
    "replica_store.before_reset", "ledger.before_reset",
)  # fmt: skip
_OF_CUTS: Final = ("replica_store.before_cut", "ledger.before_cut")


async def _die_at(x: Context, node: int, point: str, nth: int) -> None:
    """Start a node that does not run, wait until it has died at a point, start it again."""
    x.inject("failpoint", f"{point} at pass {nth}, node {node}")
    await x.do(x.cluster.start, node, failpoints=f"{point}=kill@{nth}")
    await x.do(x.cluster.wait_ended, node, KILLED)
    x.prove(f"node {node} died at {point}", True)


@scenario("kill-at-failpoints", "P2", profile=ROLLING)
async def kill_at_failpoints(x: Context) -> None:
    """A node dies at a named step of its work, at each of them once."""
    await _die_at_each(x, *_STEPS, *(_OF_RAFT if x.options.mode is Mode.RAFT else _OF_SLAVES))


@scenario("kill-at-calls", "P2", profile=ROLLING)
async def kill_at_calls(x: Context) -> None:
    """A node dies as it calls the file system, at each kind of call once."""
    await _die_at_each(x, *_CALLS)


async def _die_at_each(x: Context, *points: str) -> None:
    for point in x.random.sample(points, len(points)):
        is_slaves = point in _OF_SLAVES
        victim = await x.follower() if is_slaves else x.random.choice(x.cluster.node_ids)
        nth = x.random.randrange(*_PASSES.get(point, (1, 2)))
        await x.do(x.cluster.stop, victim)
        if point == "fs.unlink":
            await x.do(_leave_over, x, victim)
        await _die_at(x, victim, point, nth)
        await x.acked(50)
        await restart(x, victim)


def _leave_over(x: Context, node: int) -> None:
    """Leave what a crash leaves of a file that was being made: it is deleted at the start.

    A node that stopped well may have nothing to delete until retention comes.
    """
    data = x.cluster.data_directory(node)
    is_raft = x.options.mode is Mode.RAFT
    directory = next(data.glob("dledger-*/data")) if is_raft else data / "commitlog"
    newest = max(path for path in directory.iterdir() if path.name.isdecimal())
    newest.with_name(newest.name + TEMPORARY_SUFFIX).write_bytes(bytes(4096))


@scenario("kill-in-snapshots", "P2 M5", profile=FORGETFUL, modes=RAFT, pause_s=0.005)
async def kill_in_snapshots(x: Context) -> None:
    """A follower dies while it installs a snapshot, at two steps drawn; later it gets it whole."""
    for point in x.random.sample(_OF_SNAPSHOTS, 2):  # Until one is needed takes half a minute.
        node = await behind_retention(x)
        await _die_at(x, node, point, 1)
        await x.acked(50)
        await restart(x, node)


@scenario("kill-in-cuts", "P2 N1", modes=RAFT)
async def kill_in_cuts(x: Context) -> None:
    """An old leader dies while it cuts off what was never committed, and cuts it the next time."""
    links, admin = x.cluster.links, x.load.clients.client.admin
    for point in _OF_CUTS:
        victim = await x.follower()
        await x.do(x.cluster.stop, victim)
        await x.do(x.cluster.start, victim, failpoints=f"{point}=kill@1")
        await x.do(x.cluster.wait_ready)
        try:
            await admin.transfer_leadership(victim)
        except QuorumlogError as error:
            raise NotSoError(f"node {victim} did not come to lead: {error}") from error
        await x.acked(50)
        x.leader_lost()
        async with x.fault("isolate", f"node {victim}, which dies at {point}"):
            # It goes on taking what clients send, and nobody else has that.
            pairs = await x.do(links.isolate, victim)
            await x.new_leader(victim)
            await x.do(links.join, pairs)
        x.inject("failpoint", f"{point}, node {victim}")
        await x.do(x.cluster.wait_ended, victim, KILLED)
        x.prove(f"node {victim} died at {point}", True)
        await restart(x, victim)
        await x.acked(50)


@scenario("assertion", "P7", profile=ROLLING, modes=RAFT)
async def assertion(x: Context) -> None:
    """An assertion fails in a follower, then in the leader: 70, a dump, and the others go on."""
    for victim in (await x.follower(), await x.leader()):
        await x.do(x.cluster.stop, victim)
        x.inject("assertion", f"node {victim}")
        # Nothing can fail between a roll and its entry: the node relies on that.
        await x.do(x.cluster.start, victim, failpoints="ledger.before_append=EIO@30")
        await x.do(x.cluster.wait_ended, victim, EXIT_BROKEN)
        x.prove(f"node {victim} ended with 70", True)
        dumps = x.cluster.data_directory(victim).glob("dump-*")
        x.prove(f"node {victim} left a dump", any(dumps))
        await x.acked(50)
        await restart(x, victim)
