"""The cluster with which most tests of Raft begin."""

import pytest

from tests.raft.cluster import Cluster, led


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes that node 1 leads."""
    return led()
