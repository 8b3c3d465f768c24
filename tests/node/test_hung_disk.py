"""A real node whose disk is slow, or stops to answer: no ack follows, and it ends by itself."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from chaos.errors import NotPossibleHereError
from chaos.shim import Shim, SystemCall, compile_shim

from quorumlog.pb import log_pb2
from store.durability.fatal import EXIT_SYNC_FAILED
from store.record.message import encode_message
from tests import missing
from tests.node.processes import NodeClient, SingleNode
from tests.patience import wait_for

pytestmark = pytest.mark.long
SAID = "a sync has been running"


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


def make_syncs_slow(client: NodeClient, shim: Shim) -> None:
    """After slow syncs the node leaves them to its flush thread."""
    shim.delay(SystemCall.SYNC, 20)
    for _ in range(20):
        client.append("orders", b"kept")


def warnings_of_a_sync(node: SingleNode) -> list[str]:
    """Only those: the disk of this machine may be fuller than a node likes."""
    return [told for told in node.status()["warnings"] if SAID in told]


@pytest.mark.parametrize(
    ("replication", "is_slow_before"),
    [("raft", False), ("raft", True), ("async_master", True)],
)
def test_a_disk_that_hangs_ends_the_node_without_an_ack(
    tmp_path: Path, shim: Shim, replication: str, is_slow_before: bool
) -> None:
    """It is the flush thread that hangs, or the loop itself."""
    mode = {"replication": replication, "copies": "1"}
    node = SingleNode(tmp_path / "data", sync_hang_limit_ms="5s", **mode)
    with ExitStack() as stack:
        stack.push(node)
        node.start(shim.environment())
        with node.client() as client:
            client.create_topic("orders")
            for _ in range(20):
                client.append("orders", b"kept")
            if is_slow_before:
                make_syncs_slow(client, shim)
            before = shim.hits(SystemCall.SYNC)
            shim.hang(SystemCall.SYNC)
            with pytest.raises(grpc.RpcError):
                client.append("orders", b"never acked")
        assert node.wait_end() == EXIT_SYNC_FAILED
        assert shim.hits(SystemCall.SYNC) > before
        assert "because a sync hangs" in node.log_path.read_text()
        (dump,) = node.directory.glob("dump-*.txt")
        assert "SyncHangsError" in dump.read_text()
        shim.clear()
        if replication != "raft":
            return  # A master that starts again is a slave until somebody promotes it.
        node.start(shim.environment())
        with node.client() as client:
            assert client.pull("orders").record_count >= 20


def test_a_disk_that_hangs_for_a_while_is_told_and_costs_nothing_but_time(
    tmp_path: Path, shim: Shim
) -> None:
    """Meanwhile the loop turns and nothing is acked; afterwards the node goes on."""
    node = SingleNode(tmp_path / "data")
    with ExitStack() as stack:
        stack.push(node)
        node.start(shim.environment())
        with node.client() as client:
            client.create_topic("orders")
            make_syncs_slow(client, shim)
            shim.hang(SystemCall.SYNC)
            records = encode_message("orders", 0, b"late", {})
            waiting = client.log.Append.future(
                log_pb2.AppendRequest(records=records, record_count=1)
            )
            wait_for("a warning", lambda: warnings_of_a_sync(node))
            assert SAID in client.status().detail
            assert not waiting.done() or waiting.exception() is not None, "it was acked"
            shim.clear()
            client.append("orders", b"later")
            wait_for("no warning any more", lambda: not warnings_of_a_sync(node))
            assert SAID not in client.status().detail
            assert client.pull("orders").record_count >= 21
        assert node.stop() == 0
        said = node.log_path.read_text()
        assert "a sync hangs or is slow" in said
        assert "a slow sync has ended" in said


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
