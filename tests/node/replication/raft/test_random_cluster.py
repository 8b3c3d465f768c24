"""Three whole nodes under random faults: what was promised to clients, checked at the end.

Crashes, lost frames, one-way cuts, hand-overs, retention and the snapshots that follow from it,
while producers send again until they are answered, readers follow every replica, and a consumer
stores offsets (fault-matrix I7, I8, I10 to I13). A failing run prints its seed; real sockets and
files are not deterministic, but the faults are drawn from it.
"""

import asyncio
import contextlib
import itertools
from pathlib import Path
from random import Random

import pytest

from node.broker import Broker
from node.errors.common import DuplicateExpiredError, NodeError, UnknownProducerError
from node.state.image import encode_image
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, FetchOffsetsRequest, GroupOffset
from quorumlog.pb.log_pb2 import (
    PULL_STATUS_FOUND,
    PULL_STATUS_OFFSET_TOO_SMALL,
    AppendRequest,
    AppendResponse,
    PullRequest,
    QueueOffsetsRequest,
)
from raft.errors import RaftError
from raft.transitions import Role
from store.errors import Outcome, StoreError
from store.record.message import encode_message
from tests import seeds
from tests.node.ledger_cluster import CLUSTER
from tests.node.whole_nodes import WholeNode, WholeNodes
from tests.patience import eventually
from tests.store.records import PAGE, messages, small_config

THIS = "tests/node/replication/raft/test_random_cluster.py"
TOPIC, QUEUES = "orders", 3
FAULTS_S = 4.0
Refused = (NodeError, StoreError, RaftError)
Where = tuple[int, int]
"""Queue id, offset."""


class History:
    """What clients sent, were told and saw."""

    def __init__(self) -> None:
        self.attempted: set[bytes] = set()
        self.refused: dict[bytes, str] = {}
        """Bodies of which every attempt was answered "not applied"."""
        self.acked: dict[bytes, Where] = {}
        self.expired: set[bytes] = set()
        """Acked long ago, says the broker, so that it cannot tell where."""
        self.seen: dict[Where, tuple[bytes, int]] = {}
        """Body and position, on any replica at any time."""
        self.acked_hi = dict.fromkeys(range(QUEUES), 0)
        """By queue: the end of what was acked."""
        self.duplicate_count = self.unknown_count = self.read_count = self.commit_count = 0

    def see(self, queue_id: int, data: bytes, offset: int) -> int:
        """Note what a reader got from `offset` on; return where it goes on."""
        for message in messages(data):
            assert message.queue_offset == offset, f"{message.queue_offset}, expected {offset}"
            assert message.body in self.attempted, f"nobody sent {message.body!r}"
            content = message.body, message.position
            before = self.seen.setdefault((queue_id, offset), content)
            assert before == content, f"{queue_id}/{offset} was {before}, is {content}"
            offset += 1
            self.read_count += 1
        return offset

    def check(self) -> None:
        """Every acked record was read where its receipt says, and nothing is there twice."""
        places: dict[bytes, Where] = {}
        for where, (body, _) in self.seen.items():
            assert body not in places, f"{body!r} is at {places[body]} and at {where}"
            places[body] = where
        for body, where in self.acked.items():
            assert where in self.seen, f"{body!r} acked at {where}, and nobody could read it"
            assert self.seen[where][0] == body, f"{body!r} acked at {where}: {self.seen[where]}"
            assert places[body] == where, f"{body!r} at {places[body]}, acked at {where}"
        assert not (gone := self.expired - places.keys()), f"acked, and nobody could read {gone}"

    def read_whole(self, node: WholeNode) -> None:
        """Read all that a node has: what is deleted afterwards has been read."""
        store = node.log.store
        for queue_id in range(QUEUES):
            offset, hi = store.reads.queue_range(TOPIC, queue_id)
            while offset < hi:
                response = store.reads.pull(TOPIC, queue_id, offset, max_count=500)
                assert response.record_count, f"nothing at {queue_id}/{offset}: {response.status}"
                offset = self.see(queue_id, response.data, offset)


