"""Changes of leadership, and followers that need more than the log (fault-matrix 3.5)."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec

from chaos.clients import LOG_QUEUES
from chaos.errors import NotSoError
from chaos.profile import Profile
from chaos.recorder import Recorder, now_ns
from chaos.scenario import DEADLINE_S, RAFT, ScenarioContext, scenario
from checkers.history import Kind
from quorumlog.errors import QuorumlogError
from raft.errors import Outcome

_Arguments = ParamSpec("_Arguments")
ELECTION_MS_MAX: Final = 1_000
"""Default: time-outs are drawn from 500 to 1000 ms. A transfer has no more."""
CHANGED: Final = Profile(node_count=5, is_own=True)
"""A failure leaves unexpected members behind."""
PATIENT: Final = Profile(
    node_count=5, is_own=True, settings=(("election_min_ms", "3s"),), patience_s=2.5
)
"""No node is elected while links are being cut."""
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
async def transfers(x: ScenarioContext) -> None:
    """Leadership moves from node to node under load, and once is ordered to a paused one.

    Each transfer is done, or given up, within the longest time-out of an election."""
    moved = 0
    for _ in range(6):
        old = await x.leader()
        target = x.random.choice([node for node in x.cluster.node_ids if node != old])
        x.inject("transfer", f"from {old} to {target}")
        await _transferred(x, target)
        moved += await x.leader() == target
        await x.acked(100)
    x.prove(f"leadership moved {moved} times", moved > 2)
    leader, sleeper = await x.leader(), await x.follower()
    async with x.fault("transfer", f"to node {sleeper}, which sleeps"):
        await x.do(x.cluster.pause, sleeper)
        await _transferred(x, sleeper)
        x.prove("the leader stayed", await x.leader() == leader)
        await x.acked(100)
        await x.do(x.cluster.resume, sleeper)


async def _transferred(x: ScenarioContext, target: int) -> None:
    """Ask for a transfer, and again while it is refused; demand that no append waits for longer
    than an election's time-out."""
    clients, began_ns = x.load.clients, now_ns()
    try:
        await clients.client.admin.transfer_leadership(target)
    except QuorumlogError as error:
        x.recorder.note("admin", f"transfer: {error}")
    await x.acked(50)
    bound_ms, found_ms = ELECTION_MS_MAX * x.factor, longest_pause_ms(x.recorder, began_ns)
    x.prove(f"no receipts for {found_ms:.0f} ms, at most {bound_ms:.0f}", 0 < found_ms <= bound_ms)


def longest_pause_ms(recorder: Recorder, since_ns: int) -> float:
    """Return the longest time without a receipt, from a moment up to now."""
    at_ns = [since_ns, now_ns()]
    at_ns += [
        one.return_ns
        for one in recorder.operations
        if one.kind in (Kind.APPEND, Kind.PUT)
        and one.outcome is Outcome.APPLIED
        and one.return_ns is not None
        and one.return_ns > since_ns
    ]
    at_ns.sort()
    return max(after - before for before, after in itertools.pairwise(at_ns)) / 1e6


@scenario("snapshot", "M5 M6", profile=FORGETFUL, modes=RAFT, pause_s=0.005)
async def snapshot(x: ScenarioContext) -> None:
    """A follower lacks entries that retention deletes: it gets a snapshot while leaders change."""
    client, topic = x.load.clients.client, x.load.clients.topic
    for with_kill in (False, True):
        node = await behind_retention(x, of_all=with_kill)
        batch = await client.pull(topic, LOG_QUEUES[0], 0)
        x.prove(f"offset 0 is refused: it begins at {batch.first_offset}", batch.is_out_of_range)
        before = x.cluster.local.log_path(node).stat().st_size
        await x.do(x.cluster.start, node)
        if with_kill:
            old = await x.leader()
            x.leader_lost()
            await x.kill(old, f"the leader, node {old}, while node {node} needs a snapshot")
            await x.do(x.cluster.start, old)
        await x.do(x.cluster.wait_ready)
        await x.until("a snapshot", x.says, node, before, "snapshot")
        x.prove(f"node {node} got a snapshot", True)
        await x.acked()


