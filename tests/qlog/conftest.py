"""The shared cluster for the commands that need one: each test has topics of its own."""

import pytest

from deploy.local import LocalCluster
from tests.qlog.running import Qlog


@pytest.fixture(scope="module")
def qlog(shared_cluster: LocalCluster) -> Qlog:
    """`qlog`, with three nodes that run."""
    return Qlog(shared_cluster)


@pytest.fixture
def topic(qlog: Qlog, request: pytest.FixtureRequest) -> str:
    """A topic with one queue, named after the test."""
    name = request.node.name.removeprefix("test_").translate(str.maketrans("[]", "--"))[:100]
    qlog("topic", "create", name, "--queues", 1)
    return str(name)
