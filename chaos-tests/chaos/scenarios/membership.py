"""Leadership that moves, and followers that need more than the log (fault-matrix 3.5)."""

from pathlib import Path
from typing import Final

from chaos.profile import Profile
from chaos.scenario import RAFT, Context, scenario
from quorumlog.errors import QuorumlogError

FORGETFUL: Final = Profile(
    settings=(
        ("file_size_bytes", "256KiB"),
        ("batch_size_bytes_max", "64KiB"),
        ("retention_size_bytes", "1MiB"),
        ("follower_lag_count_max", 100),
    )
)


@scenario("transfers", "M4", modes=RAFT)
async def transfers(x: Context) -> None:
    """Leadership is handed from node to node under load, and once to one that sleeps."""
    admin, moved = x.load.clients.client.admin, 0
    for _ in range(6):
        old = await x.leader()
        target = x.random.choice([node for node in x.cluster.node_ids if node != old])
        x.inject("transfer", f"from {old} to {target}")
        try:
            await admin.transfer_leadership(target)
        except QuorumlogError as error:
            x.recorder.note("admin", f"transfer: {error}")
        moved += await x.leader() == target
        await x.acked(100)
    x.prove(f"leadership moved {moved} times", moved > 2)
    sleeper = await x.follower()
    async with x.fault("transfer", f"to node {sleeper}, which sleeps"):
        await x.do(x.cluster.pause, sleeper)
        try:
            await admin.transfer_leadership(sleeper)
        except QuorumlogError as error:
            x.recorder.note("admin", f"transfer: {error}")
        await x.acked(100)
        await x.do(x.cluster.resume, sleeper)


@scenario("snapshot", "M5 M6", profile=FORGETFUL, modes=RAFT, pause_s=0.005)
async def snapshot(x: Context) -> None:
    """A follower misses what retention deletes: it gets a snapshot, while the leader changes."""
    for with_kill in (False, True):
        node = await x.follower()
        await x.do(x.cluster.kill, node)
        x.inject("kill", f"node {node}")
        start = await _first_index(x)
        while await _first_index(x) <= start or await _lag(x) < 500:
            await x.acked(1_000)
        log = x.cluster.local.log_path(node)
        before = log.read_text("utf-8").count("snapshot")
        await x.do(x.cluster.start, node)
        if with_kill:
            old = await x.leader()
            x.leader_lost()
            x.inject("kill", f"the leader, node {old}, while node {node} needs a snapshot")
            await x.do(x.cluster.kill, old)
            await x.do(x.cluster.start, old)
        await x.do(x.cluster.wait_ready)
        await x.until("a snapshot", _has_snapshot, log, before)
        x.prove(f"node {node} got a snapshot", True)
        await x.acked()


def _has_snapshot(log: Path, before: int) -> bool:
    return log.read_text("utf-8").count("snapshot") > before


async def _first_index(x: Context) -> int:
    return (await x.load.clients.client.admin.node_status()).first_index


async def _lag(x: Context) -> int:
    status = await x.load.clients.client.admin.node_status()
    return status.commit_index - min(
        member.match_index for member in status.members if member.match_index >= 0
    )