async def behind_retention(x: ScenarioContext, *, of_all: bool = False) -> int:
    """Kill a follower, and wait until the leader has deleted entries that it misses; return it.

    `of_all`: all others have deleted them, since any may come to lead, and each deletes on its own.
    """
    node, leader, admin = await x.follower(), await x.leader(), x.load.clients.client.admin
    others = [other for other in x.cluster.node_ids if other != node] if of_all else [leader]
    await x.kill(node)
    missed = (await admin.node_status(leader)).commit_index
    while min([(await admin.node_status(other)).first_index for other in others]) <= missed:
        await x.acked(500)
    while await _lag(x) < 500:
        await x.acked(200)
    return node


async def _lag(x: ScenarioContext) -> int:
    status = await x.load.clients.client.admin.node_status()
    return status.commit_index - min(
        member.match_index for member in status.members if member.match_index >= 0
    )


@scenario("members", "M1 M2", profile=CHANGED, modes=RAFT)
async def members(x: ScenarioContext) -> None:
    """Voters of five are removed and added again under load; the leader dies in each phase."""
    admin, by_node = x.load.clients.client.admin, await addresses(x)
    for phase in ("removal", "adding", "promotion"):
        node = await x.follower()
        await change(x, f"remove {node}", admin.remove_member, node)
        if phase == "removal":
            await _kill_leader(x)
        # Its old log and its old vote stay with it: it comes back under its old identity.
        await add(x, node, by_node[node])
        if phase == "adding":
            await _kill_leader(x)
        await promote(x, node)
        if phase == "promotion":
            await _kill_leader(x)
        await x.acked(50)
        x.prove(f"node {node} stays a voter", await is_voter(x, node))


@scenario("members-amid", "M1", profile=PATIENT, modes=RAFT)
async def members_amid(x: ScenarioContext) -> None:
    """The leader dies amid a change of voters: only it has the entry, or all have, untold to it."""
    admin, by_node = x.load.clients.client.admin, await addresses(x)
    node = await x.follower()
    for is_shared in (False, True):
        await _die_amid(x, f"remove {node}", admin.remove_member, node, is_shared=is_shared)
        if not is_shared:
            await change(x, f"remove {node}", admin.remove_member, node)
        await add(x, node, by_node[node])
        await _die_amid(x, f"promote {node}", admin.promote, node, is_shared=is_shared)
        if is_shared:
            x.prove(f"node {node} is a voter again", await is_voter(x, node))
        else:
            await promote(x, node)


async def _die_amid(
    x: ScenarioContext,
    what: str,
    call: Callable[[int], Awaitable[object]],
    node: int,
    *,
    is_shared: bool,
) -> None:
    """Kill the leader while a change, not committed, is in its log only, or in all others too."""
    await x.until_true("all others follow", _all_follow, x)
    old, term, was_voter = await x.leader(), await x.term(), await is_voter(x, node)
    others = [other for other in x.cluster.node_ids if other not in (old, node)]
    # A node to be promoted has to report first that it has all entries; with it they are two of
    # five.
    cut = [(o, old) for o in others] if is_shared else [(old, o) for o in (*others, node)]
    holders = others if is_shared else [old]
    links, lost = x.cluster.interceptor, (await x.do(x.cluster.interceptor.counts))["dropped"]
    x.leader_lost()
    # Without proxies: a node that was added again is reached by one address from everywhere.
    await x.do(links.cut, cut)
    await x.until("messages are lost", lambda: links.counts()["dropped"] > lost)
    changing = asyncio.ensure_future(call(node))
    for holder in holders:  # Their logs have it, committed or not.
        what_has = f"node {holder} has the change of node {node}"
        await x.until_true(what_has, _has_change, x, holder, node, not was_voter)
    x.inject("kill", f"the leader, node {old}, amid: {what}, which nodes {holders} have")
    x.prove(f"it dies amid: {what}", not changing.done() and await x.term() == term)
    await x.do(x.cluster.kill, old)
    await x.do(links.clear)
    with contextlib.suppress(QuorumlogError):  # Its outcome is unknown.
        await changing
    await x.new_leader(old)
    stays = "is kept" if is_shared else "is gone"
    x.prove(f"{what} {stays}", await is_voter(x, node) is (was_voter ^ is_shared))
    await x.do(x.cluster.start, old)
    await x.acked(50)


