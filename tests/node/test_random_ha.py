"""Three whole nodes of a master-slave group under random faults: what was promised is checked.

Kills, power losses, cut links, promotions at once, hostile advice, slow syncs and full disks, while
idempotent producers send again until they are answered and readers follow every replica. In sync
mode nothing acked is lost or doubled and nothing read goes away; in async mode what is lost is a
suffix of its epoch and is reported. A failing run prints its seed; real sockets are not
deterministic, but the faults are drawn from it.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.errors import DuplicateExpiredError, NodeError, OutOfSequenceError, UnknownProducerError
from node.ha.errors import PromotionLostError, PromotionRefusedError, PromotionTimeoutError
from node.ha.types import HaError
from node.state import COMMAND_TOPIC
from node.state_image import encode_image
from quorumlog.pb import common_pb2
from quorumlog.pb.log_pb2 import (
    PULL_STATUS_FOUND,
    AppendRequest,
    AppendResponse,
    PullRequest,
    QueueOffsetsRequest,
)
from quorumlog.pb.state_pb2 import Command
from raft.errors import RaftError
from store import format as fmt
from store.errors import FileSystemError, Outcome, StoreError, StoreFullError
from store.file_system import FileSystem
from store.message import Message, encode_message
from tests.node.ha.ha_nodes import HaNodes, WholeHaNode
from tests.node.links import eventually, run
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import messages

TOPIC, QUEUES = "orders", 3
FILE = 1 << 16
FAULTS_S = 2.0
Refused = (NodeError, StoreError, RaftError, HaError)
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

    def allocate(self, fd: int, path: str, size_bytes: int) -> None:
        if self.is_full:
            raise FileSystemError("allocate", path, errno.ENOSPC)
        super().allocate(fd, path, size_bytes)


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


class History:
    """What clients sent, were told and saw."""

    def __init__(self, *, is_sync: bool) -> None:
        self.is_sync = is_sync
        self.attempted: set[bytes] = set()
        self.acked: dict[bytes, tuple[int, int, int, int]] = {}
        """Queue, offset, epoch, end of the batch."""
        self.seen: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.acked_hi = dict.fromkeys(range(QUEUES), 0)
        self.counts: dict[str, int] = defaultdict(int)

    def see(self, queue_id: int, data: bytes, offset: int) -> int:
        for message in messages(data):
            assert message.queue_offset == offset, f"{message.queue_offset}, expected {offset}"
            assert message.body in self.attempted, f"nobody sent {message.body!r}"
            found = message.body, message.position
            if self.is_sync:
                before = self.seen.setdefault((queue_id, offset), found)
                assert before == found, f"{queue_id}/{offset} was {before}, is {found}"
            offset += 1
            self.counts["read"] += 1
        return offset


class Clients:
    """Producers and readers."""

    def __init__(self, world: RandomGroup, history: History) -> None:
        self.world, self.history = world, history
        self.random = Random(world.random.random())
        self.is_over = False
        self._next_producer_id = 1

    def _broker(self) -> Any:
        ready = [node for node in self.world.up if node.driver.is_ready]
        nodes = ready if ready and self.random.random() < 0.9 else self.world.up
        return self.random.choice(nodes).broker if nodes else None

    async def produce(self) -> None:
        """Send batches, several at a time, each until it is acked; begin anew if forgotten."""
        while not self.is_over:
            producer_id = self._next_producer_id
            self._next_producer_id += 1
            await self._produce_as(producer_id)

    async def _produce_as(self, producer_id: int) -> None:
        first, sent = 0, {}
        while not self.is_over:
            hi = first + self.random.randrange(1, 6)
            while first < hi:
                broker = self._broker()
                if broker is None:
                    await asyncio.sleep(0.01)
                    continue
                futures = []
                for sequence in range(first, hi):
                    if sequence not in sent:
                        sent[sequence] = self._batch(producer_id, sequence)
                    queue_id, bodies, records = sent[sequence]
                    request = AppendRequest(
                        records=records,
                        record_count=len(bodies),
                        producer_id=producer_id,
                        sequence=sequence,
                        timeout_ms=self.random.choice((50, 300, 1000)),
                    )
                    futures.append((queue_id, bodies, broker.append_nowait(request)))
                answers = [await self._answered(*one) for one in futures]
                if answers[0] is None and not self.history.is_sync:
                    return  # What came before is lost, and this producer with it.
                done = next((n for n, ok in enumerate(answers) if not ok), len(answers))
                first += done
                if done < len(answers):
                    await asyncio.sleep(self.random.random() * 0.03)
            await asyncio.sleep(self.random.random() * 0.01)

    def _batch(self, producer_id: int, sequence: int) -> tuple[int, list[bytes], bytes]:
        queue_id, count = self.random.randrange(QUEUES), self.random.randrange(1, 5)
        bodies = [b"%d:%d:%d" % (producer_id, sequence, n) for n in range(count)]
        self.history.attempted.update(bodies)
        pad = "." * self.random.choice((1, 10, 400, 2000))
        records = b"".join(
            encode_message(TOPIC, queue_id, body, {"KEYS": "k", "P": pad}) for body in bodies
        )
        return queue_id, bodies, records

    async def _answered(
        self, queue_id: int, bodies: list[bytes], future: "asyncio.Future[AppendResponse]"
    ) -> bool | None:
        """Say whether a batch is acked; None: what it follows is not known."""
        history = self.history
        try:
            receipt = await future
        except DuplicateExpiredError as error:
            raise AssertionError("nothing expires here") from error
        except (OutOfSequenceError, UnknownProducerError):
            return None
        except Refused as error:
            history.counts["unknown"] += getattr(error, "outcome", None) is Outcome.UNKNOWN
            return False
        (queue,) = receipt.queues
        assert (queue.topic, queue.queue_id, queue.count) == (TOPIC, queue_id, len(bodies))
        history.counts["duplicate"] += receipt.is_duplicate
        for offset, body in enumerate(bodies, queue.first_offset):
            where = queue_id, offset, receipt.term, receipt.index + 1
            before = history.acked.get(body, where)
            # In async mode it may have been lost meanwhile, and was sent again.
            assert before == where or not history.is_sync, f"{body!r} acked at {before}, {where}"
            history.acked[body] = where
        hi = queue.first_offset + queue.count
        history.acked_hi[queue_id] = max(history.acked_hi[queue_id], hi)
        return True

    async def read(self, node_id: int, queue_id: int) -> None:
        """Follow one queue on one replica, also through its crashes; sometimes begin again."""
        offset = 0
        while not self.is_over:
            await asyncio.sleep(0.01)
            node = self.world.nodes[node_id]
            if not node.is_up:
                continue
            asked = PullRequest(topic=TOPIC, queue_id=queue_id, offset=offset, max_count=50)
            asked.consistency = common_pb2.CONSISTENCY_LOCAL
            with contextlib.suppress(*Refused):
                answer = await node.broker.pull(asked)
                if answer.status == PULL_STATUS_FOUND:
                    offset = self.history.see(queue_id, answer.records, offset)
            if self.random.random() < 0.02 or not self.history.is_sync:
                offset = 0

    async def read_latest(self) -> None:
        """Ask for the ends of the queues: at least what was acked before."""
        queues = [common_pb2.QueueId(topic=TOPIC, queue_id=n) for n in range(QUEUES)]
        while not self.is_over:
            await asyncio.sleep(0.02)
            broker, acked_hi = self._broker(), dict(self.history.acked_hi)
            if broker is None:
                continue
            request = QueueOffsetsRequest(
                queues=queues, consistency=common_pb2.CONSISTENCY_LINEARIZABLE
            )
            with contextlib.suppress(*Refused):
                response = await broker.queue_offsets(request)
                self.history.counts["latest"] += 1
                for row in response.queues:
                    if self.history.is_sync:
                        assert row.max_offset >= acked_hi[row.queue_id], (
                            f"{row}, {acked_hi}, {[n.driver.report() for n in self.world.up]}"
                        )


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
        async with asyncio.timeout(15):
            while not any(node.is_master for node in self.world.up):
                self.world.check_alive()
                with contextlib.suppress(*NotPromoted):
                    await self.random.choice(self.world.up).driver.promote(1500)
        # A number that was offered to two keeps one of them out until there is a higher one.
        highest = max(node.driver.term for node in self.world.up)
        (master,) = [node for node in self.world.up if node.is_master][-1:]
        master.driver.advise(highest + 1, master.settings.node_id, 1)

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


def log_of(node: WholeHaNode) -> bytes:
    log, at = node.log, 0
    data = b""
    while at < log.end:
        file = log.store.log.files.file_at(at)
        hi = min(file.end_position, log.end)
        data += file.read(at, hi - at)
        at = hi
    return data


def messages_of(data: bytes) -> list[Message]:
    """All records of a log, in order, without the blanks."""
    found: list[Message] = []
    for lo in range(0, len(data), FILE):
        part = data[lo : lo + FILE]
        blank = part.find(fmt.MAGIC_BLANK.to_bytes(4, "big", signed=fmt.MAGIC_BLANK < 0))
        found += messages(part if blank < 0 else part[: blank - 4])
    return found


def is_whole(log: list[Message], at: int) -> bool:
    """Whether the command that ends a batch follows the records of the one at a place."""
    producer_id, sequence, number = map(int, log[at].body.split(b":"))
    for message in log[at + 1 :]:
        if message.topic == COMMAND_TOPIC:
            batch = Command.FromString(message.body).producer_batch
            return (batch.producer_id, batch.sequence) == (producer_id, sequence)
        number += 1
        if message.body != b"%d:%d:%d" % (producer_id, sequence, number):
            return False
    return False


def check(world: RandomGroup, history: History) -> str:
    """All replicas hold one log; what was acked is in it once, or was lost as it is allowed."""
    nodes = list(world.nodes.values())
    assert len({log_of(node) for node in nodes}) == 1, "the replicas differ"
    images = {encode_image(node.state.image()._replace(refused_count=0)) for node in nodes}
    assert len(images) == 1, "the states differ"
    log = messages_of(log_of(nodes[0]))
    places_in_log = defaultdict(list)
    for at, message in enumerate(log):
        places_in_log[message.body].append(at)
    places: dict[bytes, tuple[int, int]] = {}
    bodies: dict[tuple[int, int], bytes] = {}
    for node in nodes:
        found: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(QUEUES):
            offset, hi = node.log.store.queue_range(TOPIC, queue_id)
            while offset < hi:
                pulled = node.log.store.pull(TOPIC, queue_id, offset, max_count=500)
                for message in messages(pulled.data):
                    where = queue_id, message.queue_offset
                    before = found.setdefault(message.body, where)
                    bodies[where] = message.body
                    if before != where:
                        # Only where a power loss left the first part of a batch, which stays in
                        # front of the whole one (docs/guarantees.md).
                        first = places_in_log[message.body][0]
                        assert not is_whole(log, first), f"{message.body!r} at {before}, {where}"
                        found[message.body] = where
                        history.counts["half"] += 1
                offset = history.see(queue_id, pulled.data, offset)
        places = found
    missing: dict[int, list[int]] = defaultdict(list)
    kept: dict[int, int] = defaultdict(int)
    losses = [loss for node in nodes for loss in node.losses.losses]
    for body, (queue_id, offset, term, end) in history.acked.items():
        if body in places and places[body] == (queue_id, offset):
            kept[term] = max(kept[term], end)
            continue
        assert not history.is_sync, f"{body!r} was acked and is not there, or elsewhere"
        assert body not in places, f"{body!r} is at {places[body]}, acked at {queue_id}/{offset}"
        missing[term].append(end)
        assert any(x.lo < end <= x.hi for x in losses), f"{body!r}, to {end}, nobody reported"
    for term, ends in missing.items():
        assert min(ends) > kept[term], f"epoch {term}: {min(ends)} lost, {kept[term]} kept"
    for where, (body, _) in history.seen.items():
        assert bodies.get(where) == body, f"{body!r} was read at {where} and is gone"
    return f"missing={sum(map(len, missing.values()))} losses={len(losses)}"


async def attempt(root: Path, seed: int, replication: str, seconds: float = FAULTS_S) -> str:
    """One run; return what happened in it."""
    world = RandomGroup(root, seed, replication)
    history = History(is_sync=replication == "sync_master")
    clients, faults = Clients(world, history), Faults(world)
    try:
        master = await world.start()
        await master.create_topic()
        await world.settled()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(clients.produce())
            for node_id in world.nodes:
                for queue_id in range(QUEUES):
                    tasks.create_task(clients.read(node_id, queue_id))
            tasks.create_task(clients.read_latest())
            await faults.run(seconds)
            acked_count = len(history.acked)
            await eventually(lambda: len(history.acked) > acked_count, "appends after healing")
            clients.is_over = True
        await world.settled()
        found = check(world, history)
        world.check_alive()
    finally:
        await world.stop()
    return f"{faults.counts} acked={len(history.acked)} {dict(history.counts)} {found}"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "replication"), [(1, "sync_master"), (2, "async_master")])
def test_what_was_promised_holds_under_random_faults(
    tmp_path: Path, seed: int, replication: str
) -> None:
    async def work() -> None:
        print(f"seed {seed}, {replication}:", await attempt(tmp_path, seed, replication))

    run(work())
