"""A node that comes back on an earlier copy of its own disk, as a snapshot of a virtual machine is
(fault-matrix D18): it never votes, and what was acked is never shown as gone. The scenario
`old-backup` has copies of an earlier life."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from deploy.local_nodes import NodeState
from quorumlog.errors import InvalidRequestError, QuorumlogError
from tests.cluster.conftest import running
from tests.cluster.test_ha import ALONE, equal_logs, master_of
from tests.cluster.workload import TOPIC, History, read_all
from tests.patience import eventually, wait_for

pytestmark = pytest.mark.long


async def until(what: str, is_true: Callable[[], bool]) -> None:
    """Wait for what status calls, which block, or files say."""
    await asyncio.to_thread(wait_for, what, is_true)


class Scene:
    """A cluster, what was acked, and copies of disks."""

    def __init__(self, cluster: LocalCluster, client: quorumlog.Client, copies: Path) -> None:
        self.cluster, self.client, self._copies = cluster, client, copies
        self.history = History()

    async def send(self, count: int) -> None:
        async with self.client.producer() as producer:
            for number in range(len(self.history.acked), len(self.history.acked) + count):
                receipt = await producer.send(TOPIC, b"%08d" % number, queue_id=number % 3)
                self.history.acked.add(number)
                self.history.last_index = max(self.history.last_index, receipt.index)

    async def start(self, *node_ids: int, ready: bool = True) -> None:
        await asyncio.to_thread(self.cluster.start, *node_ids)
        if ready:
            for node_id in node_ids:
                await until(f"node {node_id}", partial(self.is_ready, node_id))

    async def stop(self, *node_ids: int) -> None:
        assert await asyncio.to_thread(self.cluster.stop, *node_ids) == []

    async def hand_over(self, node_id: int) -> None:
        """Let a node lead, in a new term if it did not; if elections allow it now."""
        with suppress(QuorumlogError):
            await self.client.admin.transfer_leadership(node_id)

    async def kill(self, node_id: int) -> None:
        await asyncio.to_thread(self.cluster.kill, node_id)

    async def caught_up(self, *node_ids: int) -> None:
        """Wait until these nodes have everything that was acked, and know it."""
        for node_id in node_ids:
            what = f"node {node_id} to catch up"
            await until(what, partial(self.has_applied, node_id, self.history.last_index))

    def is_ready(self, node_id: int) -> bool:
        return self.status(node_id).is_ready

    def is_told(self) -> bool:
        """Whether a node says that there are two histories."""
        return any("Two histories" in status.detail for status in self.cluster.status())

    def has_applied(self, node_id: int, index: int) -> bool:
        applied = self.status(node_id).applied_index
        return applied is not None and applied >= index

    def copy(self, node_id: int, name: str = "copy") -> None:
        """Keep what is on a node's disk now."""
        shutil.copytree(self.cluster.node_directory(node_id), self._copies / name)

    def restore(self, node_id: int, name: str = "copy") -> None:
        """Put it back."""
        directory = self.cluster.node_directory(node_id)
        shutil.rmtree(directory)
        shutil.copytree(self._copies / name, directory)

    def status(self, node_id: int) -> NodeState:
        """What /status of a node says."""
        return next(s for s in self.cluster.status() if s.node_id == node_id)

    async def standing(self, node_id: int, *, is_ha: bool = False) -> str:
        admin = self.client.admin
        with suppress(QuorumlogError):
            return (await (admin.ha_status if is_ha else admin.node_status)(node_id)).standing
        return ""

    async def becomes(self, node_id: int, *standings: str, is_ha: bool = False) -> None:
        async def is_so() -> bool:
            return await self.standing(node_id, is_ha=is_ha) in standings

        await eventually(is_so, f"node {node_id} to be {standings}")

    async def promote(self, node_id: int) -> None:
        """Promote a replica by hand, as often as it takes; the fence decides."""

        async def is_done() -> bool:
            with suppress(QuorumlogError):
                await self.client.admin.ha_promote(node_id, timeout_ms=2_000)
                return True
            return False

        await eventually(is_done, f"node {node_id} to be promoted")

    async def shows_all(self, node_id: int | None = None) -> None:
        """A linearizable read, or one of a node alone, shows each acked message, once."""
        numbers = await read_all(self.client, self.history, node_id)
        assert sorted(numbers) == sorted(self.history.acked)

    async def never_shows_less(self, seconds: float) -> None:
        """For a while every linearizable read fails, or shows all that was acked."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with quorumlog.connect(self.cluster.bootstrap, timeout_ms=500) as client:
            while asyncio.get_running_loop().time() < deadline:
                try:
                    numbers = await read_all(client, History(), None)
                except InvalidRequestError:  # Else this loop would prove nothing.
                    raise
                except (QuorumlogError, TimeoutError):
                    continue
                missing = self.history.acked - set(numbers)
                assert not missing, f"a linearizable read lacks {len(missing)} acked messages"

    def alive(self) -> None:
        for node_id in self.cluster.node_ids:
            assert self.cluster.is_alive(node_id), f"node {node_id} ended"


@asynccontextmanager
async def scene(directory: Path, **options: Any) -> AsyncIterator[Scene]:
    copies = directory / "copies"
    copies.mkdir()
    async with running(directory / "c", **options) as (cluster, client):
        yield Scene(cluster, client, copies)


async def copied_node(at: Scene) -> tuple[int, int, int]:
    """Copy the disk of a follower that runs; return the leader, this one and the third node."""
    await at.send(50)
    await at.caught_up(1, 2, 3)
    leader = await asyncio.to_thread(at.cluster.leader_id)
    victim, other = sorted({1, 2, 3} - {leader})
    await asyncio.to_thread(at.cluster.pause, victim)
    at.copy(victim)
    await asyncio.to_thread(at.cluster.resume, victim)
    return leader, victim, other


async def test_a_copy_of_the_current_life_beside_the_leader(tmp_path: Path) -> None:
    """What a snapshot of a running machine is: it looks like a crash. The leader knows better."""

    async with scene(tmp_path) as at:
        _, victim, other = await copied_node(at)
        await at.kill(other)
        await at.send(50)
        await at.kill(victim)
        at.restore(victim)
        await at.start(victim, ready=False)
        await at.becomes(victim, "joining")
        await at.start(other, ready=False)
        await at.becomes(other, "full")
        await at.send(10)
        await at.shows_all()
        at.alive()
        assert await at.standing(victim) == "joining"


async def test_a_copy_of_the_current_life_is_known_by_contact_with_the_leader(
    tmp_path: Path,
) -> None:
    """The leader that counted the acks is gone, and the third node was told of them."""

    async with scene(tmp_path) as at:
        leader, victim, other = await copied_node(at)
        await at.send(50)
        await at.caught_up(1, 2, 3)
        lives = at.cluster.node_directory(other) / "data"

        def remembers() -> bool:
            entry = saved(lives)["known"].get(str(victim), {})
            return int(entry.get("committed", -1)) >= at.history.last_index

        await until("the third node to remember what was acked", remembers)
        for node_id in (leader, victim, other):
            await at.kill(node_id)
        at.restore(victim)
        await at.start(victim, other, ready=False)
        await at.becomes(victim, "joining")
        await at.never_shows_less(2.0)
        await at.start(leader)
        await at.shows_all()
        at.alive()


def saved(directory: Path) -> dict[str, Any]:
    """What the newest generation of the file `lives` says."""
    newest: dict[str, Any] = {}
    generation = 0
    for path in directory.glob("lives.[01]"):
        head, _, body = path.read_bytes().partition(b"\n")
        number = int(head.split()[2])
        if number > generation:
            generation, newest = number, json.loads(body)
    return newest


@pytest.mark.parametrize("in_one_term", [True, False])
async def test_a_copy_of_which_nobody_left_knows(tmp_path: Path, in_one_term: bool) -> None:
    """Two nodes, one of them an old copy, go on without what the third one has acked. It cannot be
    seen then; when the third one is back it keeps its log, stays up and says what it is. Also if
    the old copy, which voted before, elects the leader of the other history in that very term.

    On a slow machine elections may come out otherwise than `in_one_term` says; what must hold is
    the same."""

    async with scene(tmp_path) as at:
        await at.send(50)
        await at.caught_up(1, 2, 3)
        await at.hand_over(3)
        await at.stop(2)
        at.copy(2)
        await at.kill(3)
        await at.start(2)
        if not in_one_term:
            for node_id in (1, 2, 1):
                await at.hand_over(node_id)
        await at.send(50)
        await at.caught_up(1, 2)
        own = at.cluster.node_directory(1) / "data"
        wanted = at.history.last_index
        await until("node 1 to note it", lambda: saved(own)["committed"] >= wanted)
        await at.kill(1)
        await at.kill(2)
        at.restore(2)
        # First, so that it mostly is the one to lead, and still is when 2 votes no more.
        await at.start(3, ready=False)
        await until("node 3 to campaign", lambda: at.status(3).role == "pre_candidate")
        await at.start(2, 3)
        other = Scene(at.cluster, at.client, tmp_path)
        await other.send(5)
        await keeps_all_and_reports_it(at)
        assert not at.is_ready(1)
        await at.becomes(2, "joining", "diverged")
        await at.never_shows_less(2.0)
        await at.stop(1)
        assert not list(own.glob("dump-*"))
        await keeps_all_and_reports_it(at)


async def keeps_all_and_reports_it(at: Scene) -> None:
    """Start node 1, of whose log nothing is cut."""
    await at.start(1, ready=False)
    await until("a node to report it", at.is_told)
    at.alive()
    await at.shows_all(1)


async def test_an_old_master_is_no_master(tmp_path: Path) -> None:
    """It comes back from before the epoch of another one (H11). In the scenario `old-backup` slaves
    do."""
    options: dict[str, Any] = {"replication": "sync_master", "settings": {**ALONE}}
    async with scene(tmp_path, **options) as at:
        master = (await master_of(at.client)).node_id
        other = master % 3 + 1
        await at.send(30)
        await equal_logs(at.cluster, at.client)
        await at.stop(master)
        at.copy(master)
        await at.start(master, ready=False)
        await at.promote(master)
        await at.send(30)
        await at.kill(master)
        at.restore(master)
        await at.start(master, ready=False)
        await at.becomes(master, "joining", is_ha=True)
        with pytest.raises(QuorumlogError):
            await at.client.admin.ha_promote(master, timeout_ms=2_000)
        await at.promote(other)
        await at.shows_all()
        await at.becomes(master, "full", is_ha=True)
        at.alive()
