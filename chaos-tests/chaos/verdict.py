"""The end of a scenario: all data read back from every replica, and judged.

Owns the drain and the choice of checkers. The checkers are those of the simulator; they know
calls and answers only. A queue that differs between two replicas, a receipt that is not kept, an
answer out of order: each becomes one line that names the rule.
"""

import asyncio
import gc
import json
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Final

import quorumlog
from chaos.body import value_of
from chaos.clients import LOG_QUEUES, QUEUE_COUNT, REGISTER_QUEUE, queue_name
from chaos.errors import NotSoError
from checkers.checker import check_log
from checkers.history import AppendCall, Drain, FaultNote, HistoryReceipt, Kind, Operation
from checkers.register import check_register_by_index, check_register_by_zones
from quorumlog.admin.types import NodeStatus
from quorumlog.errors import CorruptRecordError, OffsetOutOfRangeError, QuorumlogError

DRAIN_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.05


async def caught_up(
    client: quorumlog.Client,
    nodes: tuple[int, ...],
    timeout_s: float,
    harmed: Collection[int] = (),
) -> int:
    """Wait until every node has applied the current commit index, in the current term; return it.

    In an older term a master that was replaced may have more than that, which it is to cut off. A
    node with a harmed disk may never count again: it has lost what it had synced.
    """
    loop = asyncio.get_running_loop()  # Whose time is a virtual one in a simulated world.
    deadline = loop.time() + timeout_s
    target: NodeStatus | None = None
    for node in nodes:
        while True:
            try:
                if target is None:
                    target = await client.admin.node_status()
                status = await client.admin.node_status(node)
                is_there = status.term >= target.term
                is_there &= status.applied_index >= target.commit_index
                if is_there and (status.standing == "full" or node in harmed):
                    break
                last = f"{status.applied_index} in term {status.term}, {status.standing}"
            except QuorumlogError as error:
                last = str(error)
            if loop.time() >= deadline:
                raise NotSoError(f"node {node} does not come to {target}: {last}")
            await asyncio.sleep(_POLL_S)
    assert target is not None, "a cluster has nodes"
    return target.commit_index


async def same_digests(client: quorumlog.Client, nodes: tuple[int, ...], index: int) -> None:
    """Demand that the logs of all nodes are equal up to an index (I13)."""
    digests = {}
    for node in nodes:
        digest = await client.admin.chain_digest(node, index)
        digests[node] = (digest.index, digest.term, digest.chain_crc, digest.end_log_position)
    if len(set(digests.values())) != 1:
        raise NotSoError(f"I13: the logs differ at index {index}: {digests}")


async def drain(
    client: quorumlog.Client,
    topic: str,
    nodes: tuple[int, ...],
    at_least_index: int,
    harmed: Collection[int] = (),
) -> list[Drain]:
    """Read every queue from each replica separately.

    A read may fail on a node with a harmed disk, which repairs what the read met.
    """
    drains = []
    for node in nodes:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            values = await _read_all(client, topic, node, at_least_index, node in harmed)
        drains += [_drain_of(node, queue, values[queue]) for queue in range(QUEUE_COUNT)]
    return drains


async def _read_all(
    client: quorumlog.Client, topic: str, node: int, at_least_index: int, is_harmed: bool
) -> dict[int, list[tuple[int, str]]]:
    """Read one replica; start again when retention was faster than the read, or after damage."""
    while True:
        values: dict[int, list[tuple[int, str]]] = defaultdict(list)
        consumer = client.pull_consumer(
            topic,
            position="first",
            until="end",
            consistency="local",
            at_least_index=at_least_index,
            node_id=node,
            timeout_ms=20_000,
        )
        try:
            async with consumer:
                async for message in consumer:
                    values[message.queue_id].append((message.queue_offset, value_of(message.body)))
            return values
        except (OffsetOutOfRangeError, CorruptRecordError) as error:
            if isinstance(error, CorruptRecordError) and not is_harmed:
                raise
            await asyncio.sleep(_POLL_S)


def _drain_of(node: int, queue: int, pairs: list[tuple[int, str]]) -> Drain:
    """Return the drain of a queue; offsets missing between first and last become holes."""
    if not pairs:
        return Drain(node, queue_name(queue), 0, [])
    first, last = pairs[0][0], pairs[-1][0]
    values: list[int | str | None] = [None] * (last - first + 1)
    for offset, value in pairs:
        values[offset - first] = value
    return Drain(node, queue_name(queue), first, values)


def judge(
    operations: list[Operation],
    drains: list[Drain],
    notes: list[FaultNote] | None = None,
    *,
    may_expire: bool = False,
) -> list[str]:
    """Return every violation, one text each; an empty list for a history of a correct log.

    `may_expire`: retention may have deleted the beginning of a queue.
    """
    log_names = {queue_name(queue) for queue in LOG_QUEUES}
    register = queue_name(REGISTER_QUEUE)
    of_log = [operation for operation in operations if operation.queue in log_names]
    of_register = [operation for operation in operations if operation.queue == register]
    # A put is an append, too: every replica must keep it.
    of_log += [_as_append(put) for put in of_register if put.kind is Kind.PUT]
    # Millions of small tuples without references: the collector would scan all of them again and
    # again, for two thirds of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        violations = check_log(of_log, _distinct(drains), notes or (), may_expire=may_expire)
        violations += check_register_by_index(of_register)
        violations += check_register_by_zones(of_register)
    finally:
        if was_enabled:
            gc.enable()
    return [str(violation) for violation in violations]


def _distinct(drains: list[Drain]) -> list[Drain]:
    """Return the drains without duplicates: replicas of equal content are judged as one."""
    by_queue: dict[str, list[Drain]] = defaultdict(list)
    for one in drains:
        distinct = by_queue[one.queue]
        if not any(one[2:] == other[2:] for other in distinct):
            distinct.append(one)
    return [one for queue in by_queue.values() for one in queue]


def _as_append(put: Operation) -> Operation:
    assert isinstance(put.request, str), f"a put of {put.request!r}"
    result = HistoryReceipt(put.result) if isinstance(put.result, int) else None
    return put._replace(kind=Kind.APPEND, request=AppendCall(put.request), result=result)


def leaders_of(logs: dict[int, Path]) -> tuple[dict[int, int], list[str]]:
    """Return the leader of each term by the logs of all nodes, and every breach of I1."""
    leaders: dict[int, int] = {}
    breaches = []
    for node, path in logs.items():
        for line in path.read_text("utf-8", errors="replace").splitlines():
            if '"role": "leader"' not in line:
                continue
            try:
                term = int(json.loads(line)["term"])
            except (ValueError, KeyError):
                continue  # A line that was cut by a crash.
            other = leaders.setdefault(term, node)
            if other != node:
                breaches.append(f"I1: nodes {other} and {node} both lead term {term}")
    return leaders, breaches
