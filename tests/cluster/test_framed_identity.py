"""Nodes whose framed ports were mixed up, as proxies in front of them may do it."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from quorumlog import errors
from quorumlog.cluster.framed.port import OTHER_NODE

Run = Callable[[Coroutine[Any, Any, None]], None]
Place = tuple[LocalCluster, int]
"""A node of a cluster."""


@contextmanager
def swapped(one: Place, other: Place) -> Iterator[None]:
    """Start the clusters of two nodes, each of which advertises the framed port of the other."""
    for (cluster, node), (there, named) in ((one, other), (other, one)):
        path = cluster.node_directory(node) / "node.toml"
        setting = f'advertise_framed = "{there.framed_address(named)}"\n'
        path.write_text(setting + path.read_text("utf-8"), "utf-8")
    with ExitStack() as stack:
        for cluster in {id(place[0]): place[0] for place in (one, other)}.values():
            stack.callback(cluster.stop)
            cluster.start()
            cluster.wait_ready()
        yield


async def _works_over_grpc_alone(bootstrap: str) -> None:
    async with quorumlog.connect(bootstrap) as client:
        await client.admin.create_topic("orders", queue_count=1)
        producer = client.producer()
        for at in range(20):
            receipt = await producer.send("orders", b"%d" % at)
            assert receipt.attempts == 1
        pulled = await client.pull("orders", 0, 0)
        assert [message.body for message in pulled.messages] == [b"%d" % at for at in range(20)]
        stats = client.stats()
        assert (stats.framed_connections, stats.framed_other_nodes) == (0, 1)
    async with quorumlog.connect(bootstrap, transport="framed") as client:
        with pytest.raises(errors.UnimplementedError, match="advertise_framed") as caught:
            await client.pull("orders", 0, 0)
        assert caught.value.code == OTHER_NODE


def test_two_nodes_of_a_cluster_with_each_others_framed_ports(tmp_path: Path, run: Run) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 2)
    with swapped((cluster, 1), (cluster, 2)):
        run(_works_over_grpc_alone(cluster.bootstrap))


def test_two_clusters_with_each_others_framed_ports(tmp_path: Path, run: Run) -> None:
    clusters = [LocalCluster.create(tmp_path / name, 1) for name in ("a", "b")]
    with swapped((clusters[0], 1), (clusters[1], 1)):
        for cluster in clusters:
            run(_works_over_grpc_alone(cluster.bootstrap))