class Clients:
    """Producers, readers and a consumer."""

    def __init__(self, world: WholeNodes) -> None:
        self.world, self.random, self.history = world, Random(world.seed * 7 + 1), History()
        self.is_over = False
        """No new batches are begun."""

    def broker(self) -> Broker | None:
        """Mostly the leader's; sometimes that of a node that was the leader or never is."""
        up = self.world.up
        ready = [node for node in up if node.driver.is_ready]
        nodes = ready if ready and self.random.random() < 0.9 else up
        return self.random.choice(nodes).broker if nodes else None

    # --- Producing ---

    async def produce(self, producer_id: int) -> None:
        """Send batches, several at a time, each until it is acked."""
        first, random = 0, Random(self.world.seed * 1000 + producer_id)
        sizes: dict[int, tuple[int, int]] = {}
        while not self.is_over:
            count = random.randrange(1, 6)
            hi = first + count
            while first < hi:
                first += await self._send(producer_id, range(first, hi), sizes, random)
            await asyncio.sleep(random.random() * 0.01)

    async def _send(
        self, producer_id: int, sequences: range, sizes: dict[int, tuple[int, int]], random: Random
    ) -> int:
        """Send batches in order to one node; return how many of them are done."""
        broker = self.broker()
        if broker is None:
            await asyncio.sleep(0.01)
            return 0
        requests = []
        for sequence in sequences:
            count, queue_id = sizes.setdefault(
                sequence, (random.randrange(1, 5), random.randrange(QUEUES))
            )
            bodies = [b"%d:%d:%d" % (producer_id, sequence, n) for n in range(count)]
            self.history.attempted.update(bodies)
            pad = b"." * random.choice((0, 10, 400))
            records = b"".join(
                encode_message(TOPIC, queue_id, body, {"KEYS": "k", "P": pad.decode() + "p"})
                for body in bodies
            )
            request = AppendRequest(
                cluster_id=CLUSTER,
                records=records,
                record_count=count,
                producer_id=producer_id,
                sequence=sequence,
                timeout_ms=random.choice((30, 300, 1000)),
            )
            requests.append((queue_id, bodies, broker.append_nowait(request)))
        done = 0
        is_whole = True
        for queue_id, bodies, future in requests:
            is_whole = await self._answered(queue_id, bodies, future) and is_whole
            done += is_whole
        if not is_whole:
            await asyncio.sleep(random.random() * 0.02)
        return done

    async def _answered(
        self, queue_id: int, bodies: list[bytes], future: "asyncio.Future[AppendResponse]"
    ) -> bool:
        history = self.history
        try:
            receipt = await future
        except DuplicateExpiredError:  # It was acked, and its files are gone.
            history.expired.update(bodies)
            return True
        except UnknownProducerError as error:
            raise AssertionError("a producer was forgotten") from error
        except Refused as error:
            history.unknown_count += getattr(error, "outcome", None) is Outcome.UNKNOWN
            return False
        (queue,) = receipt.queues
        assert (queue.topic, queue.queue_id, queue.count) == (TOPIC, queue_id, len(bodies))
        history.duplicate_count += receipt.is_duplicate
        for offset, body in enumerate(bodies, queue.first_offset):
            where = queue_id, offset
            assert history.acked.setdefault(body, where) == where, f"{body!r} acked twice"
        history.acked_hi[queue_id] = max(
            history.acked_hi[queue_id], queue.first_offset + queue.count
        )
        return True

    async def maintain(self, node: WholeNode) -> None:
        """Do the maintenance of a node all the time."""
        while not self.is_over:
            await asyncio.sleep(self.random.random() * 0.05)
            await node.maintain()

    # --- Reading ---

    async def read_replica(self, node: WholeNode, queue_id: int) -> None:
        """Follow one queue on one replica, also through its crashes; sometimes begin again."""
        offset = 0
        while not self.is_over:
            await asyncio.sleep(0.005)
            if not node.is_up:
                continue
            offset = await self._read_some(node, queue_id, offset)
            if self.random.random() < 0.01:
                offset = 0

    async def _read_some(self, node: WholeNode, queue_id: int, offset: int) -> int:
        request = PullRequest(
            cluster_id=CLUSTER,
            topic=TOPIC,
            queue_id=queue_id,
            offset=offset,
            max_count=self.random.choice((1, 7, 1000)),
            consistency=common_pb2.CONSISTENCY_LOCAL,
            wait_ms=self.random.choice((0, 50)),
        )
        try:
            response = await node.broker.pull(request)
        except Refused:
            return offset
        if response.status == PULL_STATUS_OFFSET_TOO_SMALL:
            return max(offset, response.min_offset)
        if response.status == PULL_STATUS_FOUND:
            assert self.history.see(queue_id, response.records, offset) == response.next_offset
            return response.next_offset
        return offset

    async def read_latest(self) -> None:
        """Ask for the ends of the queues: at least what was acked before."""
        queues = [common_pb2.QueueId(topic=TOPIC, queue_id=n) for n in range(QUEUES)]
        while not self.is_over:
            await asyncio.sleep(0.01)
            broker, acked_hi = self.broker(), dict(self.history.acked_hi)
            if broker is None:
                continue
            request = QueueOffsetsRequest(
                queues=queues, consistency=common_pb2.CONSISTENCY_LINEARIZABLE
            )
            with contextlib.suppress(*Refused):
                response = await broker.queries.queue_offsets(request)
                for row in response.queues:
                    assert row.max_offset >= acked_hi[row.queue_id], f"stale: {row}, {acked_hi}"

    async def consume(self) -> None:
        """Store growing offsets, and find the newest acked one, or one that was tried since."""
        acked = -1
        for offset in itertools.count():
            if self.is_over:
                return
            await asyncio.sleep(0.01)
            broker = self.broker()
            if broker is None:
                continue
            row = GroupOffset(topic=TOPIC, queue_id=0, offset=offset)
            with contextlib.suppress(*Refused):
                await broker.groups.commit_offsets(CommitOffsetsRequest(group="g", offsets=[row]))
                acked = offset
                self.history.commit_count += 1
            broker, floor = self.broker(), acked
            if broker is None:
                continue
            with contextlib.suppress(*Refused):
                response = await broker.groups.fetch_offsets(FetchOffsetsRequest(group="g"))
                stored = response.offsets[0].offset if response.offsets else -1
                assert floor <= stored <= offset, f"offset {stored}, acked {floor}, sent {offset}"


