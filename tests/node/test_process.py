"""A node as a real process: it serves, stops without a loss, and every other end has its code."""

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from node.metrics import METRICS, page
from node.monitoring.metric import PREFIX
from node.runtime.fail_stop import DUMP_COUNT_MAX, FailStop
from quorumlog import sync
from quorumlog.pb import admin_pb2, common_pb2, log_pb2
from tests.node.processes import NodeClient, SingleNode, run_to_end, typed_error
from tests.patience import PATIENCE_S, wait_for
from tests.store.listing import SMALL_BYTES, disk_size_bytes
from tests.tidy import repository


@pytest.fixture
def node(tmp_path: Path) -> SingleNode:
    """A node that does not run yet."""
    return SingleNode(tmp_path / "data")


@pytest.mark.usefixtures("nodes_started_by_name")
def test_a_node_appends_reads_stops_and_restarts_with_everything(
    node: SingleNode,
) -> None:
    with node:
        with node.client() as client:
            client.create_topic("orders")
            receipt = client.append("orders", b"one", b"two", producer_id=7, sequence=0)
            assert receipt.durability == common_pb2.DURABILITY_QUORUM_DISK
            assert list(receipt.synced_by) == [1]
            again = client.append("orders", b"one", b"two", producer_id=7, sequence=0)
            assert (again.is_duplicate, again.index) == (True, receipt.index)
            records = client.pull("orders").records
        assert node.stop() == 0
        assert not (node.directory / "node.json").exists()
        node.start()
        with node.client() as client:
            response = client.pull("orders")
            assert (response.records, response.record_count, response.max_offset) == (records, 2, 2)
            again = client.append("orders", b"one", b"two", producer_id=7, sequence=0)
            assert (again.is_duplicate, again.index) == (True, receipt.index)


def test_a_node_with_little_in_it_is_small_on_disk(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "data", file_size_bytes="1GiB") as node:
        with sync.connect(node.node_json()["address"]) as client:
            client.admin.create_topic("pies")
            client.producer().send("pies", b"one pie", key="order-17")
        assert disk_size_bytes(tmp_path) <= SMALL_BYTES
        assert node.stop() == 0
        assert disk_size_bytes(tmp_path) <= SMALL_BYTES


def test_the_status_and_the_digest_name_the_log(node: SingleNode) -> None:
    with node, node.client() as client:
        client.create_topic("orders")
        receipt = client.append("orders", b"x")
        status = client.status()
        assert (status.role, status.leader_id, status.node_id) == ("leader", 1, 1)
        assert (status.flush, status.standing) == ("sync", "full")
        assert status.disk_state in ("ok", "warn"), "as this machine's disk is"
        assert status.commit_index == status.applied_index == receipt.index
        assert status.appends_total == 1
        assert [(m.node_id, m.is_voter, m.is_connected) for m in status.members] == [
            (1, True, True)
        ]
        assert node.process is not None
        assert status.pid == node.process.pid
        digest = client.admin.ChainDigest(admin_pb2.ChainDigestRequest(index=-1))
        assert (digest.index, digest.term) == (status.applied_index, status.term)
        assert digest.end_log_position == status.end_log_position
        older = client.admin.ChainDigest(admin_pb2.ChainDigestRequest(index=0))
        assert older.chain_crc != digest.chain_crc
        with pytest.raises(grpc.RpcError) as caught:
            client.admin.ChainDigest(admin_pb2.ChainDigestRequest(index=999))
        assert typed_error(caught.value).code == "store.out_of_range"


