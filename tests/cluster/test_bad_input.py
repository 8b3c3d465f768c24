"""Bad input at every port: a clear error, bounded memory, nothing lost."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import psutil
import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog.cluster.channels import stub
from quorumlog.cluster.nameserver import NameServers
from quorumlog.errors import (
    InvalidRequestError,
    QuorumlogError,
    TooLargeError,
    UnknownTopicError,
    WrongClusterError,
)
from quorumlog.pb import common_pb2, log_pb2
from tests import seeds
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC, Workload, prove
from tests.loopback import host_and_port
from tests.patience import PATIENCE_S

MIB = 1 << 20
IDLE_CONNECTION_COUNT = 10_000
GROWTH_SIZE_BYTES_MAX = 400 * MIB
"""Of the resident memory of the node that 10,000 idle connections hang on to."""


def resident_size_bytes(cluster: LocalCluster, node_id: int) -> int:
    pid = next(s.pid for s in cluster.status() if s.node_id == node_id)
    assert pid is not None, f"node {node_id} does not run"
    return int(psutil.Process(pid).memory_info().rss)


async def still_serves(client: quorumlog.Client) -> None:
    async with client.producer() as producer:
        receipt = await producer.send(TOPIC, b"still here", queue_id=2)
    batch = await client.pull(TOPIC, 2, receipt.queue_offset, consistency="linearizable")
    assert batch.bodies() == [b"still here"]


async def test_requests_that_make_no_sense_are_refused_by_name(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as (cluster, client):
        stranger = quorumlog.connect(cluster.bootstrap, cluster_id="another", timeout_ms=5_000)
        with pytest.raises(WrongClusterError) as wrong:
            async with stranger, stranger.producer() as producer:
                await producer.send(TOPIC, b"x")
        assert wrong.value.outcome.value == "not_applied"
        async with client.producer() as producer:
            with pytest.raises(UnknownTopicError, match="qlog topic create") as unknown:
                await producer.send("nowhere", b"x")
            assert unknown.value.outcome.value == "not_applied"
            with pytest.raises(TooLargeError) as large:
                await producer.send(TOPIC, bytes(5 * MIB))
            assert large.value.outcome.value == "not_applied"
            with pytest.raises(QuorumlogError):
                await producer.send(TOPIC, b"x", queue_id=77)
            with pytest.raises(QuorumlogError):
                await producer.send("rmq_sys_quorumlog", b"x")
        with pytest.raises((InvalidRequestError, QuorumlogError)):
            await client.get_message("no message id")
        await still_serves(client)


async def test_malformed_bytes_at_the_client_port(tmp_path: Path) -> None:
    """No protobuf, records that are none, too many of them: an answer with a code each time."""

    async with running(tmp_path / "c") as (cluster, client):
        leader = await asyncio.to_thread(cluster.leader_id)
        async with grpc.aio.insecure_channel(cluster.address(leader)) as channel:
            raw = channel.unary_unary("/quorumlog.v1.LogService/Append")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await raw(b"\xff" * 100, timeout=PATIENCE_S)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            log = stub(channel, log_pb2.DESCRIPTOR)
            for records, count in ((b"garbage" * 30, 1), (b"", 1), (b"", 0), (bytes(91), 1)):
                request = log_pb2.AppendRequest(records=records, record_count=count)
                with pytest.raises(grpc.aio.AioRpcError) as bad:
                    await log.Append(request, timeout=PATIENCE_S)
                trailer = dict(bad.value.trailing_metadata() or ())["quorumlog-error-bin"]
                error = common_pb2.Error.FromString(trailer)
                assert error.outcome == common_pb2.OUTCOME_NOT_APPLIED
                assert not error.retryable
                assert error.code
        await still_serves(client)


@pytest.mark.long
async def test_garbage_at_every_port(tmp_path: Path) -> None:
    """Random bytes, half handshakes and huge lengths change nothing for those who behave."""
    random = Random(seeds.drawn("tests/cluster/test_bad_input.py"))

    def throw(address: tuple[str, int]) -> None:
        for _ in range(50):
            with (
                socket.create_connection(address, timeout=PATIENCE_S) as link,
                contextlib.suppress(OSError),
            ):
                link.sendall(random.randbytes(random.choice((1, 4, 100, 5_000))))
                if random.random() < 0.5:
                    link.sendall(b"\xff\xff\xff\xff" + random.randbytes(50))

    async with running(tmp_path / "c") as (cluster, client), Workload(client) as load:
        await load.acked(50)
        before = {node: resident_size_bytes(cluster, node) for node in cluster.node_ids}
        for state in cluster.status():
            members = (await client.admin.node_status()).members
            peers = {member.node_id: member.peer_address for member in members}
            framed = cluster.framed_address(state.node_id)
            for address in (state.address, state.http_address, peers[state.node_id], framed):
                await asyncio.to_thread(throw, host_and_port(address))
        for address in await nameserver_addresses(cluster):
            await asyncio.to_thread(throw, host_and_port(address))
        await load.acked(50)
        for node, size_bytes in before.items():
            assert resident_size_bytes(cluster, node) < size_bytes + 64 * MIB
        await prove(cluster, client, await load.stop())


async def nameserver_addresses(cluster: LocalCluster) -> tuple[str, ...]:
    """Where the replicas of the name server talk to each other."""
    async with NameServers(cluster.bootstrap) as names:
        (members,) = {replica.members for replica in await names.status()}
    assert len(members) == len(cluster.node_ids), members
    return members


@pytest.fixture
def descriptors() -> Iterator[int]:
    """Room for this process's ends of many connections; returns how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTION_COUNT + 2_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    yield min(IDLE_CONNECTION_COUNT, min(wanted, hard) - 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
