"""The framed port of real clusters: appends, reads, failover, stop and drain, both modes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from quorumlog.pb.admin_pb2 import DrainRequest
from quorumlog.pb.common_pb2 import DURABILITY_COPIES_DISK, DURABILITY_QUORUM_DISK
from quorumlog.pb.log_pb2 import (
    AppendRequest,
    PullRequest,
    RouteRequest,
    RouteResponse,
    TailRequest,
)
from tests.node.framed.clients import APPEND, PULL, ROUTE, TAIL, FramedClient, Response, request
from tests.node.processes import SingleNode, connected
from tests.patience import wait_for
from tests.store.records import batch, numbers

pytestmark = pytest.mark.long
SETTINGS: dict[str, object] = {"file_size_bytes": "1MiB", "batch_size_bytes_max": "256KiB"}


def at(cluster: LocalCluster, node_id: int) -> tuple[str, int]:
    host, _, port = cluster.framed_address(node_id).rpartition(":")
    return host, int(port)


def append_message(sequence: int) -> bytes:
    request = AppendRequest(record_count=1, producer_id=7, sequence=sequence)
    return request.SerializeToString()


def pull_message(offset: int = 0) -> bytes:
    return PullRequest(topic="orders", offset=offset).SerializeToString()


def create_topic(cluster: LocalCluster) -> None:
    with connected(cluster.address(cluster.leader_id())) as client:
        client.create_topic("orders")


class Sender:
    """A producer that finds the leader by itself, with nothing but frames."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._opaque = 0
        self._client: FramedClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def try_send(self, sequence: int) -> Response | None:
        """Return the receipt; None: it has to be sent again."""
        try:
            if self._client is None:
                self._client = FramedClient(self._find())
            self._opaque += 1
            body = batch(sequence, sequence + 1)
            response = self._client.call(APPEND, self._opaque, append_message(sequence), body)
        except (OSError, AssertionError):  # The connection is gone.
            self.close()
            return None
        if response.flags & 2:
            assert response.error.retryable, response.error
            self.close()
            return None
        return response

    def send(self, sequence: int) -> Response:
        """Send until there is a receipt."""

        def answer() -> Response | None:
            return self.try_send(sequence)

        response = wait_for("a receipt", answer)
        assert response is not None
        return response

    def _find(self) -> tuple[str, int]:
        """Ask one node after the other for a leader, and that leader for its framed port."""
        for node in self._cluster.node_ids:
            try:
                with FramedClient(at(self._cluster, node)) as client:
                    message = client.call(ROUTE, 0, RouteRequest().SerializeToString()).message
            except (OSError, AssertionError):
                continue
            route = RouteResponse.FromString(message)
            if route.leader_id == node == route.node_id:
                host, _, port = route.framed_address.rpartition(":")
                assert host == ""
                return "127.0.0.1", int(port)
        raise OSError("no node leads")


def test_appends_reads_and_a_failover_of_a_real_cluster(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "c", 3, settings=SETTINGS) as cluster:
        create_topic(cluster)
        leader = cluster.leader_id()
        sender = Sender(cluster)
        tail = FramedClient(at(cluster, next(n for n in cluster.node_ids if n != leader)))
        receipt = sender.send(0).append()
        # Without its first message the follower may not know the topic yet.
        pull_request = PullRequest(
            topic="orders", consistency="CONSISTENCY_LOCAL", at_least_index=receipt.index
        )
        tail.send(request(PULL, 2, pull_request.SerializeToString()))
        assert numbers(tail.read().body) == [0]
        local = TailRequest(topic="orders", consistency="CONSISTENCY_LOCAL")
        tail.send(request(TAIL, 1, local.SerializeToString()))
        assert receipt.durability == DURABILITY_QUORUM_DISK
        assert len(receipt.synced_by) >= 2
        for sequence in range(1, 20):
            assert sender.try_send(sequence) is not None
        cluster.kill(leader)
        for sequence in range(20, 40):
            sender.send(sequence)
        seen: list[int] = []
        while len(seen) < 40:
            response = tail.read()
            assert response.pull().record_count == len(numbers(response.body))
            seen += numbers(response.body)
        assert seen == list(range(40))
        new_leader = cluster.leader_id()
        assert new_leader not in (0, leader)
        with FramedClient(at(cluster, new_leader)) as reader:
            answer = reader.call(PULL, 1, pull_message())
            assert numbers(answer.body) == list(range(40))
        follower = next(n for n in cluster.node_ids if n not in (leader, new_leader))
        with FramedClient(at(cluster, follower)) as wrong:
            error = wrong.call(APPEND, 1, append_message(99), batch(0, 1)).error
            assert (error.code, error.leader_id) == ("node.not_leader", new_leader)
            assert error.leader_address == cluster.address(new_leader)
        tail.close()
        sender.close()