def test_the_pages_of_http(node: SingleNode) -> None:
    with node:
        with node.client() as client:
            client.create_topic("orders")
            client.append("orders", b"x", b"y")
        assert node.http("/live") == (200, {"ok": True, "reason": "serving"})
        assert node.http("/ready") == (200, {"ok": True, "reason": "this node leads"})
        status, text = node.http("/metrics")
        assert status == 200
        shown = {
            line.split()[2] for line in text.splitlines() if line.startswith("# TYPE " + PREFIX)
        }
        expected = {
            PREFIX + name + ("_total" if spec.kind == "counter" else "")
            for name, spec in METRICS.items()
        }
        assert shown == expected
        assert f"{PREFIX}acked_records_total 2.0" in text.splitlines()
        assert f'{PREFIX}role{{role="leader"}} 1.0' in text.splitlines()


def test_a_stop_lets_waiting_readers_go_at_once(node: SingleNode) -> None:
    with node, node.client() as client:
        client.create_topic("orders")
        pull = client.log.Pull.future(log_pb2.PullRequest(topic="orders", wait_ms=30_000))
        tail = client.log.Tail(log_pb2.TailRequest(topic="orders"))
        wait_for(
            "two readers that wait",
            lambda: f"{PREFIX}waiting_readers 2.0" in node.http("/metrics")[1].splitlines(),
        )
        assert node.stop() == 0
        assert typed_error(pull.exception()).code == "node.shutting_down"
        with pytest.raises(grpc.RpcError):
            list(tail)


# --- Other ends ---


def test_a_second_process_on_the_directory_is_refused(node: SingleNode) -> None:
    with node:
        done = run_to_end(node.directory)
        assert done.returncode == 75, done.stderr
        assert "store.locked" in done.stderr
        assert node.status()["ready"]


def test_a_directory_that_cannot_be_made_ends_as_any_start_that_may_be_tried_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    done = run_to_end(tmp_path / "file" / "data")
    assert done.returncode == 75, done.stderr
    assert '"event": "cannot start"' in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["listen", "listen_framed", "peer_listen", "http_listen"])
def test_a_port_that_is_taken_is_named(node: SingleNode, tmp_path: Path, name: str) -> None:
    key = {
        "listen_framed": "framed_address",
        "listen": "address",
        "peer_listen": "peer_address",
        "http_listen": "http_address",
    }
    with node:
        taken = node.node_json()[key[name]]
        if name == "listen_framed":
            taken = f"127.0.0.1{taken}"
        done = run_to_end(tmp_path / "other", None, **{name: taken})
        assert done.returncode == 75, done.stderr
        assert "node.port_taken" in done.stderr
        assert taken in done.stderr


@pytest.mark.long
def test_a_directory_of_another_node_or_cluster_is_refused(node: SingleNode) -> None:
    with node:
        assert node.stop() == 0
    for name, value in (("node_id", "2"), ("cluster_id", "other")):
        done = run_to_end(node.directory, None, **{name: value})
        assert done.returncode == 65, done.stderr
        assert "node.identity_mismatch" in done.stderr


def test_wrong_settings_end_it_before_anything_is_touched(tmp_path: Path) -> None:
    done = run_to_end(tmp_path / "data", flush="never", heartbeat_ms="1")
    assert done.returncode == 78
    assert done.stderr.startswith("error: 2 settings are wrong")
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_without_assertions_it_does_not_start(tmp_path: Path) -> None:
    done = run_to_end(tmp_path / "data", {"PYTHONOPTIMIZE": "1"})
    assert done.returncode == 78
    assert "assertions are off" in done.stderr
    assert not (tmp_path / "data").exists()


def append_until_it_fails(client: NodeClient) -> int:
    """Append one after the other; return how many were acked."""
    acked = 0
    try:
        client.create_topic("orders")
        while acked < 1_000:
            client.append("orders", b"x")
            acked += 1
    except grpc.RpcError:
        return acked
    raise AssertionError("no append failed")


