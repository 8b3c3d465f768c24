"""What goes wrong in a master-slave group of whole nodes, drawn from a seed.

Kills, power losses, cut links, promotions at once, hostile advice, slow syncs and full disks. Owns
how the group fails and how it is whole again; must not know clients or what was promised to them.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from random import Random
from typing import Any

from node.errors.common import NodeError
from node.errors.ha import PromotionLostError, PromotionRefusedError, PromotionTimeoutError
from store.errors import FileSystemError, StoreFullError
from store.files.file_system import FileSystem
from tests.node.replication.ha.ha_nodes import HaNodes, WholeHaNode
from tests.store.power_loss import PowerLossFileSystem

HEAL_S = 60.0
"""Room for five promotions in vain, 46.5 s: each is given twice the patience of the last one."""
FIRST_PATIENCE_MS = 1500
NotPromoted = (PromotionLostError, PromotionRefusedError, PromotionTimeoutError, NodeError)


class Machine(PowerLossFileSystem):
    """The disk of one machine: it may be slow, full, or without power."""

    def __init__(self) -> None:
        super().__init__(self._before_call)
        self.is_full, self.pause_s = False, 0.0
        self._loop_thread = threading.current_thread()

    def _before_call(self, name: str) -> None:
        if name == "sync" and threading.current_thread() is not self._loop_thread:
            threading.Event().wait(self.pause_s)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create and self.is_full:
            raise StoreFullError(path, 1, 0)
        return super().open(path, create=create, read_only=read_only)

    def write_at(self, fd: int, path: str, position: int, data: bytes | memoryview) -> None:
        if self.is_full and position + len(data) > os.fstat(fd).st_size:
            raise StoreFullError(path, len(data), 0)
        super().write_at(fd, path, position, data)

    def allocate(self, fd: int, path: str, size_bytes: int, position: int = 0) -> None:
        if self.is_full:
            raise FileSystemError("allocate", path, errno.ENOSPC)
        super().allocate(fd, path, size_bytes, position)


class RandomGroup(HaNodes):
    """A group whose machines fail."""

    def __init__(self, root: Path, seed: int, replication: str) -> None:
        super().__init__(root, 3, replication, 2)
        self.random = Random(seed)
        self.machines: dict[int, Machine] = {}
        self._life = 0

    def file_system(self, node_id: int) -> FileSystem:
        return self.machines.setdefault(node_id, Machine())

    @property
    def up(self) -> list[WholeHaNode]:
        return [node for node in self.nodes.values() if node.is_up]

    async def restart(self, node_id: int, **changes: Any) -> WholeHaNode:
        self.machines[node_id].is_full = False  # On a full disk it would not start.
        return await super().restart(node_id, **changes)

    async def lose_power(self, node: WholeHaNode) -> None:
        """What was not synced may be there or not."""
        node_id, root = node.settings.node_id, node.settings.directory
        self._life += 1
        image = root.with_name(f"image{self._life}")
        self.machines[node_id].build_image(str(root), str(image), self.random)
        await node.crash()
        shutil.rmtree(root)
        image.rename(root)
        (root / "boot_id").write_text("of before\n")
        machine = self.machines[node_id] = Machine()
        machine.adopt(str(root))


class Faults:
    """What goes wrong, drawn from the seed."""

    def __init__(self, world: RandomGroup) -> None:
        self.world, self.random = world, world.random
        self.names = ("crash", "power", "power", "cut", "promote", "advise", "slow", "full", "full")
        self.counts = dict.fromkeys(self.names, 0)
        self._promotions: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        loop, random = asyncio.get_running_loop(), self.random
        end = loop.time() + seconds
        while loop.time() < end:
            self.world.check_alive()
            await asyncio.sleep(random.random() * 0.15)
            name = random.choice(self.names)
            self.counts[name] += 1
            await getattr(self, f"_{name}")()
            if random.random() < 0.4:
                self._mend()
            if not self.world.masters() and random.random() < 0.7:
                await self._promote()
        await self.heal()

    def _mend(self) -> None:
        self.world.heal()
        for machine in self.world.machines.values():
            machine.is_full, machine.pause_s = False, 0.0

    async def heal(self) -> None:
        self._mend()
        for node_id, node in self.world.nodes.items():
            if not node.is_up:
                await self.world.restart(node_id)
        for task in list(self._promotions):
            task.cancel()
        await asyncio.gather(*self._promotions, return_exceptions=True)
        try:
            async with asyncio.timeout(HEAL_S):
                await self._promote_any()
        except TimeoutError:
            raise AssertionError(f"no master: {[trouble_of(n) for n in self.world.up]}") from None
        # A number that was offered to two keeps one of them out until there is a higher one.
        highest = max(node.driver.term for node in self.world.up)
        (master,) = [node for node in self.world.up if node.is_master][-1:]
        master.driver.advise(highest + 1, master.settings.node_id, 1)

    async def _promote_any(self) -> None:
        """Promote one after the other until one serves.

        Each takes away what the one before was promised, so on a slow machine all would displace
        each other for ever if none got longer than the one before."""
        patience_ms = FIRST_PATIENCE_MS
        while not any(node.is_master for node in self.world.up):
            self.world.check_alive()
            try:
                await self.random.choice(self.world.up).driver.promote(patience_ms)
            except PromotionTimeoutError:
                patience_ms *= 2
            except NotPromoted:
                await asyncio.sleep(0)  # It may have been refused at once; others need the loop.

    async def _restart_some(self) -> None:
        await asyncio.sleep(self.random.random() * 0.2)
        for node_id, node in self.world.nodes.items():
            if not node.is_up and self.random.random() < 0.8:
                await self.world.restart(node_id)

    def _victims(self) -> list[WholeHaNode]:
        up = self.world.up
        return self.random.sample(up, min(len(up), self.random.choice((1, 1, 1, 2, 3))))

    async def _crash(self) -> None:
        for node in self._victims():
            await node.crash()
        await self._restart_some()

    async def _power(self) -> None:
        for node in self._victims():
            await self.world.lose_power(node)
        await self._restart_some()

    async def _cut(self) -> None:
        if self.random.random() < 0.5:
            self.world.isolate(self.random.choice((1, 2, 3)))
        else:
            for gate in self.random.sample(list(self.world.gates.values()), 2):
                gate.shut()

    async def _promote(self) -> None:
        """One, or two at the same time."""
        for node in self.random.sample(self.world.up, min(len(self.world.up), 2)):
            task = asyncio.ensure_future(self._promote_one(node))
            self._promotions.add(task)
            task.add_done_callback(self._promotions.discard)
            if self.random.random() < 0.6:
                return

    async def _promote_one(self, node: WholeHaNode) -> None:
        with contextlib.suppress(*NotPromoted):
            await node.driver.promote(500)

    async def _advise(self) -> None:
        """Old, equal and high numbers, one of them to several, also with one nonce."""
        number = max((node.driver.term for node in self.world.up), default=1)
        number += self.random.choice((-1, 0, 1, 1, 1, 5))
        for node in self._victims():
            node.driver.advise(number, node.settings.node_id, self.random.randrange(2))

    async def _slow(self) -> None:
        self.world.machines[self.random.choice((1, 2, 3))].pause_s = 0.05

    async def _full(self) -> None:
        """Mostly when masters change, which then cannot be written down."""
        self.world.machines[self.random.choice((1, 2, 3))].is_full = True
        if self.random.random() < 0.7:
            await self._promote()


def trouble_of(node: WholeHaNode) -> str:
    """Say all that may keep a node from becoming master."""
    driver, lost = node.driver, node.lives.lost
    full = f"disk {driver.save_error or driver._apply_error}, lives {lost or node.lives.warnings()}"
    return f"{driver.report()}, {driver.promotion._why_not_promote() or 'may be promoted'}, {full}"
