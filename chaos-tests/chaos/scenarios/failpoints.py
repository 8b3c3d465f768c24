"""Nodes that die at a named step of their work (fault-matrix P2, P7).

Owns the list of steps that are passed under load, by the words of row P2 and by mode. Each is hit
in each run of its scenario: the node is started with the point armed, and its death proves that the
point was passed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.ends import EXIT_BROKEN, KILLED
from chaos.errors import NotSoError
from chaos.losses import reported
from chaos.profile import ClusterMode
from chaos.scenario import RAFT, ScenarioContext, scenario
from chaos.scenarios.master_slave import lose_by_lagging
from chaos.scenarios.membership import (
    CHANGED,
    FORGETFUL,
    addresses,
    behind_retention,
    change,
    is_voter,
)
from chaos.scenarios.process import ROLLING
from chaos.strikes import gives_lead
from quorumlog.errors import QuorumlogError
from store.files.staging import staged_path

CALLS: Final = (
    "fs.sync", "fs.rename", "fs.open", "fs.allocate", "fs.write", "fs.unlink", "fs.sync_directory",
    "fs.map",
)  # fmt: skip
"""Writes and syncs of every kind, by any caller."""
PASSES: Final[Mapping[str, tuple[int, int]]] = {
    "fs.sync": (20, 60), "fs.sync_directory": (4, 16), "peer_connection.before_send": (20, 200),
    "peer_connection.after_send": (20, 200), "sync_requests.before_durable": (20, 200),
    "state_machine.before_apply": (20, 200), "state_machine.after_apply": (20, 200),
    "ha_driver.before_send": (20, 200), "ha_driver.after_send": (20, 200),
    "ha_driver.before_apply": (2, 50), "ha_driver.after_apply": (2, 50),
}  # fmt: skip
"""Range of the pass that kills, for points passed at once and often; a log makes few names."""
STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "sync": ("flush.after_sync", "flush.before_tell"),
    "dispatch": ("dispatch.before_queues", "consume_queue.write", "dispatch.before_index",
                 "dispatch.before_mark"),
    "truncate": ("mapped_file.truncate",),
    "roll": ("mapped_file_queue.roll",),
    "seal": ("mapped_file_queue.seal",),
    "snapshot write": ("state_checkpoint.before_manifest",),
    "snapshot rename": ("state_checkpoint.before_rename",),
    "meta replace": ("meta_file.before_rename", "meta_file.after_rename", "durable_mark.write"),
}  # fmt: skip
"""Steps of every mode."""
STEPS_OF_RAFT: Final[Mapping[str, tuple[str, ...]]] = {
    "write": ("ledger.before_append", "ledger.after_append"),
    "send": ("peer_connection.before_send", "peer_connection.after_send"),
    "commit": ("sync_requests.before_durable",),
    "apply": ("state_machine.before_apply", "state_machine.after_apply"),
}
STEPS_OF_LEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "commit": ("callers.before_answer", "callers.after_answer"),
}
STEPS_OF_HA: Final[Mapping[str, tuple[str, ...]]] = {
    "send": ("ha_driver.before_send", "ha_driver.after_send"),
    "commit": ("ha_driver.before_confirm",),
    "apply": ("ha_driver.before_apply", "ha_driver.after_apply"),
}
STEPS_OF_SLAVES: Final[Mapping[str, tuple[str, ...]]] = {
    "write": ("shipped_log.before_append", "shipped_log.after_append"),
}
STEPS_OF_MASTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "commit": ("ha_driver.before_decide",),
}
LOG_CUT: Final = "mapped_file_queue.delete"
STEPS_OF_SNAPSHOTS: Final[Mapping[str, tuple[str, ...]]] = {
    "snapshot rename": ("snapshot.before_stage", "snapshot.staged"),
    "snapshot install": ("replica_store.before_reset", "ledger.before_reset",
                         "snapshot.before_installed", "snapshot.installed"),
    "log cut": (LOG_CUT,),
}  # fmt: skip
"""Steps in the order in which one installation passes them."""
STEPS_OF_CUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "truncate": ("replica_store.before_cut", "ledger.before_cut",
                 "ledger.after_cut"),
}  # fmt: skip
STEPS_OF_LOSSES: Final[Mapping[str, tuple[str, ...]]] = {
    "truncate": ("cut_file.before_rename", "shipped_store.before_queues",
                 "shipped_store.before_cut"),
}  # fmt: skip
"""Steps in the order in which an old master passes them as it cuts entries that only it had."""
STEPS_OF_CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "membership phases": (
        "log_configurations.noted", "admin.before_change", "admin.after_change",
        "log_configurations.before_note", "admin.after_change", "log_configurations.noted",
    ),
}  # fmt: skip
"""Steps of removal, adding and promotion, twice. Each is one entry (raft/rules/membership.py):
requested, noted with its future index, written, sent."""


def _points(*steps: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [point for one in steps for points in one.values() for point in points]


async def _die_at(x: ScenarioContext, node: int, point: str, nth: int) -> None:
    """Start a node that does not run, wait until it has died at a point, start it again."""
    x.inject("failpoint", f"{point} at pass {nth}, node {node}")
    await x.do(x.cluster.start, node, failpoints=f"{point}=kill@{nth}")
    await x.ended(node, KILLED, f"node {node} died at {point}")


@scenario("kill-at-failpoints", "P2", profile=ROLLING)
async def kill_at_failpoints(x: ScenarioContext) -> None:
    """A node dies at each named step of keeping the log and the files derived from it."""
    await _die_at_each(x, _points(STEPS))


@scenario("kill-in-turns", "P2", profile=ROLLING)
async def kill_in_turns(x: ScenarioContext) -> None:
    """A node dies at each named step of a turn: write, send, commit, apply, answer."""
    is_raft = x.options.mode is ClusterMode.RAFT
    await _die_at_each(x, _points(STEPS_OF_RAFT if is_raft else STEPS_OF_HA))
    if not is_raft:
        await _die_at_each(x, _points(STEPS_OF_SLAVES), is_slave=True)
    for point in _points(STEPS_OF_LEADERS if is_raft else STEPS_OF_MASTERS):
        await _die_leading(x, point)


@scenario("kill-at-calls", "P2", profile=ROLLING)
async def kill_at_calls(x: ScenarioContext) -> None:
    """A node dies as it calls the file system, at each kind of call once."""
    await _die_at_each(x, CALLS)


async def _die_at_each(
    x: ScenarioContext, points: Sequence[str], *, is_slave: bool = False
) -> None:
    """Let nodes die at all points, several in a row on one node, from each death into the next."""
    drawn = x.random.sample(points, len(points))
    for at in range(0, len(drawn), _DEATHS_OF_ONE):
        victim = await x.follower() if is_slave else x.random.choice(x.cluster.node_ids)
        await x.do(x.cluster.stop, victim)
        for point in drawn[at : at + _DEATHS_OF_ONE]:
            if point == "fs.unlink":
                await x.do(_leave_over, x, victim)
            await _die_at(x, victim, point, x.random.randrange(*PASSES.get(point, (1, 2))))
            await x.acked(50)
        await x.restart(victim)


_DEATHS_OF_ONE: Final = 4


async def _armed_leader(x: ScenarioContext, node: int, point: str) -> None:
    """Make a node lead that was started with a point armed; it may die as soon as it leads."""
    await x.do(x.cluster.stop, node)
    await x.do(x.cluster.start, node, failpoints=point)
    await x.until(f"node {node} is up", x.cluster.is_up, node)
    x.cluster.may_end(node, KILLED)
    x.leader_lost()

    async def leads_or_died() -> bool:
        return not x.cluster.local.is_alive(node) or await gives_lead(x, node)

    await x.until_true(f"node {node} comes to lead", leads_or_died)


async def _die_leading(x: ScenarioContext, point: str) -> None:
    """Let a node die at a step that only a leader passes."""
    victim = await x.follower()
    x.inject("failpoint", f"{point}, node {victim}, which leads")
    await _armed_leader(x, victim, f"{point}=kill@1")
    await x.ended(victim, KILLED, f"node {victim} died at {point}")
    await x.acked(50)
    await x.restart(victim)


def _leave_over(x: ScenarioContext, node: int) -> None:
    """Leave a file as a crash leaves it that was being made: the node deletes it at the start.

    A node that stopped well may have no file to delete until retention runs.
    """
    data = x.cluster.data_directory(node)
    is_raft = x.options.mode is ClusterMode.RAFT
    directory = next(data.glob("dledger-*/data")) if is_raft else data / "commitlog"
    newest = max(path for path in directory.iterdir() if path.name.isdecimal())
    half = Path(staged_path(str(directory), newest.name))
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(bytes(4096))


@scenario("kill-in-snapshots", "P2 M5", profile=FORGETFUL, modes=RAFT, pause_s=0.005)
async def kill_in_snapshots(x: ScenarioContext) -> None:
    """A follower dies at each step of the installation of one snapshot, and then has it whole.

    A node dies as it cuts the beginning of its log."""
    victim = x.random.choice(x.cluster.node_ids)
    await x.do(x.cluster.stop, victim)
    await _die_at(x, victim, LOG_CUT, 1)
    await x.restart(victim)
    await x.acked(50)
    node = await behind_retention(x)
    for point in _points(STEPS_OF_SNAPSHOTS):
        if point != LOG_CUT:
            await _die_at(x, node, point, 1)
    await x.acked(50)
    await x.restart(node)


@scenario("kill-in-changes", "P2 M1", profile=CHANGED, modes=RAFT)
async def kill_in_changes(x: ScenarioContext) -> None:
    """The leader dies at each phase of a change of members: it is done or not, and can be done."""
    admin, by_node = x.load.clients.client.admin, await addresses(x)
    points = iter(_points(STEPS_OF_CHANGES))
    for _ in range(2):
        node = await x.follower()

        # The dead leader may have done it: a client that asks again is only told of a refusal.
        async def remove(node: int = node) -> None:
            if node in await addresses(x):
                await admin.remove_member(node)

        async def add(node: int = node, where: tuple[str, str] = by_node[node]) -> None:
            if node not in await addresses(x):
                await admin.add_learner(node, address=where[0], peer_address=where[1])

        async def promote_it(node: int = node) -> None:
            if not await is_voter(x, node):
                await admin.promote(node)

        for what, call in (("remove", remove), ("add", add), ("promote", promote_it)):
            await _die_changing(x, f"{what} {node}", call, node, next(points))
        x.prove(f"node {node} is a voter again", await is_voter(x, node))


async def _die_changing(
    x: ScenarioContext, what: str, call: Callable[[], Awaitable[None]], node: int, point: str
) -> None:
    """Let the leader die at a step of a change; complete the change afterwards."""
    leader = await x.leader()
    victim = x.random.choice([n for n in x.cluster.node_ids if n not in (node, leader)])
    await _armed_leader(x, victim, f"{point}=kill@1")
    x.inject("failpoint", f"{point}, node {victim}, amid: {what}")
    changing = asyncio.ensure_future(change(x, what, call))
    await x.ended(victim, KILLED, f"node {victim} died at {point} amid: {what}")
    await changing
    await x.acked(50)
    # A node that is no member, or a learner, is not ready.
    await x.do(x.cluster.start, victim)
    await x.until(f"node {victim} is up", x.cluster.is_up, victim)


@scenario("kill-in-cuts", "P2 N1", modes=RAFT)
async def kill_in_cuts(x: ScenarioContext) -> None:
    """An old leader dies while it cuts off uncommitted entries, and cuts them the next time."""
    links, admin = x.cluster.links, x.load.clients.client.admin
    for point in _points(STEPS_OF_CUTS):
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
            # The old leader still takes messages from clients, which no other node has.
            pairs = await x.do(links.isolate, victim)
            await x.new_leader(victim)
            await x.do(links.join, pairs)
        x.inject("failpoint", f"{point}, node {victim}")
        await x.ended(victim, KILLED, f"node {victim} died at {point}")
        await x.restart(victim)
        await x.acked(50)


@scenario("kill-in-losses", "P2 H6", modes=frozenset({ClusterMode.ASYNC_MASTER}))
async def kill_in_losses(x: ScenarioContext) -> None:
    """An old master dies at each step of setting aside and cutting entries that only it had."""
    before = set(await reported(x.load.clients.client))
    master = await lose_by_lagging(x)
    for point in _points(STEPS_OF_LOSSES):
        await _die_at(x, master, point, 1)
    await x.restart(master)
    await x.acked(50)
    losses = set(await reported(x.load.clients.client)) - before
    x.prove(f"{len(losses)} losses are reported", losses)


@scenario("assertion", "P7", profile=ROLLING, modes=RAFT)
async def assertion(x: ScenarioContext) -> None:
    """An assertion fails in a follower, then in the leader: 70, a dump, and the others go on."""
    for victim in (await x.follower(), await x.leader()):
        await x.do(x.cluster.stop, victim)
        x.inject("assertion", f"node {victim}")
        # No step between a roll and its entry can fail: the node relies on that.
        await x.do(x.cluster.start, victim, failpoints="ledger.before_append=EIO@30")
        await x.ended(victim, EXIT_BROKEN, f"node {victim} ended with 70")
        dumps = x.cluster.data_directory(victim).glob("dump-*")
        x.prove(f"node {victim} left a dump", any(dumps))
        await x.acked(50)
        await x.restart(victim)
