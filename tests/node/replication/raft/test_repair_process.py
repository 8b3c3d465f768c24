"""Damage on the disk of a real node: repaired from its peers, or refused by name without them."""

import shutil
from pathlib import Path

import grpc
import pytest

from deploy.local import LocalCluster
from quorumlog.pb import admin_pb2 as pb
from tests.node.processes import SingleNode, connected, run_to_end
from tests.patience import wait_for
from tests.store.overwrites import flip as flip_bit

MARK = b"here is the damage"


def flip(directory: Path) -> None:
    """Change one bit of the body that holds MARK in the log below a directory."""
    for path in directory.glob("dledger-*/data/*"):
        at = path.read_bytes().find(MARK)
        if at >= 0:
            flip_bit(path, at + 3)
            return
    raise AssertionError(f"{MARK!r} is not in the log of {directory}")


def wait_for_entries(cluster: LocalCluster, applied: int, *nodes: int) -> None:
    """Wait until these nodes have applied an entry."""
    for node in nodes:
        with connected(cluster.address(node)) as client:
            wait_for(f"node {node}", lambda: client.status().applied_index >= applied)


def test_a_damaged_follower_repairs_itself_before_it_takes_part(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings={"file_size_bytes": "8MiB"}) as cluster:
        leader = cluster.leader_id()
        damaged = leader % 3 + 1
        with connected(cluster.address(leader)) as client:
            client.create_topic("orders")
            for body in (b"before", MARK, b"behind"):
                client.append("orders", body)
            applied = client.status().applied_index
            wait_for_entries(cluster, applied, *cluster.node_ids)
            cluster.stop(damaged)
            flip(cluster.node_directory(damaged) / "data")
            cluster.start(damaged)
            cluster.wait_ready()
            wait_for_entries(cluster, applied, damaged)
            with connected(cluster.address(damaged)) as repaired:
                request = pb.ChainDigestRequest(index=applied)
                assert repaired.admin.ChainDigest(request) == client.admin.ChainDigest(request)
                mine = repaired.pull("orders", consistency=3)
                assert (mine.records, mine.record_count) == (client.pull("orders").records, 3)
        log = cluster.log_path(damaged).read_text()
        assert "the log is damaged" in log
        assert "is repaired" in log


@pytest.mark.long
def test_a_damaged_node_waits_for_its_peers_and_says_so(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings={"file_size_bytes": "8MiB"}) as cluster:
        with connected(cluster.address(cluster.leader_id())) as client:
            client.create_topic("orders")
            client.append("orders", MARK)
            applied = client.status().applied_index
        wait_for_entries(cluster, applied, 1)
        cluster.stop()
        flip(cluster.node_directory(1) / "data")
        cluster.start(1)
        wait_for("the reason", lambda: "no peer is connected" in cluster.status()[0].detail)
        assert not cluster.status()[0].is_ready
        assert cluster.stop() == []
        cluster.start()
        cluster.wait_ready()
        wait_for_entries(cluster, applied, 1)
        with connected(cluster.address(1)) as one:
            assert one.pull("orders", consistency=3).record_count == 1


@pytest.mark.long
def test_a_leader_that_meets_damage_ends_and_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    """The damage lies far back, where opening does not look; a follower without memory needs it."""
    settings = {"file_size_bytes": "64KiB", "batch_size_bytes_max": "16KiB"}
    with LocalCluster.create(tmp_path, 3, settings=settings) as cluster:
        with connected(cluster.address(cluster.leader_id())) as client:
            client.create_topic("orders")
            client.append("orders", MARK)
            for _ in range(30):
                client.append("orders", bytes(8 * 1024))
            applied = client.status().applied_index
        wait_for_entries(cluster, applied, *cluster.node_ids)
        cluster.stop(1)
        flip(cluster.node_directory(1) / "data")
        cluster.start(1)
        cluster.wait_ready()
        with connected(cluster.address(cluster.leader_id())) as client:
            client.admin.TransferLeadership(pb.TransferLeadershipRequest(node_id=1))
        wait_for("node 1 to lead", lambda: cluster.leader_id() == 1)
        cluster.stop(2)
        shutil.rmtree(cluster.node_directory(2) / "data")
        cluster.start(2)
        wait_for("node 1 to meet the damage", lambda: not cluster.is_alive(1))
        assert cluster.exit_code(1) == 70
        assert "what was committed is damaged" in cluster.log_path(1).read_text()
        cluster.start(1)
        cluster.wait_ready()
        assert "is repaired" in cluster.log_path(1).read_text()
        wait_for_entries(cluster, applied, *cluster.node_ids)
        for node in cluster.node_ids:
            with connected(cluster.address(node)) as one:
                assert one.pull("orders", consistency=3, max_count=1).record_count == 1


@pytest.mark.long
def test_a_directory_of_another_kind_spoils_no_founding(tmp_path: Path) -> None:
    """Its node ends before any peer hears of it: else they would take it for a member with entries,
    and join a cluster that there is not."""
    cluster = LocalCluster.create(tmp_path, 3, settings={"file_size_bytes": "8MiB"})
    data = cluster.node_directory(3) / "data"
    data.mkdir()
    (data / "haReplica.0").write_text("of a master-slave group")
    try:
        cluster.start(3)
        wait_for("node 3 to end", lambda: not cluster.is_alive(3))
        assert cluster.exit_code(3) == 65
        assert "listening" not in cluster.log_path(3).read_text()
        cluster.start(1, 2)
        wait_for("the two to wait", lambda: "hear of node 3" in cluster.status()[0].detail)
        cluster.start(3)
        wait_for("node 3 to end again", lambda: not cluster.is_alive(3))
        shutil.rmtree(data)
        cluster.start(3)
        cluster.wait_ready()
    finally:
        cluster.stop()


@pytest.mark.long
def test_without_peers_damage_is_refused_by_name(tmp_path: Path) -> None:
    node = SingleNode(tmp_path / "data")
    with node:
        with node.client() as client:
            client.create_topic("orders")
            client.append("orders", MARK)
        assert node.stop() == 0
        flip(node.directory)
        done = run_to_end(node.directory)
        assert done.returncode == 65, done.stderr
        assert "store.corruption" in done.stderr
        assert "qlog store repair" in done.stderr


@pytest.mark.long
def test_damage_that_a_read_meets_is_an_error_and_never_a_message(tmp_path: Path) -> None:
    """Without peers nothing can be fetched; the node goes on with the rest."""
    node = SingleNode(tmp_path / "data", file_size_bytes="64KiB", batch_size_bytes_max="16KiB")
    with node:
        with node.client() as client:
            client.create_topic("orders")
            client.append("orders", MARK)
            for _ in range(20):
                client.append("orders", bytes(8 * 1024))
        assert node.stop() == 0
        flip(node.directory)
        node.start()  # What is far below the mark is looked at when it is read.
        with node.client() as client:
            with pytest.raises(grpc.RpcError) as caught:
                client.pull("orders", max_count=1)
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS
            assert client.pull("orders", 15).record_count == 6
            client.append("orders", b"goes on")