class Faults:
    """What goes wrong, drawn from the seed."""

    def __init__(self, world: WholeNodes, history: History) -> None:
        self.world, self.random, self.history = world, Random(world.seed), history
        self.counts = dict.fromkeys(("crash", "cut", "loss", "transfer", "outrun"), 0)

    async def run(self, seconds: float) -> None:
        loop, random, world = asyncio.get_running_loop(), self.random, self.world
        end = loop.time() + seconds
        while loop.time() < end:
            world.check_alive()
            await asyncio.sleep(random.random() * 0.15)
            name = random.choice(tuple(self.counts))
            self.counts[name] += 1
            await getattr(self, f"_{name}")()
            if random.random() < 0.4:
                world.cuts.clear()
                world.loss = 0.0
        await self.heal()

    async def heal(self) -> None:
        self.world.cuts.clear()
        self.world.loss = 0.0
        for node in self.world.nodes.values():
            if not node.is_up:
                await self.world.restart(node)

    async def _crash(self) -> None:
        random, world = self.random, self.world
        victims = random.sample(world.up, min(len(world.up), random.choice((1, 1, 1, 2, 3))))
        for node in victims:
            await node.crash()
        await asyncio.sleep(random.random() * 0.3)
        for node in world.nodes.values():
            if not node.is_up and random.random() < 0.8:
                await world.restart(node)

    async def _cut(self) -> None:
        pairs = list(itertools.permutations(self.world.nodes, 2))
        node = self.random.choice(list(self.world.nodes))
        if self.random.random() < 0.5:
            self.world.cuts.update(pair for pair in pairs if node in pair)
        else:
            self.world.cuts.update(self.random.sample(pairs, 2))

    async def _loss(self) -> None:
        self.world.loss = self.random.choice((0.02, 0.2))

    async def _transfer(self) -> None:
        for node in self.world.up:
            if node.driver.role is Role.LEADER:
                with contextlib.suppress(RaftError):
                    node.driver.transfer_leadership()

    async def _outrun(self) -> None:
        """Delete what a node lacks, so that it needs a snapshot; sometimes it lacks nothing."""
        random, up = self.random, self.world.up
        victim = random.choice(up) if up and random.random() < 0.7 else None
        if victim is not None:
            await victim.crash()
            await asyncio.sleep(random.random() * 0.2)
        for node in self.world.up:
            if random.random() < 0.8:
                # Nothing is deleted that a reader has not had: then nothing acked may be missing.
                await node.maintain(
                    expired_count=random.choice((1, 3, 100)), before=self.history.read_whole
                )
        if victim is not None and not victim.is_up:
            await self.world.restart(victim)


