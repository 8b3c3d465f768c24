"""Clusters for tests: what a program is told when one cannot do what it asks for."""

import asyncio
import socket
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from quorumlog import errors
from quorumlog.testing import Cluster


def test_a_node_that_cannot_start_again_says_so_in_the_words_of_the_client(tmp_path: Path) -> None:
    local = LocalCluster.create(tmp_path / "c", 1)
    cluster, port = Cluster(local), int(local.address(1).rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(errors.QuorumlogError, match=f"port {port} of node 1") as caught,
    ):
        asyncio.run(cluster.restart(1))
    assert caught.value.code == "local.port_taken"
