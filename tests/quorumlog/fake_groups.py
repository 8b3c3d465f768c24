"""Several scripted broker groups of one cluster, and a client of some of them.

Owns what tests of groups share: the nodes tell of each other, groups stop and start as a whole.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import quorumlog
from quorumlog import errors
from quorumlog.cluster.retry import Deadline
from tests.quorumlog.fake_cluster import FakeCluster

Groups = dict[str, FakeCluster]


def connect(groups: Groups, *names: str, timeout_ms: int = 10_000) -> quorumlog.Client:
    """A client that is given the addresses of these groups only; default: all."""
    given = [groups[name].bootstrap for name in names or groups]
    return quorumlog.connect(",".join(given), timeout_ms=timeout_ms)


@asynccontextmanager
async def fake_groups(*names: str, count: int = 1) -> AsyncIterator[dict[str, FakeCluster]]:
    """Run several broker groups of one cluster, which tell of each other."""
    groups = {
        name: FakeCluster(count, group=name, first_id=1 + at * count)
        for at, name in enumerate(names)
    }
    for group in groups.values():
        group.neighbours = [other for other in groups.values() if other is not group]
        await group.start()
    try:
        yield groups
    finally:
        for group in groups.values():
            await group.stop()


async def is_unreachable(client: quorumlog.Client, name: str) -> None:
    """Wait until the client has seen its connections break: what it sends later was never sent."""
    router = client._cluster.get(name).router
    try:
        while True:
            await router.refresh(Deadline(1_000))
    except errors.QuorumlogError:
        return
