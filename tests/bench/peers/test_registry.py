"""Each peer, for real: it starts, takes messages in each mode, gives them back, leaves nothing."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.commands import cluster as bench_cluster
from bench.peers.peer import MeasuredPeer, NotOfferedError, PeerLoad
from bench.peers.registry import ENTRIES
from tests import missing

_COUNT = 100
_DEADLINE_S = 300
_WITHOUT_FAILOVER = ("bookkeeper", "rocketmq-master-slave")
_LOADS = {
    "one at a time": PeerLoad(count=_COUNT, body_size_bytes=1024),
    "in flight": PeerLoad(count=_COUNT, body_size_bytes=100, in_flight_count=64),
    "batches": PeerLoad(count=_COUNT, body_size_bytes=65536, batch_count=16, in_flight_count=4),
}


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that is to be had: this is no test of a disk."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = tempfile.mkdtemp(prefix="qlog-peers-", dir=parent)
    yield Path(root)
    shutil.rmtree(root)


async def _drive(name: str, directory: Path) -> dict[str, int]:
    peer = ENTRIES[name].make()
    try:
        await peer.start(str(directory))
        pids = peer.pids()
        for what, load in _LOADS.items():
            made = await peer.produce(load)
            batches = -(-_COUNT // load.batch_count)
            assert (made.message_count, made.error_count) == (_COUNT, 0), what
            assert len(made.took_s) == len(made.began_s) == batches, what
            assert 0 < max(made.took_s) <= made.seconds, what
        read = await peer.consume()
        assert read.message_count == len(_LOADS) * _COUNT
        assert read.size_bytes == _COUNT * sum(one.body_size_bytes for one in _LOADS.values())
        assert read.seconds > 0
        await _kill_leader_under_load(peer)
    finally:
        await peer.stop()
        await peer.stop()  # A second time does nothing.
    return pids


async def _kill_leader_under_load(peer: MeasuredPeer) -> None:
    """The leader dies while a load runs, and not after it; how long it takes then is no matter."""
    running = asyncio.ensure_future(
        peer.produce(PeerLoad(seconds=_DEADLINE_S, rate_per_s=20, tolerates_errors=True))
    )
    before = peer.pids()
    try:
        if peer.facts.name in _WITHOUT_FAILOVER:
            with pytest.raises(NotOfferedError, match="failover"):
                await peer.kill_leader()
        else:
            assert await peer.kill_leader() > 0
            assert len(before.keys() - peer.pids().keys()) == 1
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.long
@pytest.mark.parametrize("name", ENTRIES)
def test_a_peer_takes_messages_gives_them_back_and_is_gone(name: str, directory: Path) -> None:
    why = ENTRIES[name].why_missing()
    if why is not None:
        missing.program(why)
    pids = asyncio.run(asyncio.wait_for(_drive(name, directory), _DEADLINE_S))
    assert len(pids) >= 3
    assert [pid for pid in pids.values() if psutil.pid_exists(pid)] == []


def test_the_command_knows_all_peers() -> None:
    assert list(bench_cluster._PEERS) == [name for name in ENTRIES if name != "quorumlog"]
