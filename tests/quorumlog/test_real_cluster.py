"""The asynchronous and the blocking client against real nodes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from quorumlog import errors


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The logs of the nodes are shown when a test fails."""
    yield tmp_path
    for log in sorted(tmp_path.glob("node-*/log")):
        print(log, log.read_text()[-2_000:], sep="\n")


async def read_bodies(client: quorumlog.Client, **options: Any) -> list[bytes]:
    return [m.body async for m in client.consume("orders", until="end", **options)]


async def test_everything_works_on_real_nodes(directory: Path) -> None:
    async with (
        quorumlog.testing.cluster(directory=directory) as cluster,
        cluster.client() as client,
    ):
        await client.admin.create_topic("orders", queue_count=4)
        producer = client.producer()
        receipt = await producer.send("orders", b"hello", key="k1", tag="t", properties={"a": "b"})
        assert receipt.durability is quorumlog.Durability.QUORUM_DISK
        assert len(receipt.synced_by) >= 2
        batch = await producer.send_batch("orders", [b"1", b"2", b"3"], queue_id=2)
        assert [r.queue_offset for r in batch] == list(
            range(batch[0].queue_offset, batch[0].queue_offset + 3)
        )
        message = await client.get_message(receipt.message_id)
        assert (message.body, message.tag, message.properties["a"]) == (b"hello", "t", "b")
        assert message.log_position == receipt.log_position
        assert message.queue_offset == receipt.queue_offset
        for r in batch:
            assert (await client.get_message(r.message_id)).log_position == r.log_position
        assert [m.body for m in await client.query_by_key("orders", "k1")] == [b"hello"]
        assert sorted(await read_bodies(client)) == [b"1", b"2", b"3", b"hello"]
        assert await read_bodies(client, tags=["t"]) == [b"hello"]
        assert await read_bodies(client, consistency="linearizable", tags=["t"]) == [b"hello"]
        for node_id in cluster.node_ids:
            bodies = await read_bodies(client, node_id=node_id, at_least_index=batch[0].index)
            assert sorted(bodies) == [b"1", b"2", b"3", b"hello"]
        offset = await client.offset_by_time("orders", receipt.queue_id, receipt.store_unix_ms)
        assert offset == receipt.queue_offset
        with pytest.raises(errors.UnknownTopicError):
            await producer.send("none", b"")
        with pytest.raises(errors.UnknownTopicError):
            await client.pull("none", 0, 0)
        with pytest.raises(errors.NotFoundError):
            await producer.send("orders", b"", queue_id=99)
        assert (await producer.send("orders", b"on")).attempts == 1
        with pytest.raises(errors.WrongClusterError):
            await quorumlog.connect(cluster.bootstrap, cluster_id="other").start()
