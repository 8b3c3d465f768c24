"""A paused leader that wakes up serves nothing stale. What waited there to be appended is the
subject of the scenario `pause-leader`."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from quorumlog.cluster.channels import stub
from quorumlog.errors import from_rpc
from quorumlog.pb import common_pb2, log_pb2
from quorumlog.records.batch import decode_records
from tests.cluster.conftest import running
from tests.cluster.workload import TOPIC
from tests.patience import PATIENCE_S

READ_COUNT = 20
DENIED = frozenset({"node.not_leader", "node.not_ready", "node.read_failed", "node.read_timeout"})
"""What a leader may say that was deposed in its sleep."""


async def read_at(log: Any, consistency: common_pb2.Consistency) -> list[bytes] | str:
    """Read at one node and no other: what it has, or the code with which it denies."""
    request = log_pb2.PullRequest(topic=TOPIC, consistency=consistency)
    try:
        response = await log.Pull(request, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return from_rpc(error, "the old leader").code
    return [message.body for message in decode_records(response.records)]


@pytest.mark.long
async def test_a_paused_leader_serves_no_stale_linearizable_read(tmp_path: Path) -> None:
    """Reads wait at the old leader while it sleeps. When it wakes up each is answered there: with
    everything that was acked meanwhile, or with a denial."""
    fresh = [b"before", b"after"]

    async with running(tmp_path / "c") as (cluster, client), client.producer() as producer:
        await producer.send(TOPIC, "before", queue_id=0)
        old = await asyncio.to_thread(cluster.leader_id)
        async with grpc.aio.insecure_channel(cluster.address(old)) as channel:
            log = stub(channel, log_pb2.DESCRIPTOR)
            linearizable = common_pb2.CONSISTENCY_LINEARIZABLE
            assert await read_at(log, linearizable) == [b"before"], "it is connected"
            await asyncio.to_thread(cluster.pause, old)
            receipt = await producer.send(TOPIC, "after", queue_id=0)
            assert receipt.term > 1
            there = [read_at(log, linearizable) for _ in range(READ_COUNT)]
            waiting = [asyncio.create_task(one) for one in there]
            batch = await client.pull(TOPIC, 0, 0, consistency="linearizable")
            assert batch.bodies() == fresh
            assert not any(read.done() for read in waiting), "it sleeps"
            await asyncio.to_thread(cluster.resume, old)
            answers = await asyncio.gather(*waiting)
            assert all(answer == fresh or answer in DENIED for answer in answers), answers
