"""A real node whose disk is slow, or stops to answer: no ack follows, and it ends by itself."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from chaos.errors import NotPossibleHereError
from chaos.shim import Shim, SystemCall, compile_shim

from store.durability.fatal import EXIT_SYNC_FAILED
from tests import missing
from tests.node.processes import SingleNode

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_shim(tmp_path_factory.mktemp("shim"))
    except NotPossibleHereError as reason:
        missing.injector(reason)


@pytest.fixture
def shim(library: Path, tmp_path: Path) -> Iterator[Shim]:
    made = Shim(library, tmp_path / "data", tmp_path / "control", None)
    yield made
    made.close()


@pytest.mark.parametrize("replication", ["raft", "async_master"])
def test_a_disk_that_hangs_ends_the_node_without_an_ack(
    tmp_path: Path, shim: Shim, replication: str
) -> None:
    """The loop itself hangs. The scenario `hanging-sync` of chaos-tests has the flush thread."""
    node = SingleNode(
        tmp_path / "data", sync_hang_limit_ms="5s", replication=replication, copies="1"
    )
    with ExitStack() as stack:
        stack.push(node)
        node.start(shim.environment())
        with node.client() as client:
            client.create_topic("orders")
            for _ in range(20):
                client.append("orders", b"kept")
            before = shim.hits(SystemCall.SYNC)
            shim.hang(SystemCall.SYNC)
            with pytest.raises(grpc.RpcError):
                client.append("orders", b"never acked")
        assert node.wait_end() == EXIT_SYNC_FAILED
        assert shim.hits(SystemCall.SYNC) > before
        shim.clear()
        if replication != "raft":
            return  # A master that starts again is a slave until somebody promotes it.
        node.start(shim.environment())
        with node.client() as client:
            assert client.pull("orders").record_count >= 20


@pytest.mark.parametrize("replication", ["raft", "async_master"])
def test_a_new_node_is_ready_when_the_first_file_of_its_log_is(
    tmp_path: Path, shim: Shim, replication: str
) -> None:
    """However long the disk takes to make it: the first append is never refused."""
    node = SingleNode(tmp_path / "data", replication=replication, copies="1")
    with ExitStack() as stack:
        stack.push(node)
        shim.delay(SystemCall.ALLOCATE, 400)
        node.start(shim.environment())
        with node.client() as client:
            client.create_topic("orders")
            assert client.append("orders", b"first").record_count == 1
