"""A three-node cluster that official clients of RocketMQ 5 talk to, and the clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.local import LocalCluster
from quorumlog.sync import connect
from tests.compat.drivers import Client

TOPIC_QUEUE_COUNT: Final = 4


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """The shared one: each test has topics and groups of its own."""
    return shared_cluster


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A new topic, named as the test."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[:100]
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic(name, queue_count=TOPIC_QUEUE_COUNT)
    return name


@pytest.fixture(params=["python", pytest.param("node", marks=pytest.mark.long)])
def language(request: pytest.FixtureRequest) -> str:
    """Each client does the same."""
    return str(request.param)


@pytest.fixture
def client(cluster: LocalCluster, language: str, tmp_path: Path) -> Iterator[Client]:
    """One client process, connected to any node."""
    with Client(language, cluster.address(1), tmp_path / "home") as found:
        yield found
