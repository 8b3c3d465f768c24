"""The short ways of an append and the general ones do the same: log, queues, keys, state, answers.

Two nodes get the same requests, one of them without any short way. Whatever is in the requests,
every answer, every file and the replicated state are equal.
"""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.errors.common import NodeError
from node.metrics import BROKER
from node.monitoring.metric import Source, values
from node.state.image import encode_image
from quorumlog.pb.admin_pb2 import CreateTopicRequest, DeleteTopicRequest
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.transaction_pb2 import HalfMessages
from store import format as fmt
from store.errors import StoreError
from store.files.file_system import FileSystem
from store.record.message import encode_message
from store.replicated.ledger_store import ReplicaStore
from tests.node.broker_fakes import Fixture, node_at
from tests.node.short_ways import general_stamping, without_short_ways
from tests.store.records import BORN, small_config

TOPICS = {"orders": 4, "bills": 2, "a": 1}
PRODUCERS = 3


def _record(random: Random, topic: str, queue_id: int, size_bytes: int, shape: int) -> bytes:
    properties: dict[str, str] = {}
    if shape & 1:
        properties["TAGS"] = f"tag{random.randrange(2)}" if shape & 8 else "tag"
    if shape & 2:
        properties["UNIQ_KEY"] = f"{random.randrange(1 << 40):012d}"
    if shape & 4:
        properties["KEYS"] = " ".join(f"k{random.randrange(50)}" for _ in range(1 + shape % 3))
    if shape == 15:
        properties["trace"] = random.randbytes(6).hex()
    return encode_message(
        topic,
        queue_id,
        random.randbytes(size_bytes),
        properties,
        born_unix_ms=BORN,
        sys_flag=4 if shape == 14 else 0,
        born_host=("fe80::1", 5) if shape == 13 else ("10.0.0.1", 5),
    )


def _records(random: Random) -> tuple[bytes, int]:
    """A batch: mostly of one shape, sometimes of several, sometimes damaged."""
    parts = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        topic = "nobody" if random.random() < 0.01 else random.choice((*TOPICS, "orders", "orders"))
        queue_id = random.randrange(TOPICS.get(topic, 1) + (random.random() < 0.02))
        count = random.choice((1, 1, 1, 1, 1, 2, 7, 8, 9, 9, 30, 101))
        size_bytes = random.choice((0, 1, 5, 30, 30, 100))
        shape = random.choice((0, 0, 0, 1, 1, 2, 6, 9, *range(16)))
        parts += [
            _record(random, topic, queue_id, size_bytes + (random.random() < 0.01), shape)
            for _ in range(count)
        ]
    batch, count = b"".join(parts), len(parts)
    if random.random() < 0.06:  # Mostly in the first records: the others are far behind.
        at = random.randrange(min(len(batch), 300) if random.random() < 0.5 else len(batch))
        bit = 1 << random.randrange(8)
        batch = batch[:at] + bytes((batch[at] ^ bit,)) + batch[at + 1 :]
    return batch, count + (random.random() < 0.02)


