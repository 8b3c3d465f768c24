"""Nodes whose framed ports were mixed up, as proxies in front of them may do it."""

from contextlib import ExitStack
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog import errors
from quorumlog.cluster.framed.port import OTHER_NODE


async def test_two_clusters_with_each_others_framed_ports(tmp_path: Path) -> None:
    clusters = [LocalCluster.create(tmp_path / name, 1) for name in ("a", "b")]
    with ExitStack() as stack:
        for cluster, other in zip(clusters, reversed(clusters), strict=True):
            path = cluster.node_directory(1) / "node.toml"
            setting = f'advertise_framed = "{other.framed_address(1)}"\n'
            path.write_text(setting + path.read_text("utf-8"), "utf-8")
            stack.enter_context(cluster)
        for cluster in clusters:
            await works_over_grpc_alone(cluster.bootstrap)


async def works_over_grpc_alone(bootstrap: str) -> None:
    async with quorumlog.connect(bootstrap) as client:
        await client.admin.create_topic("orders", queue_count=1)
        producer = client.producer()
        for at in range(20):
            receipt = await producer.send("orders", b"%d" % at)
            assert receipt.attempts == 1
        pulled = await client.pull("orders", 0, 0)
        assert pulled.bodies() == [b"%d" % at for at in range(20)]
        stats = client.stats()
        assert (stats.framed_connections, stats.framed_other_nodes) == (0, 1)
    async with quorumlog.connect(bootstrap, transport="framed") as client:
        with pytest.raises(errors.UnimplementedError, match="advertise_framed") as caught:
            await client.pull("orders", 0, 0)
        assert caught.value.code == OTHER_NODE