async def test_ten_thousand_idle_connections(tmp_path: Path, descriptors: int) -> None:
    """At the client port and at the peer port of the leader, and it goes on serving."""

    def connect(address: tuple[str, int], count: int) -> list[socket.socket]:
        # In turn: the listen queue is bounded, too.
        return [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(count)]

    async with running(tmp_path / "c") as (cluster, client):
        leader = await asyncio.to_thread(cluster.leader_id)
        members = (await client.admin.node_status()).members
        peer = next(member.peer_address for member in members if member.node_id == leader)
        before = await asyncio.to_thread(resident_size_bytes, cluster, leader)
        links = []
        try:
            for address in (cluster.address(leader), peer):
                links += await asyncio.to_thread(connect, host_and_port(address), descriptors // 2)
            await still_serves(client)
            after = await asyncio.to_thread(resident_size_bytes, cluster, leader)
            assert after - before < GROWTH_SIZE_BYTES_MAX
            assert await asyncio.to_thread(cluster.leader_id) == leader
        finally:
            for link in links:
                link.close()
        await still_serves(client)


@pytest.mark.long
async def test_readers_that_do_not_read_cost_bounded_memory(tmp_path: Path) -> None:
    """40 tails of 30 MB each that nobody reads: 1.2 GB, if the node did not wait for them."""

    async with running(tmp_path / "c") as (cluster, client):
        async with client.producer() as producer:
            for _ in range(300):
                await producer.enqueue(TOPIC, bytes(100_000), queue_id=0)
        leader = await asyncio.to_thread(cluster.leader_id)
        before = await asyncio.to_thread(resident_size_bytes, cluster, leader)
        async with grpc.aio.insecure_channel(cluster.address(leader)) as channel:
            log = stub(channel, log_pb2.DESCRIPTOR)
            request = log_pb2.TailRequest(topic=TOPIC, queue_id=0, max_size_bytes=MIB)
            tails = [log.Tail(request) for _ in range(40)]
            for tail in tails:
                assert (await tail.read()).record_count > 0  # Begun, and then left alone.
            await still_serves(client)
            after = await asyncio.to_thread(resident_size_bytes, cluster, leader)
            assert after - before < GROWTH_SIZE_BYTES_MAX
            for tail in tails:
                tail.cancel()
        await still_serves(client)
