"""Three real nodes: who leads, and who belongs to the cluster."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from deploy.local import LocalCluster
from deploy.local_process import free_ports
from quorumlog.pb import admin_pb2 as pb
from tests.node.processes import SingleNode, connected, typed_error
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long
HANDED_OVER = "handed leadership over"
SETTINGS = {
    "file_size_bytes": "1MiB",
    "batch_size_bytes_max": "256KiB",
    "heartbeat_ms": 50,
    "election_min_ms": 300,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that serve."""
    with LocalCluster.create(tmp_path / "c", 3, settings=SETTINGS) as nodes:
        yield nodes


def test_a_stop_of_the_leader_leaves_no_gap_of_an_election(cluster: LocalCluster) -> None:
    leader = cluster.leader_id()
    cluster.stop(leader)
    assert cluster.exit_code(leader) == 0
    wait_for("another leader", lambda: cluster.leader_id() not in (0, leader))
    log = cluster.log_path(leader).read_text()
    assert HANDED_OVER in log
    cluster.start(leader)
    cluster.wait_ready(node_ids=cluster.node_ids)
    before = _hand_overs(cluster)
    assert cluster.stop() == []
    # All at once: who drains takes nothing over, else they hand it round until they have ended.
    assert _hand_overs(cluster) - before <= 2


def _hand_overs(cluster: LocalCluster) -> int:
    return sum(cluster.log_path(n).read_text().count(HANDED_OVER) for n in cluster.node_ids)


def test_a_node_joins_becomes_a_voter_and_leaves_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    ports = free_ports(2)
    address, peer_address = (f"127.0.0.1:{port}" for port in ports)
    peers = ",".join(f"{s.node_id}={s.peer_address}/{s.address}" for s in cluster.status())
    flags = {name: str(value) for name, value in SETTINGS.items()}
    fourth = SingleNode(
        tmp_path / "four" / "data",
        **{
            **flags,
            "node_id": "4",
            "cluster_id": cluster.cluster_id,
            "peers": peers,
            "listen": address,
            "join": "",
            "peer_listen": peer_address,
        },
    )
    fourth.directory.parent.mkdir()
    with connected(cluster.address(cluster.leader_id())) as client:
        client.create_topic("orders")
        for number in range(10):
            client.append("orders", b"%d" % number)

        def change(kind: pb.MemberChange, **fields: str) -> list[tuple[int, bool]]:
            request = pb.ChangeMemberRequest(change=kind, node_id=4, **fields)
            done = client.admin.ChangeMember(request, timeout=PATIENCE_S)
            return [(member.node_id, member.is_voter) for member in done.members]

        with pytest.raises(grpc.RpcError) as caught:
            change(pb.MEMBER_CHANGE_ADD_LEARNER, address="nonsense", peer_address=peer_address)
        assert typed_error(caught.value).code == "node.bad_request"
        members = change(pb.MEMBER_CHANGE_ADD_LEARNER, address=address, peer_address=peer_address)
        assert members == [(1, True), (2, True), (3, True), (4, False)]
        with fourth:
            with fourth.client() as newcomer:
                applied = client.status().applied_index
                wait_for("the learner", lambda: newcomer.status().applied_index >= applied)
                assert newcomer.pull("orders", consistency=3).record_count == 10
            members = change(pb.MEMBER_CHANGE_PROMOTE)
            assert members[-1] == (4, True)
            client.append("orders", b"with four voters")
            members = change(pb.MEMBER_CHANGE_REMOVE)
            assert [node for node, _ in members] == [1, 2, 3]
            client.append("orders", b"with three again")
