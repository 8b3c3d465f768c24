"""The operator of a master-slave group: promotes nodes as `qlog ha` does, beside the clients."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Final

import quorumlog
from quorumlog.errors import QuorumlogError
from simulation.cluster import Cluster, ClusterNode

PATIENCES_MS: Final = (1_500, 12_000)
"""Limits of a promotion, which takes away what the one before was promised: among short ones alone
none might come to its end."""
SERVED_SHARE: Final = 0.8
"""Share of the looks at a group with a master that do nothing; else another node is promoted, as by
an operator who cannot reach that master."""


async def promote_where_none_serves(cluster: Cluster, random: Random) -> None:
    """Look after the group, without end."""
    async with quorumlog.connect(",".join(cluster.servers)) as client:
        while True:
            await asyncio.sleep(random.uniform(0.2, 1.5))
            if cluster.leader is not None and random.random() < SERVED_SHARE:
                continue
            number, limit_ms = random.choice(cluster.nodes).number, random.choice(PATIENCES_MS)
            with contextlib.suppress(QuorumlogError):  # It is down, refuses, or has lost.
                await client.admin.ha_promote(number, timeout_ms=limit_ms)


async def promote_afresh(cluster: Cluster) -> None:
    """Give the master, once one serves, an epoch above all: a replica that was bound to a number
    of which another one became the master follows again."""
    while (leader := _serving(cluster)) is None:  # noqa: ASYNC110 - nodes give no notice of it.
        await asyncio.sleep(0.1)
    leader.advise(max(node.term for node in cluster.nodes) + 1, 1)


def _serving(cluster: Cluster) -> ClusterNode | None:
    """Return the master, but for one that stops."""
    leader = cluster.leader
    if leader is None or leader.node is None or leader.node.broker.produce.is_draining:
        return None
    return leader
