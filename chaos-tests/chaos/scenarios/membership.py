"""Leadership that moves, and followers that need more than the log (fault-matrix 3.5)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, ParamSpec

from chaos.clients import LOG_QUEUES
from chaos.errors import NotSoError
from chaos.profile import Profile
from chaos.scenario import DEADLINE_S, RAFT, Context, scenario
from quorumlog.errors import QuorumlogError

_Arguments = ParamSpec("_Arguments")
CHANGED: Final = Profile(node_count=5, is_own=True)
"""A failure leaves members behind that nobody expects."""
FORGETFUL: Final = Profile(
    settings=(
        ("file_size_bytes", "256KiB"),
        ("batch_size_bytes_max", "64KiB"),
        ("retention_size_bytes", "1MiB"),
        ("follower_lag_count_max", 100),
    ),
    forgets=True,
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
    client, topic = x.load.clients.client, x.load.clients.topic
    for with_kill in (False, True):
        node = await behind_retention(x, of_all=with_kill)
        batch = await client.pull(topic, LOG_QUEUES[0], 0)
        x.prove(f"offset 0 is refused: it begins at {batch.min_offset}", batch.is_out_of_range)
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


async def behind_retention(x: Context, *, of_all: bool = False) -> int:
    """Kill a follower, and wait until the leader has not kept what it misses; return it.

    `of_all`: nobody has, since any of the others may come to lead, and each deletes by itself.
    """
    node, leader, admin = await x.follower(), await x.leader(), x.load.clients.client.admin
    others = [other for other in x.cluster.node_ids if other != node] if of_all else [leader]
    await x.do(x.cluster.kill, node)
    x.inject("kill", f"node {node}")
    missed = (await admin.node_status(leader)).commit_index
    while min([(await admin.node_status(other)).first_index for other in others]) <= missed:
        await x.acked(500)
    while await _lag(x) < 500:
        await x.acked(200)
    return node


def _has_snapshot(log: Path, before: int) -> bool:
    return log.read_text("utf-8").count("snapshot") > before


async def _lag(x: Context) -> int:
    status = await x.load.clients.client.admin.node_status()
    return status.commit_index - min(
        member.match_index for member in status.members if member.match_index >= 0
    )


@scenario("members", "M1 M2", profile=CHANGED, modes=RAFT)
async def members(x: Context) -> None:
    """Voters of five are removed and added again under load; the leader dies in each phase."""
    admin, known = x.load.clients.client.admin, await addresses(x)
    for phase in ("removal", "adding", "promotion"):
        node = await x.follower()
        await change(x, f"remove {node}", admin.remove_member, node)
        if phase == "removal":
            await _kill_leader(x)
        where = known[node]
        # Its old log and its old vote stay with it: it comes back as who it was.
        await change(
            x, f"add {node}", admin.add_learner, node, address=where[0], peer_address=where[1]
        )
        if phase == "adding":
            await _kill_leader(x)
        await change(x, f"promote {node}", admin.promote, node)
        if phase == "promotion":
            await _kill_leader(x)
        await x.acked(50)
        x.prove(f"node {node} is a voter again", await is_voter(x, node))


@scenario("members-away", "M2", profile=CHANGED, modes=RAFT)
async def members_away(x: Context) -> None:
    """A cut-off node is removed and disturbs nobody when it is back; then the leader is removed."""
    admin, links, known = x.load.clients.client.admin, x.cluster.links, await addresses(x)
    node = await x.follower()
    async with x.fault("isolate", f"node {node}, which is removed meanwhile"):
        pairs = await x.do(links.isolate, node)
        await x.linger(1.5)  # It has begun to ask for votes.
        await change(x, f"remove {node}", admin.remove_member, node)
        before = await x.do(_candidacies, x, node)
        await x.do(links.join, pairs)
        await x.linger(3.0)
        # Others may elect on a slow machine; who is removed raises nobody's term.
        x.prove("it never came to ask for votes", await x.do(_candidacies, x, node) == before)
    old = await x.leader()
    x.leader_lost()
    await change(x, f"remove the leader, {old}", admin.remove_member, old)
    x.prove("another leads", await x.new_leader(old) != old)
    await x.acked()
    for back in (node, old):
        where = known[back]
        await change(
            x, f"add {back}", admin.add_learner, back, address=where[0], peer_address=where[1]
        )
        await change(x, f"promote {back}", admin.promote, back)
        x.prove(f"node {back} is a voter again", await is_voter(x, back))


def _candidacies(x: Context, node: int) -> int:
    """How often a node raised its term to be elected; asking beforehand raises none."""
    return x.cluster.local.log_path(node).read_text("utf-8").count('"role": "candidate"')


async def addresses(x: Context) -> dict[int, tuple[str, str]]:
    """The addresses of each member, for clients and for peers."""
    status = await x.load.clients.client.admin.node_status()
    return {member.node_id: (member.address, member.peer_address) for member in status.members}


async def is_voter(x: Context, node: int) -> bool:
    """Whether the leader has a node among its voters."""
    status = await x.load.clients.client.admin.node_status()
    return any(member.node_id == node and member.is_voter for member in status.members)


async def change(
    x: Context,
    what: str,
    call: Callable[_Arguments, Awaitable[object]],
    *given: _Arguments.args,
    **named: _Arguments.kwargs,
) -> None:
    """Change a member, again as long as it is refused: a leader may be new, a learner behind.

    A change whose outcome is unknown may be refused the next time because it is done.
    """
    x.inject("change", what)
    deadline = time.monotonic() + DEADLINE_S * x.options.time_scale
    was_unknown = False
    while True:
        try:
            await call(*given, **named)
            return
        except QuorumlogError as error:
            x.recorder.note("admin", f"{what}: {error}")
            if was_unknown and error.code == "raft.change_refused" and "already" in str(error):
                return
            was_unknown |= error.outcome.value == "unknown"
            if time.monotonic() >= deadline:
                raise NotSoError(f"{what} is refused for ever: {error}") from error
        await asyncio.sleep(0.1)


async def _kill_leader(x: Context) -> None:
    old = await x.leader()
    x.leader_lost()
    x.inject("kill", f"the leader, node {old}")
    await x.do(x.cluster.kill, old)
    await x.new_leader(old)
    await x.do(x.cluster.start, old)
    await x.acked(50)