async def drain(world: WholeNodes, history: History) -> None:
    """Read every replica to its end; all of them must hold the same."""
    ends = set()
    for node in world.nodes.values():
        for queue_id in range(QUEUES):
            hi = node.log.store.reads.queue_range(TOPIC, queue_id)[1]
            assert hi >= history.acked_hi[queue_id], f"queue {queue_id} of node {node.node_id}"
        history.read_whole(node)
        image = node.machine.image()._replace(refused_count=0)
        ends.add((node.log.chain_at(node.log.last_index), encode_image(image)))
    assert len(ends) == 1, "the replicas differ"
    history.check()


async def attempt(root: Path, seed: int, *, flush: str = "sync", seconds: float = FAULTS_S) -> str:
    """One run; return what happened in it."""
    config = small_config(
        container="ledger", file_size_bytes=4 * PAGE, disk_reserve_bytes=0, flush=flush
    )
    world = WholeNodes(root, seed, config, flush=flush, retained_lag_entry_count_max=10)
    try:
        return await _attempt(world, seconds)
    finally:
        await world.stop()  # Threads that nobody stops would keep the process from ending.


async def _attempt(world: WholeNodes, seconds: float) -> str:
    clients = Clients(world)
    history = clients.history
    faults = Faults(world, history)
    await world.start()
    leader = await world.leader()
    await leader.broker.topics.create_topic(CreateTopicRequest(topic=TOPIC, queue_count=QUEUES))
    await world.settled()
    async with asyncio.TaskGroup() as tasks:
        for producer_id in (1, 2, 3):
            tasks.create_task(clients.produce(producer_id))
        for node in world.nodes.values():
            tasks.create_task(clients.maintain(node))
            for queue_id in range(QUEUES):
                tasks.create_task(clients.read_replica(node, queue_id))
        tasks.create_task(clients.read_latest())
        tasks.create_task(clients.consume())
        await faults.run(seconds)
        acked_before = len(history.acked)
        await eventually(lambda: len(history.acked) > acked_before, "appends after healing")
        clients.is_over = True
    await world.settled()
    await drain(world, history)
    await world.stop()
    world.check_alive()
    assert min(history.read_count, sum(faults.counts.values())), "nothing happened"
    return (
        f"{faults.counts} acked={len(history.acked)} expired={len(history.expired)} "
        f"duplicates={history.duplicate_count} unknown={history.unknown_count} "
        f"commits={history.commit_count} lost_frames={world.lost_count} "
        f"snapshots={world.installed_count}"
    )


@pytest.mark.long
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", [1, seeds.FRESH])
async def test_promises_hold_under_random_faults(
    tmp_path: Path, seed: int | str, flush: str
) -> None:
    this = f"{THIS}::test_promises_hold_under_random_faults[{seed}-{flush}]"
    number = seeds.chosen(seed, f"'{this}'")

    print(f"seed {number}, flush {flush}:", await attempt(tmp_path, number, flush=flush))
