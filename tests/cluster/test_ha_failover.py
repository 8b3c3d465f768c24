"""A master-slave group with the name server: another master without anybody's doing."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster.nameserver import ListedTopicShare, NameServers
from tests.cluster.conftest import running
from tests.cluster.workload import Workload, read_all
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
Run = Callable[[Coroutine[Any, Any, None]], None]


async def group_of(
    names: NameServers, what: str, is_so: Callable[[ListedTopicShare], bool]
) -> ListedTopicShare:
    """Wait until the directory says something of the group; return the group."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        groups = await names.groups()
        if groups and is_so(groups[0]):
            return groups[0]
        assert time.monotonic() < deadline, f"waited in vain for {what}: {groups}"
        await asyncio.sleep(0.05)


def _is_whole(group: ListedTopicShare) -> bool:
    return group.master_id > 0 and group.in_sync == (1, 2, 3)


def _is_led_by(masters: set[int], group: ListedTopicShare) -> bool:
    return group.master_id in masters


async def test_the_name_server_gives_a_group_another_master(tmp_path: Path) -> None:
    """SIGKILL of the master, twice: nothing acked is lost, and the old one comes back as slave."""

    options: dict[str, Any] = {"replication": "sync_master"}
    async with running(tmp_path / "c", **options) as (cluster, client):
        async with NameServers(cluster.bootstrap) as names, Workload(client) as load:
            for _ in range(2):
                group = await group_of(names, "all in sync", _is_whole)
                old = group.master_id
                assert (group.kind, len(group.brokers)) == ("ha", 3)
                await load.acked(100)
                began_s = time.monotonic()
                await asyncio.to_thread(cluster.kill, old)
                await load.acked(1)
                took_s = time.monotonic() - began_s
                print(f"\nmaster {old} killed: next ack after {took_s:.1f} s")
                others = {1, 2, 3} - {old}
                await group_of(names, "another master", partial(_is_led_by, others))
                cluster.start(old)
                await asyncio.to_thread(cluster.wait_ready)
            history = await load.stop()
        found = Counter(await read_all(client, history, None))
        assert not history.acked - found.keys(), "acked and lost"
        assert max(found.values()) == 1, "twice"
