"""Files that are damaged, lost, old or somebody else's while their node is down (fault-matrix 3.3).

Owns the damage. What it may touch is the directory of a node that does not run.
"""

import shutil
from pathlib import Path
from typing import Final

from chaos.ends import EXIT_BAD_DATA
from chaos.profile import Profile
from chaos.scenario import HA, RAFT, Context, scenario
from chaos.scenarios.membership import CHANGED, addresses, change, is_voter
from chaos.scenarios.process import ROLLING, restart

FIVE_SMALL: Final = Profile(node_count=5, settings=ROLLING.settings)
_LEVEL_SIZE_BYTES: Final = 128 << 10
"""Of the newest file: its first half is behind everything that is under way."""


def _log_files(data: Path) -> list[Path]:
    return sorted(p for p in data.glob("dledger-*/data/*") if p.name.isdecimal())


def _flip(path: Path, places: list[int]) -> None:
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))


@scenario("bit-flips", "D5 D7", modes=RAFT)
async def bit_flips(x: Context) -> None:
    """Bits of a follower's log are flipped while it is down: found, refetched, never cut."""
    node = await x.follower()
    # The file that is being written: it alone is walked when the node starts. What is flipped in
    # an older one is found when it is read.
    while (await x.do(_newest, x, node))[1] < 128 << 10:
        await x.acked(200)
    await x.do(x.cluster.kill, node)
    x.inject("kill", f"node {node}")
    path, written = await x.do(_newest, x, node)
    places = sorted(x.random.sample(range(written // 2), 5))
    x.inject("flip", f"{len(places)} bits of node {node}, at {places}", count=len(places))
    await x.do(_flip, path, places)
    await x.acked()
    await restart(x, node)
    log = x.cluster.local.log_path(node)
    await x.until("it repairs itself", lambda: "repaired" in log.read_text("utf-8"))
    x.prove("the damage was repaired", True)


def _newest(x: Context, node: int) -> tuple[Path, int]:
    """The last log file with something in it, and how much that is."""
    sizes = [(path, _written_size(path)) for path in _log_files(x.cluster.data_directory(node))]
    return max((found for found in sizes if found[1]), default=sizes[0])


def _written_size(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


@scenario("derived-files", "D8")
async def derived_files(x: Context) -> None:
    """Queues and key index of a follower are damaged or lost while it is down: rebuilt."""
    node = await x.follower()
    await x.do(x.cluster.kill, node)
    x.inject("kill", f"node {node}")
    data = x.cluster.data_directory(node)
    queues = [path for path in (data / "consumequeue").rglob("0*") if path.is_file()]
    chosen = x.random.sample(queues, min(4, len(queues)))
    for at, path in enumerate(chosen):
        if at % 2:
            await x.do(path.unlink)
        else:
            await x.do(_flip, path, [3, 25])
    await x.do(shutil.rmtree, data / "index", ignore_errors=True)
    x.inject("damage", f"{len(chosen)} queue files and the index of node {node}", count=5)
    await x.do((data / "checkpoint").unlink, missing_ok=True)
    x.inject("lose", f"the checkpoint of node {node}")
    await restart(x, node)
    await x.acked()
    x.prove("files were damaged", len(chosen) > 1)


@scenario("lost-file", "D9", profile=ROLLING, modes=RAFT)
async def lost_file(x: Context) -> None:
    """A log file of a follower is lost, another one is zeroed in the middle: both come back."""
    await x.acked(3_000)
    node = await x.follower()
    await x.do(x.cluster.kill, node)
    x.inject("kill", f"node {node}")
    files = [path for path in _log_files(x.cluster.data_directory(node)) if _written_size(path)]
    assert len(files) > 2, f"the log has grown to {files} only"
    lost, zeroed = files[0], files[1]
    good = lost.read_bytes(), zeroed.read_bytes()
    await x.do(lost.unlink)
    await x.do(_zero, zeroed, 8192, 4096)
    x.inject("lose", f"{lost.name} of node {node}")
    x.inject("zero", f"a page of {zeroed.name} of node {node}")
    await x.acked()
    await restart(x, node)
    await x.until("it repairs itself", lambda: (lost.exists() and lost.read_bytes()) == good[0])
    x.prove("both files are as they were", zeroed.read_bytes() == good[1])


def _zero(path: Path, at: int, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size_bytes))


@scenario("bit-flips-two", "D6", profile=FIVE_SMALL, modes=RAFT)
async def bit_flips_two(x: Context) -> None:
    """Two of five have flipped bits at once: in different records, then in the same one."""
    for is_same in (False, True):
        leader = await x.leader()
        nodes = x.random.sample([node for node in x.cluster.node_ids if node != leader], 2)
        name, written = await _kill_level(x, nodes)
        for at, node in enumerate(nodes):
            half = written // 4
            place = half // 2 if is_same else x.random.randrange(at * half, (at + 1) * half)
            x.inject("flip", f"a bit at {place} of {name}, node {node}")
            path = next(p for p in _log_files(x.cluster.data_directory(node)) if p.name == name)
            await x.do(_flip, path, [place])
        await x.acked()
        before = [x.cluster.local.log_path(node).stat().st_size for node in nodes]
        await restart(x, *nodes)
        for node, size_bytes in zip(nodes, before, strict=True):
            await x.until(f"node {node} repairs itself", _says, x, node, size_bytes, "repaired")
            x.prove(f"node {node} repaired itself", True)


async def _kill_level(x: Context, nodes: list[int]) -> tuple[str, int]:
    """Kill nodes at a moment when all of them write one file; return it, and how much all have.

    It alone is walked when they start. A node that is behind, as one is after its repair, would
    choose a file that another one has closed long ago, whose damage is found when it is read.
    """
    newest: list[tuple[Path, int]] = []

    def are_level() -> bool:
        for node in nodes:
            x.cluster.pause(node)
        newest[:] = [_newest(x, node) for node in nodes]
        is_one = len({path.name for path, _ in newest}) == 1
        if is_one and min(written for _, written in newest) >= _LEVEL_SIZE_BYTES:
            return True
        for node in nodes:
            x.cluster.resume(node)
        return False

    await x.until(f"nodes {nodes} write one file", are_level)
    for node in nodes:
        await x.do(x.cluster.kill, node)
        x.inject("kill", f"node {node}")
    return newest[0][0].name, min(written for _, written in newest)


def _says(x: Context, node: int, lo: int, words: str) -> bool:
    """Whether a node's log has these words from a byte on."""
    return words.encode() in x.cluster.local.log_path(node).read_bytes()[lo:]


@scenario("misplaced-bytes", "D9 D5", profile=ROLLING, modes=RAFT)
async def misplaced_bytes(x: Context) -> None:
    """A follower's log has an old copy of a sector, a write that landed elsewhere, a short file."""
    await x.acked(2_000)
    node = await x.follower()
    log = x.cluster.local.log_path(node)
    for what in ("an old sector", "a write that landed elsewhere", "a short file"):
        await x.do(x.cluster.kill, node)
        x.inject("kill", f"node {node}")
        path, written = await x.do(_newest, x, node)
        good = await x.do(path.read_bytes)
        to = written // 2 // 512 * 512
        if what == "a short file":
            with path.open("r+b") as file:
                file.truncate(to)
        else:
            size_bytes = 512 if what == "an old sector" else 3_000
            with path.open("r+b") as file:
                file.seek(to)
                file.write(good[:size_bytes])
        x.inject("misplace", f"{what}, {path.name} of node {node}")
        await x.acked()
        before = log.stat().st_size
        await x.do(x.cluster.start, node)
        await x.until("it repairs itself", _says, x, node, before, "repaired")
        x.prove(f"{what} was repaired", True)
        await x.do(x.cluster.wait_ready)


@scenario("lost-vote", "D10", modes=RAFT)
async def lost_vote(x: Context) -> None:
    """Term and vote of a follower are lost, then torn, then half of them old: it does not start."""
    node = await x.follower()
    await x.acked()
    data = x.cluster.data_directory(node)
    for what in ("lost", "torn", "one of them lost"):
        await x.do(x.cluster.kill, node)
        x.inject("kill", f"node {node}")
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
        code = await x.do(x.cluster.wait_ended, node, EXIT_BAD_DATA)
        x.prove(f"with term and vote {what} node {node} ended with {code}", True)
        await x.acked(50)
        for path, good in metas.items():
            await x.do(path.write_bytes, good)
        await restart(x, node)


@scenario("wiped-disk", "D18", profile=CHANGED, modes=RAFT)
async def wiped_disk(x: Context) -> None:
    """A voter comes up with an empty disk: it counts for nothing until it is a new member."""
    node, admin, where = await x.follower(), x.load.clients.client.admin, await addresses(x)
    await _wipe(x, node)
    await x.acked(200)
    # It may have voted before, and nobody knows for whom.
    await x.until("it is up", x.cluster.is_up, node)
    standing = ""
    while standing != "joining":
        standing = (await admin.node_status(node)).standing
    x.prove("with an empty disk it is joining", True)
    await change(x, f"remove {node}", admin.remove_member, node)
    address, peer_address = where[node]
    await change(
        x, f"add {node}", admin.add_learner, node, address=address, peer_address=peer_address
    )
    await change(x, f"promote {node}", admin.promote, node)
    x.prove("it is a voter again, as one that is new", await is_voter(x, node))


@scenario("wiped-slave", "H11", modes=HA)
async def wiped_slave(x: Context) -> None:
    """A slave comes up with an empty disk: it counts for nothing until it has all of the log."""
    node = await x.follower()
    await _wipe(x, node)
    await x.acked(200)
    await x.until("all of it is there", _has_level, x, node)
    x.prove("it got everything again", True)


@scenario("damaged-slave", "D5 D9 D10", profile=ROLLING, modes=HA)
async def damaged_slave(x: Context) -> None:
    """A slave has lost a log file, then what it is bound to: it ends, and begins anew."""
    await x.acked(2_000)
    node = await x.follower()
    data = x.cluster.data_directory(node)
    for what in ("a log file", "its binding"):
        await x.do(x.cluster.kill, node)
        x.inject("kill", f"node {node}")
        if what == "a log file":
            files = sorted(path for path in (data / "commitlog").iterdir() if path.is_file())
            await x.do(files[len(files) // 2].unlink)
        else:
            for path in data.glob("haBinding.*"):
                await x.do(path.unlink)
        x.inject("lose", f"{what}, node {node}")
        await x.do(x.cluster.start, node)
        code = await x.do(x.cluster.wait_ended, node, EXIT_BAD_DATA)
        x.prove(f"without {what} node {node} ended with {code}", True)
        await x.do(shutil.rmtree, data)
        await x.do(data.mkdir)
        x.inject("wipe", f"node {node}")
        await x.do(x.cluster.start, node)
        await x.acked(100)
        await x.until("all of it is there", _has_level, x, node)


async def _wipe(x: Context, node: int) -> None:
    """Give a node an empty disk, and start it."""
    await x.do(x.cluster.kill, node)
    x.inject("kill", f"node {node}")
    data = x.cluster.data_directory(node)
    await x.do(shutil.rmtree, data)
    await x.do(data.mkdir)
    x.inject("wipe", f"node {node}")
    await x.do(x.cluster.start, node)


def _has_level(x: Context, node: int) -> bool:
    states = x.cluster.status()
    found, wanted = states[node].applied_index, x.load.clients.last_index
    return states[node].is_ready and found is not None and found >= wanted


@scenario("old-backup", "D18", modes=RAFT)
async def old_backup(x: Context) -> None:
    """Nobody's directory may be another's: a node with a copy of another one's does not start."""
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
    code = await x.do(x.cluster.wait_ended, node, EXIT_BAD_DATA)
    x.prove(f"node {node} refused the directory of another with {code}", True)
    await x.acked()
    await x.do(shutil.rmtree, data)
    await x.do(aside.rename, data)
    await restart(x, node)
    await x.acked()
