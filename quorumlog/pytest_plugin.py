"""The plugin of pytest: a cluster for the tests of a user, as the fixture `quorumlog_cluster`.

Owns its life, a session of pytest long; must load nothing of the client before a test asks for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorumlog.testing import SyncCluster


@pytest.fixture(scope="session")
def quorumlog_cluster() -> Iterator["SyncCluster"]:
    """Run three real nodes, for all tests of the session that take this fixture.

    Tests share them and what they store: give each test topics of its own, and one that kills
    nodes a cluster of its own (`quorumlog.testing.sync_cluster()`).
    """
    from quorumlog.testing import sync_cluster

    with sync_cluster() as cluster:
        yield cluster
