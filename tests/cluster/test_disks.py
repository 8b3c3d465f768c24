"""Disks that are full, damaged, or forget: the cluster goes on, and every node comes back."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.cluster.channels import stub
from quorumlog.errors import (
    Outcome,
    QuorumlogError,
    StoreFullError,
    from_rpc,
)
from quorumlog.pb import log_pb2
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.records.batch import encode_entries
from tests import missing
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC, Workload, applied, full_standing, prove, same_logs
from tests.patience import PATIENCE_S, eventually, wait_for

Run = Callable[[Coroutine[Any, Any, None]], None]
DISK_SIZE_BYTES = 24 << 20
REFUSED_COUNT = 3
SMALL = {"disk_full_ratio": 1.0, "disk_reserve_bytes": "4MiB", "preallocate_file_count": 1}


# --- Full ---


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """A directory in which each node's data will be a small tmpfs of its own."""
    root = tmp_path / "c"
    mounted = []
    for node_id in (1, 2, 3):
        path = root / f"node-{node_id}" / "data"
        path.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE_BYTES}", "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            missing.injector(f"mounting is not permitted here: {done.stderr.strip()}")
        mounted.append(path)
    yield root
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=PATIENCE_S)


class Ballast:
    """Takes all room on a node's disk, and gives it back."""

    def __init__(self, cluster: LocalCluster, node_id: int) -> None:
        self._path = cluster.node_directory(node_id) / "data" / "ballast"

    def take(self) -> None:
        with self._path.open("wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(65536))

    def give_back(self) -> None:
        self._path.unlink()


@contextlib.asynccontextmanager
async def filled(cluster: LocalCluster, *node_ids: int) -> AsyncIterator[None]:
    ballast = [Ballast(cluster, node_id) for node_id in node_ids]
    for one in ballast:
        await asyncio.to_thread(one.take)
    try:
        yield
    finally:
        for one in ballast:
            await asyncio.to_thread(one.give_back)


async def fill(
    client: quorumlog.Client, count: int, *, timeout_ms: int = 1000 * PATIENCE_S
) -> tuple[int, Exception | None]:
    """Send 100 kB messages; return how many were acked, and what stopped it."""
    acked = 0
    async with client.producer(timeout_ms=timeout_ms) as producer:
        for n in range(count):
            try:
                await producer.send(TOPIC, b"%08d" % n + bytes(100_000), queue_id=0)
            except QuorumlogError as error:
                return acked, error
            acked += 1
    return acked, None


async def append_once(client: quorumlog.Client) -> QuorumlogError | None:
    """Append one message at the leader, and not again: what it says, None if it takes it."""
    entry = entry_of(TOPIC, bytes(100_000), None, None, 0, None, 0)
    records = b"".join(encode_entries([entry], lambda *_: (TOPIC, 0), born_unix_ms=1).pieces)
    leader = (await client.route()).leader_address
    async with grpc.aio.insecure_channel(leader) as channel:
        log = stub(channel, log_pb2.DESCRIPTOR)
        try:
            await log.Append(
                log_pb2.AppendRequest(records=records, record_count=1), timeout=PATIENCE_S
            )
        except grpc.aio.AioRpcError as error:
            return from_rpc(error, leader)
    return None


async def append_until_full(client: quorumlog.Client) -> tuple[int, int]:
    """Append until leaders refuse by name; return how many were acked, and how many may be there.

    A leader looks at its disk now and then: what it took before cannot be decided any more. Then it
    refuses, and hands over to one that may have more room.
    """
    deadline, acked, in_doubt, refused = time.monotonic() + PATIENCE_S, 0, 0, 0
    while refused < REFUSED_COUNT:
        assert time.monotonic() < deadline, f"not full: {acked} acked, {in_doubt} in doubt"
        error = await append_once(client)
        if error is None:
            acked += 1
        elif isinstance(error, StoreFullError):
            assert error.outcome is Outcome.NOT_APPLIED
            assert error.retryable
            refused += 1
        else:
            assert error.retryable, repr(error)
            in_doubt += error.outcome is Outcome.UNKNOWN
    return acked, in_doubt


async def test_a_full_follower_changes_nothing_for_clients(disks: Path) -> None:
    async with running(disks, settings=SMALL) as (cluster, client):
        leader = await asyncio.to_thread(cluster.leader_id)
        full = leader % 3 + 1

        async def follows() -> bool:
            leads = (await client.admin.node_status()).node_id
            return (await client.admin.node_status(full)).leader_id == leads != full

        async with filled(cluster, full):
            acked, error = await fill(client, 60)
            assert (acked, str(error)) == (60, "None")
            assert cluster.is_alive(full)
            await eventually(follows, "the full one to follow")
        await same_logs(cluster, client)


@pytest.mark.long
async def test_a_full_leader_hands_over(disks: Path) -> None:
    async with running(disks, settings=SMALL) as (cluster, client):
        full = await asyncio.to_thread(cluster.leader_id)
        async with filled(cluster, full):
            acked, error = await fill(client, 60)
            assert (acked, str(error)) == (60, "None")
            assert (await client.admin.node_status()).node_id != full
            assert cluster.is_alive(full)
        await same_logs(cluster, client)


@pytest.mark.long
async def test_a_full_majority_refuses_and_recovers_by_itself(disks: Path) -> None:
    """Nothing is acked that is not on a quorum, reads go on, and room is all it takes."""

    async with running(disks, settings=SMALL) as (cluster, client):
        async with client.producer() as producer:
            await producer.send(TOPIC, "kept", queue_id=1)
        async with filled(cluster, 1, 2, 3):
            acked, error = await fill(client, 60, timeout_ms=4_000)
            assert acked < 60
            assert isinstance(error, QuorumlogError)
            taken, in_doubt = await append_until_full(client)
            acked, in_doubt = acked + taken, in_doubt + (error.outcome is Outcome.UNKNOWN)
            batch = await client.pull(TOPIC, 1, 0, consistency="linearizable")
            assert batch.bodies() == [b"kept"]
            assert all(cluster.is_alive(node_id) for node_id in cluster.node_ids)
        again, late = await fill(client, 10)
        assert (again, str(late)) == (10, "None")
        await same_logs(cluster, client)
        ranges = await client.queue_offsets(TOPIC, [0])
        assert acked + 10 <= ranges[0].max_offset <= acked + 10 + in_doubt


# --- Damaged ---


def data_files(cluster: LocalCluster, node_id: int) -> list[Path]:
    root = cluster.node_directory(node_id) / "data"
    return sorted(path for path in root.glob("dledger-*/data/*") if path.name.isdecimal())


async def read_until_whole(client: quorumlog.Client, node_id: int, count: int) -> None:
    """Read queue 0 of one node alone; damage is an error, never a message, until it is repaired."""
    offset = 0

    async def is_read() -> bool:
        nonlocal offset
        try:
            batch = await client.pull(TOPIC, 0, offset, consistency="local", node_id=node_id)
        except QuorumlogError:
            return False
        for message in batch:
            assert message.body == b"%08d" % offset + bytes(100_000)
            offset += 1
        return offset >= count

    await eventually(is_read, f"node {node_id} to be repaired")


async def test_a_corrupted_follower_repairs_itself_from_its_peers(tmp_path: Path) -> None:
    """Flipped bytes below what was known to be good: refetched, never cut, and equal again."""

    async with running(tmp_path / "c") as (cluster, client):
        acked, error = await fill(client, 30)
        assert (acked, str(error)) == (30, "None")
        await same_logs(cluster, client)
        bad = (await asyncio.to_thread(cluster.leader_id)) % 3 + 1
        await asyncio.to_thread(cluster.stop, bad)
        path = data_files(cluster, bad)[0]
        good = path.read_bytes()
        with path.open("r+b") as file:
            for at in (200_000, 200_001, 700_000):
                file.seek(at)
                file.write(bytes([good[at] ^ 0x40]))
        cluster.start(bad)
        await asyncio.to_thread(cluster.wait_ready)
        await read_until_whole(client, bad, 30)
        assert path.read_bytes() == good
        assert "repaired" in cluster.log_path(bad).read_text()
        await same_logs(cluster, client)


@pytest.mark.long
async def test_a_lost_log_file_of_a_follower_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        await fill(client, 30)
        await same_logs(cluster, client)
        bad = (await asyncio.to_thread(cluster.leader_id)) % 3 + 1
        await asyncio.to_thread(cluster.stop, bad)
        path = data_files(cluster, bad)[1]
        good = path.read_bytes()
        path.unlink()
        cluster.start(bad)
        await asyncio.to_thread(cluster.wait_ready)
        await same_logs(cluster, client)
        assert path.read_bytes() == good


# --- Forgetful ---


def wipe(cluster: LocalCluster, node_id: int) -> None:
    shutil.rmtree(cluster.node_directory(node_id) / "data")


@pytest.mark.long
async def test_a_wiped_voter_never_votes_under_its_old_identity(tmp_path: Path) -> None:
    """R29, D18: with the one node that knows everything away, it helps nobody to be elected."""

    async with running(tmp_path / "c", timeout_ms=4_000) as (cluster, client):
        leader = await asyncio.to_thread(cluster.leader_id)
        wiped, behind = leader % 3 + 1, (leader + 1) % 3 + 1
        await asyncio.to_thread(cluster.kill, behind)
        acked, error = await fill(client, 5)  # By the leader and the one to be wiped.
        assert (acked, str(error)) == (5, "None")
        await asyncio.to_thread(cluster.kill, wiped)
        await asyncio.to_thread(cluster.kill, leader)
        wipe(cluster, wiped)
        cluster.start(wiped, behind)
        # Two of three are up, and still nobody may lead: only the one away knows all.
        _, error = await fill(client, 1)
        assert isinstance(error, QuorumlogError)
        assert await asyncio.to_thread(cluster.leader_id) == 0
        cluster.start(leader)
        await asyncio.to_thread(wait_for, "a leader", cluster.leader_id)
        assert (await client.queue_offsets(TOPIC, [0]))[0].max_offset >= 5
        await same_logs(cluster, client)
        status = await client.admin.node_status(wiped)
        assert status.standing == "joining"
        assert "new id" in status.detail


def another_boot(cluster: LocalCluster, node_id: int) -> None:
    """As if the machine had lost power: the page cache of this node is gone."""
    data = cluster.node_directory(node_id) / "data"
    assert (data / "abort").exists(), "it was stopped, not killed"
    (data / "boot_id").write_text("00000000-0000-0000-0000-000000000000\ne3d274d5\n")


@pytest.mark.long
async def test_async_nodes_that_lost_power_one_by_one_lose_nothing(tmp_path: Path) -> None:
    """4.5: recovering nodes neither vote nor count until they are brought up to date."""

    async with (
        running(tmp_path / "c", flush="async") as (cluster, client),
        Workload(client) as load,
    ):
        for node_id in cluster.node_ids:
            await load.acked(200)
            await asyncio.to_thread(cluster.kill, node_id)
            another_boot(cluster, node_id)
            await load.acked(50)
            cluster.start(node_id)
            await asyncio.to_thread(cluster.wait_ready)
            target = (await client.admin.node_status()).commit_index
            await applied(client, node_id, target)
        await prove(cluster, client, await load.stop())


@pytest.mark.long
async def test_async_nodes_that_all_lost_power_wait_for_each_other(tmp_path: Path) -> None:
    """4.5: the longest log is elected once every voter is there, and the loss is reported."""

    async with running(tmp_path / "c", flush="async", timeout_ms=4_000) as (cluster, client):
        acked, _ = await fill(client, 20)
        assert acked == 20
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.kill, node_id)
            another_boot(cluster, node_id)
        cluster.start(1, 2)
        _, error = await fill(client, 1)
        assert isinstance(error, QuorumlogError)
        assert await asyncio.to_thread(cluster.leader_id) == 0
        cluster.start(3)
        await asyncio.to_thread(cluster.wait_ready)
        await same_logs(cluster, client)
        # By the node that began to lead first; on a busy machine another one may lead by now.
        statuses = [await client.admin.node_status(node_id) for node_id in cluster.node_ids]
        assert max(status.loss_from_index for status in statuses) >= 0
        await full_standing(cluster, client)
