"""Kills the leader repeatedly under load, and measures the time until the next acked append.

Owns the load, the kills and the check at the end that no acked message is lost or doubled. The
clock starts right before SIGKILL and stops at the first receipt of a later term: a receipt of the
dead leader's term that was on its way does not count.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bench.cluster import Progress
from bench.report import histogram, latency

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus
    from quorumlog.client import Client

TOPIC = "failover"
TARGET_P50_MS = 1_000.0
TARGET_P99_MS = 2_500.0

_QUEUE_COUNT = 4
_SENDER_COUNT = 4
_BODY_SIZE_BYTES = 256
_SEND_PAUSE_S = 0.002
_LEADER_POLL_S = 0.02
_HEALTH_POLL_S = 0.05
_FAILOVER_DEADLINE_S = 60.0
_HEALTH_DEADLINE_S = 60.0
_PAUSE_BEFORE_KILL_S = (0.1, 0.6)


class NotBackError(Exception):
    """The cluster missed a deadline of the measurement."""

    code, retryable, outcome = "bench.not_back", False, None

    def __init__(self, what: str, deadline_s: float) -> None:
        super().__init__(what, deadline_s)
        self.what, self.deadline_s = what, deadline_s

    def __str__(self) -> str:
        return f"{self.what} within {self.deadline_s} s; run it with --dir DIR, read the logs there"


@asynccontextmanager
async def _deadline(what: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise NotBackError(what, seconds) from error


class KillableNodes(Protocol):
    """The operations on a cluster that this module needs."""

    def kill(self, node_id: int) -> object:
        """SIGKILL; returns at once or when the process is gone."""

    def start(self, node_id: int) -> object:
        """Start a killed node again; need not wait until it serves."""


@dataclass(slots=True)
class LeaderKill:
    """One failover."""

    node_id: int
    term: int
    next_ack_ms: float
    without_leader_ms: float
    healthy_again_ms: float


@dataclass(slots=True)
class Senders:
    """The load: each sender awaits its receipt, and remembers the acked messages."""

    client: "Client"
    acked: list[tuple[int, int]] = field(default_factory=list)
    unknown: set[tuple[int, int]] = field(default_factory=set)
    failed_count: int = 0
    error_codes: Counter[str] = field(default_factory=Counter)
    is_stopping: bool = False
    _awaited: tuple[int, asyncio.Future[float]] | None = None

    def first_ack_after(self, term: int) -> asyncio.Future[float]:
        """Return a future with the time of the first receipt of a term later than this one."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited = (term, future)
        return future

    async def run(self, number: int) -> None:
        """Send until stopped. An error ends no sender: it is counted by its code."""
        from quorumlog.errors import Outcome, QuorumlogError

        turn = 0
        padding = os.urandom(_BODY_SIZE_BYTES // 2).hex()
        async with self.client.producer() as producer:
            while not self.is_stopping:
                body = f"{number} {turn} {padding}"
                try:
                    receipt = await producer.send(TOPIC, body, queue_id=number % _QUEUE_COUNT)
                except QuorumlogError as error:
                    self.error_codes[error.code] += 1
                    if error.outcome is Outcome.NOT_APPLIED:
                        self.failed_count += 1
                    else:
                        self.unknown.add((number, turn))
                else:
                    self.acked.append((number, turn))
                    self._on_ack(receipt.term)
                turn += 1
                await asyncio.sleep(_SEND_PAUSE_S)

    def _on_ack(self, term: int) -> None:
        if self._awaited is not None and term > self._awaited[0]:
            if not self._awaited[1].done():
                self._awaited[1].set_result(time.perf_counter())
            self._awaited = None


async def measure(
    client: "Client", nodes: KillableNodes, *, kills: int, seed: int, show: Progress
) -> dict[str, Any]:
    """Kill the leader `kills` times, then read everything back; one row of results."""
    await client.admin.create_topic(TOPIC, queue_count=_QUEUE_COUNT)
    rng = random.Random(seed)
    senders, done = Senders(client), []
    await _wait_healthy(client)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(senders.run(number)) for number in range(_SENDER_COUNT)]
        try:
            for number in range(kills):
                # A random pause, so that kills are not in step with heartbeats.
                await asyncio.sleep(rng.uniform(*_PAUSE_BEFORE_KILL_S))
                done.append(await _kill_once(client, nodes, senders))
                show("kills", number + 1, kills)
        finally:
            senders.is_stopping = True
        await asyncio.gather(*running)
    audit = await _audit(client, senders)
    return {**_row(done), **audit}


