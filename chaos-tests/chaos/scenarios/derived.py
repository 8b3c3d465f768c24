"""Files that are derived from the log, damaged while their node is down or runs: a reader then gets
every message, or an error, and a rebuild (fault-matrix D8).

Owns the damage, field by field, and the reading with filters, by key and by time. All reads go to
the node that was damaged, which is made leader for this.
"""

import asyncio
import contextlib
import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import quorumlog
from chaos.log_files import flip_bits
from chaos.scenario import DEADLINE_S, ScenarioContext, scenario
from chaos.strikes import lead
from chaos.told import now_unix_ms
from quorumlog.errors import QuorumlogError
from store import format as fmt
from store.derived.keys.index_file import key_hash

COUNT: Final = 240
"""Messages of one round, with tags and keys."""
TAGS: Final = ("apple", "pear", "plum")
KEY_COUNT: Final = 12
DUE_COUNT: Final = 8
DUE_S: Final = 12.0
"""Longer than a kill, the damage, a restart and an election together."""
LATE_MS: Final = 5_000
"""Permitted delay of a due message after a change of leaders."""
DAMAGE_COUNT: Final = 12
_HOLDING_TOPIC: Final = "rmq_sys_wheel_timer"
_UNIT: Final = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


@dataclass(slots=True)
class _Sent:
    """Expected messages, by each way of reading."""

    topic: str
    bodies: list[bytes] = field(default_factory=list)
    by_tag: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    by_key: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    due_ms: dict[bytes, int] = field(default_factory=dict)


async def _send(x: ScenarioContext, topic: str) -> _Sent:
    sent, client = _Sent(topic), x.load.clients.client
    await client.admin.create_topic(topic, queue_count=1)
    await client.admin.create_topic(f"{topic}-due", queue_count=1)
    async with client.producer() as producer:
        for number in range(COUNT):
            tag, key = TAGS[number % len(TAGS)], f"key{number % KEY_COUNT}"
            body = f"{topic} {number} {tag} {key}".encode()
            await producer.enqueue(topic, body, queue_id=0, tag=tag, key=key)
            sent.bodies.append(body)
            sent.by_tag[tag].append(body)
            sent.by_key[key].append(body)
        for number in range(DUE_COUNT):
            body = f"{topic} due {number}".encode()
            due_ms = now_unix_ms() + int(DUE_S * 1000)
            await producer.send(f"{topic}-due", body, queue_id=0, deliver_at=due_ms / 1000)
            sent.due_ms[body] = due_ms
        await producer.flush()
    return sent


# --- Damage ---


