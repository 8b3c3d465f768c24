"""One cluster of three real nodes for all modules of a test process that are content with it.

Owns when it starts, and that each module finds all nodes ready; must not know any test. A test has
topics and groups of its own, named after it, and stops no node. Modules whose subject is a change
of the cluster make their own.
"""

from collections.abc import Iterator

import pytest

from deploy.local import LocalCluster


@pytest.fixture(scope="session")
def shared_nodes(
    libraries_in_use: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start the nodes with the first module that asks; `tests/leaks.py` knows of them."""
    directory = tmp_path_factory.mktemp("shared") / "c"
    with LocalCluster.create(directory, 3, settings={"file_size_bytes": "16MiB"}) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def shared_cluster(shared_nodes: LocalCluster) -> LocalCluster:
    """Give the nodes, all of them ready; a node that a test left dead starts again."""
    for node_id in shared_nodes.node_ids:
        if not shared_nodes.is_alive(node_id):
            shared_nodes.restart(node_id)
    shared_nodes.wait_ready()
    return shared_nodes