async def _all_follow(x: ScenarioContext) -> bool:
    """Whether the leader knows the match of each other member: only then it keeps sending."""
    status = await x.load.clients.client.admin.node_status()
    others = [member for member in status.members if member.node_id != status.node_id]
    return all(member.progress == "replicate" for member in others)


@scenario("members-away", "M2", profile=CHANGED, modes=RAFT)
async def members_away(x: ScenarioContext) -> None:
    """A cut-off node is removed and is harmless when it is back; then the leader is removed."""
    admin, links, by_node = x.load.clients.client.admin, x.cluster.links, await addresses(x)
    node = await x.follower()
    async with x.fault("isolate", f"node {node}, which is removed meanwhile"):
        pairs = await x.do(links.isolate, node)
        await x.linger(1.5)  # The node has begun to ask for votes.
        await change(x, f"remove {node}", admin.remove_member, node)
        before = await x.do(_candidacies, x, node)
        await x.do(links.join, pairs)
        await x.linger(3.0)
        # Others may elect on a slow machine; a removed node raises no term.
        x.prove("it never came to ask for votes", await x.do(_candidacies, x, node) == before)
    old = await x.leader()
    x.leader_lost()
    await change(x, f"remove the leader, {old}", admin.remove_member, old)
    x.prove("another leads", await x.new_leader(old) != old)
    await x.acked()
    for back in (node, old):
        await add(x, back, by_node[back])
        await promote(x, back)


def _candidacies(x: ScenarioContext, node: int) -> int:
    """Return how often a node raised its term for an election; a pre-vote raises none."""
    return x.cluster.local.log_path(node).read_text("utf-8").count('"role": "candidate"')


async def addresses(x: ScenarioContext) -> dict[int, tuple[str, str]]:
    """Return the addresses of each member, for clients and for peers."""
    status = await x.load.clients.client.admin.node_status()
    return {member.node_id: (member.address, member.peer_address) for member in status.members}


async def is_voter(x: ScenarioContext, node: int, at: int | None = None) -> bool:
    """Whether the leader, or the node `at`, has a node among its voters."""
    status = await x.load.clients.client.admin.node_status(at)
    return any(member.node_id == node and member.is_voter for member in status.members)


async def _has_change(x: ScenarioContext, at: int, node: int, is_wanted: bool) -> bool:
    return await is_voter(x, node, at) is is_wanted


async def add(x: ScenarioContext, node: int, where: tuple[str, str]) -> None:
    """Add a node as a learner, with its addresses for clients and for peers."""
    call = x.load.clients.client.admin.add_learner
    await change(x, f"add {node}", call, node, address=where[0], peer_address=where[1])


async def promote(x: ScenarioContext, node: int) -> None:
    """Promote a learner, which is a voter then."""
    await change(x, f"promote {node}", x.load.clients.client.admin.promote, node)
    x.prove(f"node {node} is a voter again", await is_voter(x, node))


async def change(
    x: ScenarioContext,
    what: str,
    call: Callable[_Arguments, Awaitable[object]],
    *given: _Arguments.args,
    **named: _Arguments.kwargs,
) -> None:
    """Change a member, again while it is refused: a leader may be new, a learner behind.

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


async def _kill_leader(x: ScenarioContext) -> None:
    old = await x.kill_leader()
    await x.new_leader(old)
    await x.do(x.cluster.start, old)
    await x.acked(50)
