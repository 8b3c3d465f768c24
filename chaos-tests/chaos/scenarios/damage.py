"""Damaged, lost, old or foreign files of a node that is down (fault-matrix 3.3).

Owns the damage, which touches only the directory of a node that does not run.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.ends import EXIT_BAD_DATA
from chaos.log_files import durable_mark, end_position, flip_bits, log_files, newest, written_size
from chaos.profile import ClusterMode, Profile
from chaos.receipts import Moment
from chaos.recorder import now_ns
from chaos.scenario import HA, RAFT, ScenarioContext, scenario
from chaos.scenarios.membership import add, addresses, change, promote
from chaos.scenarios.process import ROLLING

OWN: Final = Profile(is_own=True)
FIVE_SMALL: Final = Profile(node_count=5, settings=ROLLING.settings)
_TAIL_SIZE_BYTES: Final = 200
"""Less than one entry: the last sync covered it."""
WITHOUT_S: Final = 5.0
"""Duration of several elections."""
_LEVEL_SIZE_BYTES: Final = 128 << 10
"""Size of the newest file at which its first half is behind all pending entries."""


@scenario("bit-flips", "D5", modes=RAFT)
async def bit_flips(x: ScenarioContext) -> None:
    """Bits of a follower's log are flipped while it is down: found, refetched, never cut."""
    node = await x.follower()
    # The file that is being written: only this file is walked when the node starts. Damage in an
    # older one is found when it is read.
    while (await x.do(newest, x.cluster.data_directory(node)))[1] < 128 << 10:
        await x.acked(200)
    await x.kill(node)
    path, written = await x.do(newest, x.cluster.data_directory(node))
    places = sorted(x.random.sample(range(written // 2), 5))
    x.inject("flip", f"{len(places)} bits of node {node}, at {places}", count=len(places))
    await x.do(flip_bits, path, places, x.random)
    await x.acked()
    await _repair(x, node)


@scenario("tail-flips", "D7", modes=RAFT)
async def tail_flips(x: ScenarioContext) -> None:
    """The synced end of a follower's log is damaged, and the only other node with it is away.

    This end is neither cut off nor voted away, and is repaired when that node is back."""
    leader = await x.leader()
    behind, victim = x.random.sample([n for n in x.cluster.node_ids if n != leader], 2)
    await x.kill(behind, f"node {behind}, which misses what follows")
    data = x.cluster.data_directory(victim)
    while (await x.do(newest, data))[1] < _LEVEL_SIZE_BYTES:
        await x.acked(200)
    await x.acked(100)
    term = await x.term()
    for node in (leader, victim):
        await x.kill(node)
    dead_ns, end = now_ns(), await x.do(end_position, x.cluster.data_directory(leader))
    mark = await x.do(durable_mark, data)
    path = max(one for one in log_files(data) if int(one.name) < mark.durable_position)
    lo, hi = int(path.name), mark.durable_position
    assert hi - lo > _TAIL_SIZE_BYTES, f"the mark {hi} is at the beginning of {path}"
    places = x.random.sample(range(hi - lo - _TAIL_SIZE_BYTES, hi - lo), 3)
    x.inject("flip", f"{places} of {path.name} of node {victim}, durable to {hi}", count=3)
    await x.do(flip_bits, path, places, x.random)
    damaged = path.read_bytes()[: hi - lo]
    await x.do(x.cluster.start, behind, victim)
    await x.until(f"node {victim} says what it found", x.says, victim, 0, "damage")
    await x.linger(WITHOUT_S)
    states = await x.do(x.cluster.status)
    x.prove("no node leads", not any(state.role == "leader" for state in states.values()))
    x.none_acked("without the node that has the end", Moment(dead_ns, term, end))
    x.prove("nothing is cut off or changed", path.read_bytes()[: hi - lo] == damaged)
    durable = await x.do(durable_mark, data)
    x.prove(f"the mark is {durable.durable_position}", durable.durable_position >= hi)
    before = x.cluster.local.log_path(victim).stat().st_size
    await x.do(x.cluster.start, leader)
    await x.until(f"node {victim} repairs itself", x.says, victim, before, "repaired")
    x.prove(f"node {victim} repaired itself", True)
    await x.do(x.cluster.wait_ready)
    await x.acked()


@scenario("lost-file", "D9", profile=ROLLING, modes=RAFT)
async def lost_file(x: ScenarioContext) -> None:
    """A log file of a follower is lost, another one is zeroed in the middle: both come back."""
    await x.acked(3_000)
    node = await x.follower()
    await x.kill(node)
    files = [path for path in log_files(x.cluster.data_directory(node)) if written_size(path)]
    assert len(files) > 2, f"the log has grown to {files} only"
    lost, zeroed = files[0], files[1]
    good = lost.read_bytes(), zeroed.read_bytes()
    await x.do(lost.unlink)
    await x.do(_write_at, zeroed, 8192, bytes(4096))
    x.inject("lose", f"{lost.name} of node {node}")
    x.inject("zero", f"a page of {zeroed.name} of node {node}")
    await x.acked()
    await x.restart(node)
    await x.until("it repairs itself", lambda: (lost.exists() and lost.read_bytes()) == good[0])
    x.prove("both files are as they were", zeroed.read_bytes() == good[1])


def _write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@scenario("bit-flips-two", "D6", profile=FIVE_SMALL, modes=RAFT)
async def bit_flips_two(x: ScenarioContext) -> None:
    """Two of five have flipped bits at once: in different records, then in the same one."""
    for is_same in (False, True):
        leader = await x.leader()
        nodes = x.random.sample([node for node in x.cluster.node_ids if node != leader], 2)
        name, written = await _kill_level(x, nodes)
        for at, node in enumerate(nodes):
            half = written // 4
            place = half // 2 if is_same else x.random.randrange(at * half, (at + 1) * half)
            x.inject("flip", f"a bit at {place} of {name}, node {node}")
            path = next(p for p in log_files(x.cluster.data_directory(node)) if p.name == name)
            # The same bit of the same byte: two equal copies are no majority either.
            await x.do(flip_bits, path, [place], Random(place))
        await x.acked()
        await _repair(x, *nodes)


async def _repair(x: ScenarioContext, *nodes: int) -> None:
    """Start damaged nodes, and demand that each repairs itself."""
    before = [x.cluster.local.log_path(node).stat().st_size for node in nodes]
    await x.restart(*nodes)
    for node, size_bytes in zip(nodes, before, strict=True):
        await x.until(f"node {node} repairs itself", x.says, node, size_bytes, "repaired")
        x.prove(f"node {node} repaired itself", True)


async def _kill_level(x: ScenarioContext, nodes: list[int]) -> tuple[str, int]:
    """Kill nodes while all of them write one file; return it, and the size that all have.

    Only this file is walked when they start. A lagging node, as one is after its repair, would
    choose a file that another one has closed long ago, whose damage is found when it is read.
    """
    files: list[tuple[Path, int]] = []

    def are_level() -> bool:
        for node in nodes:
            x.cluster.pause(node)
        files[:] = [newest(x.cluster.data_directory(node)) for node in nodes]
        is_one = len({path.name for path, _ in files}) == 1
        if is_one and min(written for _, written in files) >= _LEVEL_SIZE_BYTES:
            return True
        for node in nodes:
            x.cluster.resume(node)
        return False

    await x.until(f"nodes {nodes} write one file", are_level)
    for node in nodes:
        await x.kill(node)
    return files[0][0].name, min(written for _, written in files)


@scenario("misplaced-bytes", "D9 D5", profile=ROLLING, modes=RAFT)
async def misplaced_bytes(x: ScenarioContext) -> None:
    """A follower's log has an old copy of a sector, a write that landed elsewhere, a short file."""
    await x.acked(2_000)
    node = await x.follower()
    for what in ("an old sector", "a write that landed elsewhere", "a short file"):
        await x.kill(node)
        path, written = await x.do(newest, x.cluster.data_directory(node))
        good = await x.do(path.read_bytes)
        to = written // 2 // 512 * 512
        if what == "a short file":
            os.truncate(path, to)
        else:
            size_bytes = 512 if what == "an old sector" else 3_000
            await x.do(_write_at, path, to, good[:size_bytes])
        x.inject("misplace", f"{what}, {path.name} of node {node}")
        await x.acked()
        await _repair(x, node)


@scenario("lost-vote", "D10", modes=RAFT)
async def lost_vote(x: ScenarioContext) -> None:
    """Term and vote of a follower are lost, then torn, then half of them old: it does not start."""
    node = await x.follower()
    await x.acked()
    data = x.cluster.data_directory(node)
    for what in ("lost", "torn", "one of them lost"):
        await x.kill(node)
        metas = {path: path.read_bytes() for path in (data / "raft.0", data / "raft.1")}
        newest = max(metas, key=lambda path: int(metas[path].split()[2]))
        if what == "lost":
            for path in metas:
                await x.do(path.unlink)
        elif what == "torn":
            await x.do(newest.write_bytes, metas[newest][: len(metas[newest]) // 2])
        else:
            await x.do(newest.unlink)
        x.inject("meta", f"{what}, node {node}")
        await x.do(x.cluster.start, node)
        await x.ended(node, EXIT_BAD_DATA, f"with term and vote {what} node {node} ended")
        await x.acked(50)
        for path, good in metas.items():
            await x.do(path.write_bytes, good)
        await x.restart(node)


@scenario("wiped-disk", "D18", profile=OWN, modes=RAFT)
async def wiped_disk(x: ScenarioContext) -> None:
    """A voter comes up with an empty disk: it counts for nothing until it is a new member.

    The only other nodes are one that missed entries, and one that is down."""
    leader = await x.leader()
    behind, victim = x.random.sample([n for n in x.cluster.node_ids if n != leader], 2)

    def wipe(data: Path) -> None:
        shutil.rmtree(data)
        data.mkdir()

    where = await addresses(x)
    await forget(x, leader, behind, victim, wipe)
    await _begin_anew(x, victim, where)


@scenario("wiped-slave", "H11", modes=HA)
async def wiped_slave(x: ScenarioContext) -> None:
    """A slave comes up with an empty disk: it counts for nothing until it has all of the log."""
    node = await x.follower()
    await x.kill(node)
    await _start_empty(x, node)
    await x.acked(200)
    await x.until("all of it is there", _has_level, x, node)
    x.prove("it got everything again", True)


@scenario("damaged-slave", "D5 D9 D10", profile=ROLLING, modes=HA)
async def damaged_slave(x: ScenarioContext) -> None:
    """A slave has lost a log file, then its binding: it ends, and starts again empty."""
    await x.acked(2_000)
    node = await x.follower()
    data = x.cluster.data_directory(node)
    for what in ("a log file", "its binding"):
        await x.kill(node)
        if what == "a log file":
            files = sorted(path for path in (data / "commitlog").iterdir() if path.is_file())
            await x.do(files[len(files) // 2].unlink)
        else:
            for path in data.glob("haBinding.*"):
                await x.do(path.unlink)
        x.inject("lose", f"{what}, node {node}")
        await x.do(x.cluster.start, node)
        await x.ended(node, EXIT_BAD_DATA, f"without {what} node {node} ended")
        await _start_empty(x, node)
        await x.acked(100)
        await x.until("all of it is there", _has_level, x, node)


async def _start_empty(x: ScenarioContext, node: int) -> None:
    """Give a dead node an empty disk, and start it."""
    data = x.cluster.data_directory(node)
    await x.do(shutil.rmtree, data)
    await x.do(data.mkdir)
    x.inject("wipe", f"node {node}")
    await x.do(x.cluster.start, node)


def _has_level(x: ScenarioContext, node: int) -> bool:
    states = x.cluster.status()
    applied, wanted = states[node].applied_index, x.load.clients.last_index
    return states[node].is_ready and applied is not None and applied >= wanted


@scenario("cloned-disk", "D18", modes=RAFT)
async def cloned_disk(x: ScenarioContext) -> None:
    """No node may use the directory of another: a node with a copy of one does not start."""
    leader = await x.leader()
    node, other = [found for found in x.cluster.node_ids if found != leader]
    await x.do(x.cluster.stop, node)
    await x.do(x.cluster.stop, other)
    data = x.cluster.data_directory(node)
    aside = data.with_name("data-aside")
    await x.do(data.rename, aside)
    await x.do(shutil.copytree, x.cluster.data_directory(other), data)
    x.inject("clone", f"node {node} has the directory of node {other}")
    await x.do(x.cluster.start, other, node)
    await x.ended(node, EXIT_BAD_DATA, f"node {node} refused the directory of another")
    await x.acked()
    await x.do(shutil.rmtree, data)
    await x.do(aside.rename, data)
    await x.restart(node)
    await x.acked()


@scenario(
    "old-backup",
    "D18 H11",
    profile=OWN,
    modes=frozenset({ClusterMode.RAFT, ClusterMode.SYNC_MASTER}),
)
async def old_backup(x: ScenarioContext) -> None:
    """A node comes up on its own earlier backup: it is never counted for entries that it lost.

    The only other nodes that could know are one that missed these entries, and one that is down."""
    leader = await x.leader()
    behind, victim = x.random.sample([n for n in x.cluster.node_ids if n != leader], 2)
    data, is_raft = x.cluster.data_directory(victim), x.options.mode is ClusterMode.RAFT
    where = await addresses(x) if is_raft else {}
    backup = data.with_name("data-backup")
    await x.do(x.cluster.stop, victim)
    await x.do(shutil.copytree, data, backup)
    await x.restart(victim)
    # A life that the node behind never met is beyond what any rule can see (docs/decisions/0034).
    met = f"node {behind} remembers this life of node {victim}"
    await x.until(met, _has_met, x, behind, victim)
    await x.acked(50)

    def put_back(data: Path) -> None:
        shutil.rmtree(data)
        backup.rename(data)

    await forget(x, leader, behind, victim, put_back)
    if is_raft:
        await _begin_anew(x, victim, where)
    await x.do(x.cluster.wait_ready)
    await x.until("all of it is there", _has_level, x, victim)


async def forget(
    x: ScenarioContext, leader: int, behind: int, victim: int, change: Callable[[Path], object]
) -> None:
    """Let a voter come back with a changed directory, after acks that only the leader has as well.

    Demand that nothing goes on while the leader is down, and that all goes on once it is back."""
    await x.kill(behind, f"node {behind}, which misses what follows")
    await x.acked(300)
    term = await x.term()
    for node in (leader, victim):
        await x.kill(node)
    dead_ns, reads = now_ns(), x.load.clients.read_count
    await x.do(change, x.cluster.data_directory(victim))
    x.inject("forget", f"node {victim} has another directory than it had")
    await x.do(x.cluster.start, behind, victim)
    await x.until("both are up", lambda: all(map(x.cluster.is_up, (behind, victim))))
    await x.linger(WITHOUT_S)
    states = await x.do(x.cluster.status)
    x.prove("no node leads", not any(state.role == "leader" for state in states.values()))
    x.none_acked("without the node that knows", Moment(dead_ns, term))
    x.prove("no linearizable read is answered", x.load.clients.read_count == reads)
    await x.do(x.cluster.start, leader)
    # A master's fence needs the one that has everything, and takes its log before it serves: in
    # master-slave mode the node behind may lead as well.
    able = {leader} if x.options.mode is ClusterMode.RAFT else {leader, behind}
    await x.until("a node that has everything leads", lambda: x.cluster.leader() in able)
    x.prove("no node died of it", all(map(x.cluster.local.is_alive, x.cluster.node_ids)))
    await x.acked(200)


def _lives(x: ScenarioContext, node: int) -> dict[str, Any]:
    """Return the newest content of a node's file `lives`. Only reads: the node may be running."""
    files = x.cluster.data_directory(node).glob("lives.[01]")
    parts = [path.read_text("ascii").split("\n", 1) for path in files]
    _, newest = max(parts, key=lambda part: int(part[0].split()[2]))
    lives: dict[str, Any] = json.loads(newest)
    return lives


def _has_met(x: ScenarioContext, node: int, other: int) -> bool:
    """Whether a node remembers, on its disk, the life in which another one is now."""
    view = _lives(x, node)["known"].get(str(other), {"life": 0})
    return bool(view["life"] == _lives(x, other)["life"])


async def _joins(x: ScenarioContext, node: int) -> bool:
    """Whether a node reports that it has no memory with which it could be counted."""
    return (await x.load.clients.client.admin.node_status(node)).standing == "joining"


async def _begin_anew(x: ScenarioContext, node: int, where: dict[int, tuple[str, str]]) -> None:
    """Make a node that is known to have lost memory count again, as a new member."""
    await x.until_true(f"node {node} is joining", _joins, x, node)
    await change(x, f"remove {node}", x.load.clients.client.admin.remove_member, node)
    await add(x, node, where[node])
    await promote(x, node)
    # The others alone are no quorum without it, and its memory outlives a crash.
    leader = await x.leader()
    away = next(n for n in x.cluster.node_ids if n not in (node, leader))
    for victim in (away, node):
        await x.kill(victim)
        await x.acked()
        await x.restart(victim)
    x.prove(f"node {node} counts", True)