def test_a_master_slave_group_serves_frames(tmp_path: Path) -> None:
    with LocalCluster.create(
        tmp_path / "c", 3, settings=SETTINGS, replication="sync_master"
    ) as cluster:
        create_topic(cluster)
        sender = Sender(cluster)
        for sequence in range(10):
            receipt = sender.send(sequence).append()
        assert receipt.durability in (DURABILITY_QUORUM_DISK, DURABILITY_COPIES_DISK)
        slave = next(n for n in cluster.node_ids if n != cluster.leader_id())
        with FramedClient(at(cluster, slave)) as client:
            local = PullRequest(topic="orders", consistency="CONSISTENCY_LOCAL").SerializeToString()
            wait_for(
                "all of it on a slave",
                lambda: numbers(client.call(PULL, 1, local).body) == list(range(10)),
            )
            error = client.call(APPEND, 1, append_message(99), batch(0, 1)).error
            assert error.code == "ha.not_master"
        sender.close()


def framed(node: SingleNode) -> FramedClient:
    return FramedClient(("127.0.0.1", int(node.node_json()["framed_address"].rpartition(":")[2])))


def test_a_stop_answers_every_call_and_loses_no_receipt(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "data") as node:
        with node.client() as client:
            client.create_topic("orders")
        receipts: list[int] = []

        def send_on(client: FramedClient) -> None:
            for sequence in range(100_000):
                try:
                    response = client.call(
                        APPEND, sequence, append_message(sequence), batch(sequence, sequence + 1)
                    )
                except (OSError, AssertionError):
                    return
                if response.flags & 2:
                    codes.add(response.error.code)
                else:
                    receipts.append(sequence)

        codes: set[str] = set()
        with framed(node) as sender, framed(node) as waiting:
            tail = TailRequest(topic="orders", offset=1 << 40).SerializeToString()
            waiting.send(request(TAIL, 1, tail))
            assert waiting.read().pull().record_count == 0
            pull = PullRequest(topic="orders", queue_id=0, offset=1 << 40, wait_ms=30_000)
            waiting.send(request(PULL, 2, pull.SerializeToString()))
            thread = threading.Thread(target=send_on, args=(sender,))
            thread.start()
            wait_for("receipts", lambda: len(receipts) > 20)
            node.signal(signal.SIGTERM)
            assert node.wait_end() == 0
            thread.join(30)
            assert not thread.is_alive()
            ended = {waiting.read().opaque for _ in range(2)}
            assert ended == {1, 2}
            assert waiting.read_to_the_end() == b""
        assert codes <= {"node.draining", "node.shutting_down"}
        node.start()
        with framed(node) as reader:
            message = PullRequest(topic="orders", max_count=16_000, max_size_bytes=4 << 20)
            read_numbers = numbers(reader.call(PULL, 1, message.SerializeToString()).body)
        assert read_numbers[: len(receipts)] == receipts
        assert node.stop() == 0


def test_a_drained_node_refuses_appends_and_serves_reads(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path / "c", 3, settings=SETTINGS) as cluster:
        create_topic(cluster)
        sender = Sender(cluster)
        sender.send(0)
        drained = cluster.leader_id()
        with FramedClient(at(cluster, drained)) as client:
            with connected(cluster.address(drained)) as admin:
                admin.admin.Drain(DrainRequest(), timeout=30)
                assert admin.status().is_draining
            error = client.call(APPEND, 1, append_message(1), batch(1, 2)).error
            assert (error.code, error.retryable) == ("node.draining", True)
            local = PullRequest(topic="orders", consistency="CONSISTENCY_LOCAL")
            assert numbers(client.call(PULL, 2, local.SerializeToString()).body) == [0]
        sender.close()
        sender.send(1)
        assert cluster.leader_id() != drained
        sender.close()
        with connected(cluster.address(drained)) as admin:
            admin.admin.Drain(DrainRequest(undo=True), timeout=30)
            assert not admin.status().is_draining


def test_a_node_without_the_port_advertises_none(tmp_path: Path) -> None:
    with SingleNode(tmp_path / "data", listen_framed="off") as node, node.client() as client:
        assert node.status()["framed_address"] == ""
        assert client.log.Route(RouteRequest(), timeout=10).framed_address == ""
    single_node = SingleNode(tmp_path / "data", advertise_framed="log1.example:9081")
    with single_node as node, node.client() as client:
        route = client.log.Route(RouteRequest(), timeout=10)
        assert route.framed_address == "log1.example:9081"