def flip_units(data: Path, topic: str, lo: int, hi: int, random: Random) -> int:
    """Flip a bit in bytes [lo, hi) of some of the last units of each queue of a topic."""
    count = 0
    for queue in sorted((data / "consumequeue" / topic).iterdir()):
        path = max(path for path in queue.iterdir() if path.name.isdecimal())
        written = -(-len(path.read_bytes().rstrip(b"\0")) // _UNIT)
        chosen = random.sample(range(max(0, written - COUNT), written), min(DAMAGE_COUNT, written))
        count += flip_bits(
            path, [unit * _UNIT + random.randrange(lo, hi) for unit in chosen], random
        )
    return count


def _newest_index(data: Path) -> Path:
    return max((data / "index").iterdir())


def _index_header(data: Path, sent: _Sent, random: Random) -> int:
    return flip_bits(
        _newest_index(data), random.sample(range(fmt.INDEX_HEADER_SIZE_BYTES), 4), random
    )


def _index_slots(data: Path, sent: _Sent, random: Random) -> int:
    path = _newest_index(data)
    slot_count = slot_count_of(path.stat().st_size)
    places = [
        fmt.INDEX_HEADER_SIZE_BYTES
        + key_hash(sent.topic, key) % slot_count * fmt.INDEX_SLOT_SIZE_BYTES
        + random.randrange(fmt.INDEX_SLOT_SIZE_BYTES)
        for key in random.sample(sorted(sent.by_key), KEY_COUNT // 2)
    ]
    return flip_bits(path, places, random)


def slot_count_of(size_bytes: int) -> int:
    """Return the slot count of an index file: four entries for each slot (storage-formats 3.1)."""
    rest = size_bytes - fmt.INDEX_HEADER_SIZE_BYTES
    count, left = divmod(rest, fmt.INDEX_SLOT_SIZE_BYTES + 4 * fmt.INDEX_ENTRY_SIZE_BYTES)
    assert left == 0, f"an index file of {size_bytes} bytes"
    return count


def _index_entries(data: Path, sent: _Sent, random: Random) -> int:
    path = _newest_index(data)
    with path.open("rb") as file:
        head = fmt.INDEX_HEADER.unpack(file.read(fmt.INDEX_HEADER_SIZE_BYTES))
    count = head[-1]
    slots_size_bytes = slot_count_of(path.stat().st_size) * fmt.INDEX_SLOT_SIZE_BYTES
    base = fmt.INDEX_HEADER_SIZE_BYTES + slots_size_bytes
    chosen = random.sample(range(max(1, count - COUNT), count), DAMAGE_COUNT)
    places = [
        base + entry * fmt.INDEX_ENTRY_SIZE_BYTES + random.randrange(fmt.INDEX_ENTRY_SIZE_BYTES)
        for entry in chosen
    ]
    return flip_bits(path, places, random)


def _lose(data: Path, sent: _Sent, random: Random) -> int:
    """Delete queue files, the index and the checkpoint."""
    queues = [path for path in (data / "consumequeue").rglob("0*") if path.is_file()]
    chosen = random.sample(queues, min(4, len(queues)))
    for path in chosen:
        path.unlink()
    shutil.rmtree(data / "index")
    (data / "checkpoint").unlink(missing_ok=True)
    return len(chosen) + 2


def _unit_field(lo: int, hi: int, topic: str = "") -> Callable[[Path, _Sent, Random], int]:
    def damage(data: Path, sent: _Sent, random: Random) -> int:
        return flip_units(data, topic or sent.topic, lo, hi, random)

    return damage


DAMAGES: Final[dict[str, Callable[[Path, _Sent, Random], int]]] = {
    "positions": _unit_field(0, 8),
    "sizes": _unit_field(8, 12),
    "tag codes": _unit_field(12, 20),
    "due times": _unit_field(12, 20, _HOLDING_TOPIC),
    "index header": _index_header,
    "index slots": _index_slots,
    "index entries": _index_entries,
    "lost files": _lose,
}
ONLY_AT_REST: Final = ("due times", "lost files")
"""Damages of files that a running node has read before, or must not lose."""


@scenario("derived-files", "D8")
async def derived_files(x: ScenarioContext) -> None:
    """Queues and key index of a follower that is down are damaged, field by field; then it leads.

    The new leader shows every message, with filters, by key and when it is due. It does so again
    when the same is damaged while it runs."""
    met = 0.0
    for at, (what, damage) in enumerate(DAMAGES.items()):
        sent = await _send(x, f"{x.load.clients.topic}-derived-{at}")
        await x.acked(50)
        node = await x.follower()
        end = x.random.choice((x.cluster.kill, x.cluster.stop))
        await x.do(end, node)
        x.inject(end.__name__, f"node {node}")
        await _damage(x, what, damage, node, sent)
        await x.restart(node)
        await lead(x, node)
        await _all_comes_back(x, what, sent)
        if what not in ONLY_AT_REST:
            await _damage(x, what, damage, node, sent)
            await _all_comes_back(x, f"{what} of a node that runs", sent)
        x.prove(f"everything is shown by the node with damaged {what}", await x.leader() == node)
        met += await x.do(x.cluster.metric, node, "quorumlog_derived_damage_total")
    x.prove(f"damage is counted: {met}", met)
    for node in x.cluster.node_ids:
        # Slots of an index file are in memory while a node runs: its next start reads them.
        await x.do(x.cluster.stop, node)
        await x.restart(node)


async def _damage(
    x: ScenarioContext,
    what: str,
    damage: Callable[[Path, _Sent, Random], int],
    node: int,
    sent: _Sent,
) -> None:
    count = await x.do(damage, x.cluster.data_directory(node), sent, x.random)
    x.inject("damage", f"{what} of node {node}, {count} places", count=count)
    x.prove(f"{count} places were damaged: {what}", count)


async def _all_comes_back(x: ScenarioContext, what: str, sent: _Sent) -> None:
    client = x.load.clients.client

    async def check(
        how: str, wanted: list[bytes], read: Callable[[], Awaitable[list[bytes]]]
    ) -> None:
        answer = await _read_patiently(x, f"{what}, {how}", read)
        x.demand_none(
            [f"D8: {what}: {len(answer)} of {len(wanted)} messages {how}, and no error"]
            * (sorted(answer) != sorted(wanted))
        )

    await check("without a filter", sent.bodies, partial(_pulled, client, sent.topic, ()))
    for tag, wanted in sent.by_tag.items():
        await check(f"with tag {tag}", wanted, partial(_pulled, client, sent.topic, (tag,)))
    for key, wanted in sent.by_key.items():
        await check(f"with key {key}", wanted, partial(_queried, client, sent.topic, key))
    # The checks before may have taken longer than until the messages were due.
    late_ms = max(now_unix_ms(), *sent.due_ms.values()) + LATE_MS * x.factor
    delivered: dict[bytes, int] = {}
    while len(delivered) < DUE_COUNT and now_unix_ms() < late_ms:
        with contextlib.suppress(QuorumlogError):  # The deadline above bounds the errors.
            batch = await client.pull(f"{sent.topic}-due", 0, 0)
            delivered = {bytes(one.body): one.store_unix_ms for one in batch.messages}
        await asyncio.sleep(0.2)
    early = [body for body, at_ms in delivered.items() if at_ms < sent.due_ms[body]]
    x.demand_none([f"D8: {what}: {body!r} was delivered before its time" for body in early])
    missing = sorted(sent.due_ms.keys() - delivered.keys())
    x.demand_none([f"D8: {what}: {body!r} is due and was not delivered" for body in missing])


async def _read_patiently(
    x: ScenarioContext, what: str, read: Callable[[], Awaitable[list[bytes]]]
) -> list[bytes]:
    """Read; while files are rebuilt an error is an honest answer, up to a deadline."""
    deadline = time.monotonic() + DEADLINE_S * x.options.time_scale
    while True:
        try:
            return await read()
        except QuorumlogError as error:
            x.recorder.note("read", f"{what}: {error}")
            x.demand_none([f"D8: {what}: {error}"] * (time.monotonic() >= deadline))
            await asyncio.sleep(0.2)


async def _pulled(client: quorumlog.Client, topic: str, tags: tuple[str, ...]) -> list[bytes]:
    end = (await client.queue_offsets(topic, [0]))[0].end_offset
    bodies: list[bytes] = []
    offset = 0
    while offset < end:
        batch = await client.pull(topic, 0, offset, tags=tags)
        bodies += [bytes(one.body) for one in batch.messages]
        if batch.next_offset <= offset:
            break
        offset = batch.next_offset
    return bodies


async def _queried(client: quorumlog.Client, topic: str, key: str) -> list[bytes]:
    return [bytes(one.body) for one in await client.query_by_key(topic, key)]