async def _kill_once(client: "Client", nodes: KillableNodes, senders: Senders) -> LeaderKill:
    status = await _wait_healthy(client)
    leader_id, term = status.leader_id, status.term
    survivors = [node.node_id for node in status.nodes if node.node_id != leader_id]
    acked = senders.first_ack_after(term)
    began = time.perf_counter()
    await asyncio.to_thread(nodes.kill, leader_id)
    leaderless = asyncio.ensure_future(_wait_leader(client, survivors, term))
    async with _deadline("no append was acked after a kill", _FAILOVER_DEADLINE_S):
        next_ack_ms = (await acked - began) * 1e3
        without_leader_ms = (await leaderless - began) * 1e3
    restarted = time.perf_counter()
    await asyncio.to_thread(nodes.start, leader_id)
    await _wait_healthy(client)
    return LeaderKill(
        node_id=leader_id,
        term=term,
        next_ack_ms=next_ack_ms,
        without_leader_ms=without_leader_ms,
        healthy_again_ms=(time.perf_counter() - restarted) * 1e3,
    )


async def _wait_leader(client: "Client", survivors: list[int], term: int) -> float:
    """Return the time at which a survivor first reports that it leads in a later term."""
    from quorumlog.errors import QuorumlogError

    while True:
        for node_id in survivors:
            try:
                status = await client.admin.node_status(node_id)
            except QuorumlogError:
                continue  # Asked again below; the caller has the deadline.
            if status.role == "leader" and status.term > term:
                return time.perf_counter()
        await asyncio.sleep(_LEADER_POLL_S)


async def _wait_healthy(client: "Client") -> "ClusterStatus":
    """Wait until every node answers, follows one leader, and has that leader's commits."""
    from quorumlog.admin.types import NodeStatus

    async with _deadline("the nodes were not level", _HEALTH_DEADLINE_S):
        needed: int | None = None
        while True:
            status = await client.admin.cluster_status()
            up = [node for node in status.nodes if isinstance(node, NodeStatus)]
            leaders = [node for node in up if node.role == "leader"]
            if needed is None and len(leaders) == 1:
                needed = leaders[0].commit_index
            if (
                needed is not None
                and len(up) == len(status.nodes)
                and len({(node.leader_id, node.term) for node in up}) == 1
                and all(node.applied_index >= needed for node in up)
            ):
                return status
            await asyncio.sleep(_HEALTH_POLL_S)


async def _audit(client: "Client", senders: Senders) -> dict[str, Any]:
    """Read everything back; count acked messages that are missing, duplicates and disorder."""
    seen: Counter[tuple[int, int]] = Counter()
    last: dict[int, int] = {}
    disorder = 0
    async with client.pull_consumer(
        TOPIC, position="first", until="end", consistency="linearizable"
    ) as consumer:
        async for batch in consumer.batches():
            for body in batch.bodies():
                number, turn, _ = body.split(b" ", 2)
                key = (int(number), int(turn))
                disorder += key[1] < last.get(key[0], -1)
                last[key[0]] = key[1]
                seen[key] += 1
    lost = sum(1 for key in senders.acked if key not in seen)
    return {
        "acked_count": len(senders.acked),
        "failed_count": senders.failed_count,
        "unknown_count": len(senders.unknown),
        "error_codes": dict(sorted(senders.error_codes.items())),
        "read_count": sum(seen.values()),
        "lost_count": lost,
        "duplicate_count": sum(count - 1 for count in seen.values()),
        "out_of_order_count": disorder,
    }


def _row(done: list[LeaderKill]) -> dict[str, Any]:
    acks = [kill.next_ack_ms for kill in done]
    return {
        "kill_count": len(done),
        "next_ack": latency(acks),
        "without_leader": latency([kill.without_leader_ms for kill in done]),
        "healthy_again": latency([kill.healthy_again_ms for kill in done]),
        "histogram": histogram(acks),
        "kills": [{key: round(value, 1) for key, value in asdict(kill).items()} for kill in done],
    }