def test_a_failed_sync_ends_it_and_no_append_is_acked(node: SingleNode) -> None:
    with node:
        node.stop()
        # Armed when the store opens. What comes before the first append needs far fewer syncs than
        # that, and the appends need more: each waits for one.
        node.start({"QUORUMLOG_FAILPOINTS": "fs.sync=EIO@400+"})
        with node.client() as client:
            acked = append_until_it_fails(client)
        assert node.wait_end() == 74
        (dump,) = node.directory.glob("dump-*.txt")
        assert dump.stat().st_mode & 0o777 == 0o600
        text = dump.read_text()
        for word in ("SyncFailedError", '"commit_index"', "last inputs", "hread 0x"):
            assert word in text
        node.start()
        with node.client() as client:
            assert client.pull("orders").record_count >= acked > 0


@pytest.mark.long
def test_a_second_signal_does_not_wait(node: SingleNode) -> None:
    with node:
        node.signal(signal.SIGTERM)
        node.process.send(signal.SIGTERM) if node.process else None
        assert node.wait_end() == 0
        assert "stopped" in node.log_path.read_text()


# --- Fail stop by itself ---

_FAIL_STOP = """
import pathlib, sys
from node.runtime.fail_stop import FailStop
stop = FailStop(pathlib.Path(sys.argv[1]))
stop.inputs.append((1, 2, "VOTE_REPLY"))
stop.describe = lambda: {"term": 7} if len(sys.argv) < 3 else 1 / 0
try:
    assert 3 < 2, "offset 3 > 2"
except AssertionError as error:
    stop(error)
"""


def fail(directory: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run a process that breaks an invariant."""
    return subprocess.run(
        [sys.executable, "-c", _FAIL_STOP, str(directory), *more],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_broken_invariant_leaves_a_dump_and_code_70(tmp_path: Path) -> None:
    done = fail(tmp_path)
    assert done.returncode == 70
    (dump,) = tmp_path.glob("dump-*.txt")
    text = dump.read_text()
    for word in ("offset 3 > 2", '"term": 7', "VOTE_REPLY", "hread 0x"):
        assert word in text
    assert str(dump) in done.stderr
    assert "Nothing after it was acknowledged" in done.stderr


@pytest.mark.long
def test_a_dump_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    done = fail(tmp_path / "gone")
    assert done.returncode == 70
    assert "offset 3 > 2" in done.stderr
    assert "No dump was written" in done.stderr
    assert fail(tmp_path, "broken state").returncode == 70
    (dump,) = tmp_path.glob("dump-*.txt")
    assert "could not be described" in dump.read_text()


def test_dumps_do_not_fill_the_disk(tmp_path: Path) -> None:
    class EndedError(Exception):
        pass

    def end(_code: int) -> None:
        raise EndedError

    for number in range(DUMP_COUNT_MAX + 3):
        (tmp_path / f"dump-{number:08x}.txt").write_text("old")
    with pytest.raises(EndedError):
        FailStop(tmp_path, end)(AssertionError("x"))  # type: ignore[arg-type]
    assert len(list(tmp_path.glob("dump-*.txt"))) == DUMP_COUNT_MAX


def test_the_page_of_metrics_is_current() -> None:
    assert repository.text("docs/metrics.md") == page(), (
        "run: python -m node.metrics > docs/metrics.md"
    )


@pytest.mark.long
def test_a_node_without_the_framed_port_advertises_none(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "data", listen_framed="off") as node, node.client() as client:
        assert node.status()["framed_address"] == ""
        assert client.log.Route(log_pb2.RouteRequest(), timeout=10).framed_address == ""
    advertising = SingleNode(tmp_path / "data", advertise_framed="log1.example:9081")
    with advertising as node, node.client() as client:
        route = client.log.Route(log_pb2.RouteRequest(), timeout=10)
        assert route.framed_address == "log1.example:9081"


@pytest.mark.long
def test_a_fatal_signal_leaves_all_stacks_on_stderr(node: SingleNode) -> None:
    with node:
        node.signal(signal.SIGABRT)
        assert node.wait_end() == -signal.SIGABRT
        log = node.log_path.read_text()
        assert "Fatal Python error: Aborted" in log
        assert 'lifecycle.py", line' in log, "what the loop did"