class Twins:
    """The two nodes, and the sequences of their producers."""

    def __init__(self, short: Fixture, general: Fixture, random: Random) -> None:
        self.nodes, self.random = (short, general), random
        self.sequences = [0] * PRODUCERS
        self.pending: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = []

    def both(self, call: Any) -> list[Any]:
        with general_stamping():
            second = call(self.nodes[1])
        return [call(self.nodes[0]), second]

    async def step(self) -> None:
        random = self.random
        choice = random.random()
        if choice < 0.9:
            self.append()
        elif choice < 0.93:
            topic = random.choice(("orders", "bills"))
            count, permission = TOPICS[topic], random.choice((6, 6, 4))
            create = CreateTopicRequest(topic=topic, queue_count=count, permission=permission)
            await self.command(lambda node: node.broker.topics.create_topic(create))
        elif choice < 0.935:
            asked_too = DeleteTopicRequest(topic=random.choice(("bills", "a")))
            await self.command(lambda node: node.broker.topics.delete_topic(asked_too))
        else:
            for node in self.nodes:
                node.driver.is_holding = not node.driver.is_holding
        if random.random() < 0.6:
            await self.settle()

    def append(self) -> None:
        random = self.random
        records, count = _records(random)
        request = AppendRequest(record_count=count)
        if random.random() < 0.8:
            number = random.randrange(PRODUCERS)
            sequence = self.sequences[number]
            if random.random() < 0.15:  # The same again, or one that is not its turn.
                sequence = max(0, sequence + random.choice((-2, -1, 1)))
            request.producer_id, request.sequence = number + 1, sequence
        if random.random() < 0.04:
            request.has_delayed = True
        elif random.random() < 0.04:
            request.transaction.CopyFrom(HalfMessages(producer_group="pairs"))
        is_beside = random.random() < 0.5
        if not is_beside:
            request.records = records

        def send(node: Fixture) -> "asyncio.Future[Any]":
            own_copy = AppendRequest()
            own_copy.CopyFrom(request)
            return node.broker.append_nowait(own_copy, records if is_beside else None)

        first, second = self.both(send)
        self.pending.append((first, second))
        if request.producer_id and not first.done():
            mine = self.sequences
            number = request.producer_id - 1
            mine[number] = max(mine[number], request.sequence + 1)

    async def command(self, call: Any) -> None:
        tasks = [asyncio.ensure_future(call(node)) for node in self.nodes]
        for _ in range(3):
            await asyncio.sleep(0)
        for node in self.nodes:
            node.driver.commit()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert str(answers[0]) == str(answers[1])

    async def settle(self) -> None:
        """Let both nodes do what they have to, and compare all answers."""
        for _ in range(3):
            await asyncio.sleep(0)
        for node in self.nodes:
            node.driver.commit()
        for _ in range(3):
            await asyncio.sleep(0)
        for first, second in self.pending:
            assert first.done()
            assert second.done()
            assert _answer(first) == _answer(second)
        self.pending.clear()
        short, general = self.nodes
        assert encode_image(short.machine.state.image()) == encode_image(
            general.machine.state.image()
        )
        ledgers = [node.log.store.ledger for node in self.nodes]
        assert ledgers[0].tail == ledgers[1].tail
        lo = max(ledgers[0].first_index, ledgers[0].last_index - 20)
        hi = ledgers[0].last_index + 1
        if lo < hi:
            assert ledgers[0].read_entries(lo, hi) == ledgers[1].read_entries(lo, hi)
            assert ledgers[0].read_entries(hi - 1, hi) == ledgers[1].read_entries(hi - 1, hi)


def _answer(future: "asyncio.Future[Any]") -> object:
    error = future.exception()
    if error is None:
        return future.result().SerializeToString(deterministic=True)
    assert isinstance(error, NodeError | StoreError), repr(error)
    return type(error), str(error)


def _files(root: Path) -> dict[str, bytes]:
    """All files that follow from the log, and the log itself."""
    parts = ("consumequeue", "index", "checksums", "dledger-n0")
    return {
        str(path.relative_to(root)): path.read_bytes()
        for part in parts
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }


def _follow(leader: Fixture, root: Path, random: Random, *, is_general: bool) -> dict[str, bytes]:
    """Ship the log to a follower in portions that it dispatches now and then; return its files."""
    FileSystem().make_directory(str(root))
    config = small_config(container="ledger", flush="async", file_size_bytes=16 * 65536)
    with ReplicaStore.open(str(root), config) as store:
        if is_general:
            without_short_ways(store)
        source, lo = leader.log.store.ledger, 0
        while lo <= source.last_index:
            hi = min(lo + random.choice((1, 1, 1, 2, 5)), source.last_index + 1)
            checked = store.ledger.check_raw(
                source.read_range(lo, hi, fmt.ENTRY_SIZE_BYTES_MAX), lo - 1
            )
            store.write_raw(checked, lo)
            lo = checked.hi_index
            if random.random() < 0.3:
                store.dispatch_to(store.ledger.max_position)
        store.dispatch_to(store.ledger.max_position)
    return _files(root)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(100, 12), *(pytest.param(n, 120, marks=pytest.mark.long) for n in range(6))],
)
async def test_short_and_general_ways_do_the_same(
    tmp_path: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1 << 40))
    now = [BORN * 1_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    random = Random(seed)
    config: dict[str, Any] = {
        "topics": TOPICS,
        "file_size_bytes": 16 * 65536,
        "batch_size_bytes_max": 200_000,
    }
    roots = tmp_path / "short", tmp_path / "general"
    async with node_at(roots[0], **config) as short, node_at(roots[1], **config) as general:
        without_short_ways(general.log.store, general.machine)
        short.machine.listen(short.log.store.engine.dispatcher)
        twins = Twins(short, general, random)
        for _ in range(steps):
            now[0] = BORN * 1_000_000 + next(ticks) * 3_000_000
            await twins.step()
        await twins.settle()
        first, second = Source(BROKER, lambda: short.broker), Source(BROKER, lambda: general.broker)
        assert values(first) == values(second)
        assert short.broker.produce.records_total > steps // 4
        shipped = [
            _follow(general, tmp_path / name, Random(seed), is_general=name == "slow")
            for name in ("quick", "slow")
        ]
        assert shipped[0] == shipped[1]
    assert _files(roots[0]) == _files(roots[1])
    assert any("consumequeue/orders" in name for name in _files(roots[0]))
