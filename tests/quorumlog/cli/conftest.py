"""A cluster of real processes for the commands that need one.

One cluster serves a module: each test has topics of its own, and leaves every node up.
"""

from collections.abc import Iterator

import pytest

from deploy.local import LocalCluster
from tests.quorumlog.cli.running import Qlog


@pytest.fixture(scope="module")
def qlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qlog]:
    """`qlog`, with three nodes that run."""
    directory = tmp_path_factory.mktemp("cluster")
    settings = {"file_size_bytes": "16MiB"}
    with LocalCluster.create(directory, 3, settings=settings) as nodes:
        yield Qlog(nodes)


@pytest.fixture
def topic(qlog: Qlog, request: pytest.FixtureRequest) -> str:
    """A topic with one queue, named after the test."""
    name = request.node.name.removeprefix("test_").translate(str.maketrans("[]", "--"))[:100]
    qlog("topic", "create", name, "--queues", 1)
    return str(name)
