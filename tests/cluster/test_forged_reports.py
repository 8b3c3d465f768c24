"""Reports of strangers at the client port of real nodes: nobody is led to a forged broker, and no
group is kept from electing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorumlog
from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from deploy.local_nodes import NAMESERVER_COUNT
from node.nameserver.directory.fields import RESULT
from node.nameserver.directory.proofs import Prover
from quorumlog.cluster.nameserver import NameServers
from quorumlog.pb import nameserver_pb2 as pb
from tests.cluster.conftest import running
from tests.cluster.forgery import (
    EPOCH_LAST,
    as_broker,
    heartbeat_of,
    known_group,
    refusal,
    registration,
    say,
)
from tests.cluster.workload import QUEUE_COUNT, TOPIC, Workload
from tests.patience import wait_for
from tests.qlog.running import Qlog
from tests.quorumlog.fake_cluster import CLUSTER_ID, FakeCluster

pytestmark = pytest.mark.long
SECRET = "0123456789abcdef0123456789abcdef\n"
REFUSED = "quorumlog_nameserver_refused_reports_total"
PROBLEM = "quorumlog_nameserver_group_problem"
FAILOVER_S_MAX = 30.0
"""On a machine that does much else; usually 3."""


def secrets_in(directory: Path) -> dict[str, object]:
    """Settings of all the secrets that a node can have."""
    files: dict[str, object] = {}
    for name in ("secret_file", "nameserver_secret_file", "users_key_file"):
        file = directory / name
        file.write_text("5" * 64 if "key" in name else SECRET)
        file.chmod(0o600)
        files[name] = str(file)
    return files


async def is_whole(cluster: LocalCluster, group: str = "g0") -> dict[str, Any]:
    """Wait until all nodes know all brokers of a group and its master; return what the last does.

    A replica of the name server comes up beside its node, and may be a little later.
    """
    views: list[dict[str, Any]] = []

    def look() -> bool:
        views.clear()
        for node in cluster.node_ids[:NAMESERVER_COUNT]:
            if not is_asked(cluster.address(node), group):
                return False
            views.append(known_group(cluster.address(node), group))
        brokers = [sorted(map(int, one["brokers"])) for one in views]
        are_there = all(one == [*cluster.groups[group]] for one in brokers)
        return are_there and all(one["master_id"] > 0 for one in views)

    await asyncio.to_thread(wait_for, f"{group} in the directory", look)
    return views[-1]


def is_asked(address: str, group: str) -> bool:
    """Whether a replica is up there, knows who leads it, and knows a group."""
    try:
        answer = say(address, None, group=group)
    except grpc.RpcError:
        return False
    return bool(answer.leader and answer.own_group)


@pytest.mark.parametrize("is_secret", [False, True])
async def test_a_forged_group_gets_no_message(tmp_path: Path, is_secret: bool) -> None:
    """60 of 60 receipts are of the real group, and what they name is there."""
    settings = {"cluster_id": CLUSTER_ID, **(secrets_in(tmp_path) if is_secret else {})}

    forged = FakeCluster(1, group="forged", first_id=97)
    forged.topics = {TOPIC: QUEUE_COUNT}
    await forged.nodes[97].start()
    try:
        async with running(tmp_path / "c", settings=settings) as (cluster, client):
            await is_whole(cluster)
            command = registration(cluster=CLUSTER_ID, address=forged.nodes[97].address)
            codes = {
                await asyncio.to_thread(refusal, cluster.address(node), command)
                for node in cluster.node_ids
            }
            assert codes == {"nameserver.unproven" if is_secret else "nameserver.not_vouched"}
            async with quorumlog.connect(cluster.bootstrap) as follower:
                for _ in range(3):
                    # It asks its nodes again after one second, then two, then four.
                    await follower.route(TOPIC)
                    await asyncio.sleep(1.0)
                assert follower.broker_groups == ("g0",)
                async with follower.producer() as producer:
                    receipts = [await producer.send(TOPIC, b"%08d" % i) for i in range(60)]
            assert {receipt.broker_group for receipt in receipts} == {"g0"}
            assert {node for r in receipts for node in r.synced_by} <= set(cluster.node_ids)
            assert forged.entries == []
            assert len([m async for m in client.consume(TOPIC, until="end")]) == 60
            assert metric_of(cluster, 1, REFUSED) == 1
            assert "a report was refused" in cluster.log_path(1).read_text()
            async with NameServers(cluster.bootstrap) as names:
                assert [one.refused_reports for one in await names.status()] == [1, 1, 1]
                assert [group.broker_group for group in await names.broker_groups()] == ["g0"]
    finally:
        await forged.nodes[97].stop()


@pytest.mark.parametrize("is_secret", [False, True])
async def test_no_word_of_a_stranger_stops_a_failover(tmp_path: Path, is_secret: bool) -> None:
    """The last epoch there is, a farewell, another in-sync set, other topics; then SIGKILL."""
    options: dict[str, Any] = {"replication": "sync_master"}
    options["settings"] = secrets_in(tmp_path) if is_secret else {}

    async with running(tmp_path / "c", **options) as (cluster, client):
        async with Workload(client) as load:
            view = await is_whole(cluster)
            master = view["master_id"]
            slave, other = sorted(set(cluster.node_ids) - {master})
            address, epoch = cluster.address(other), {"epoch": EPOCH_LAST}
            bound = {"role": "master", "bindings": {EPOCH_LAST: [slave, "1"]}, **epoch}
            alter = {
                "op": "alter_in_sync",
                "group": "g0",
                "requester": 97,
                "members": [97],
                "expected_epoch": view["epoch_highest"],
                "expected_version": view["in_sync_version"],
            }
            start_ms = view["brokers"][str(master)]["start_ms"]
            claim = {"group": "g0", "broker_id": master, "start_ms": start_ms}
            for command in (
                registration(group="g0", kind="ha", cluster=view["cluster"], **epoch),
                as_broker(view, slave, **epoch),
                as_broker(view, slave, **bound),
                as_broker(view, slave, start_ms=EPOCH_LAST, address="127.0.0.1:1"),
                heartbeat_of(view, slave, epoch=EPOCH_LAST),
                {"op": "unregister", **claim},
                as_broker(view, other, topics={}, topics_version=[0, 9]),
                alter,
            ):
                code = await asyncio.to_thread(refusal, address, command)
                expected = "nameserver.unproven" if is_secret else "nameserver.not_vouched"
                assert code == expected, command
            now = known_group(address, "g0")
            assert now["master_id"] == master
            assert now["epoch_highest"] == view["epoch_highest"]
            await load.acked(50)
            await asyncio.to_thread(cluster.kill, master)
            async with asyncio.timeout(FAILOVER_S_MAX):
                await load.acked(1)
            history = await load.stop()
        read = {int(m.body) async for m in client.consume(TOPIC, until="end")}
        assert history.acked <= read, "acked and lost"


async def test_a_proven_report_is_taken_once(tmp_path: Path) -> None:
    """Copies, other clusters and other speakers are refused; a group with the secret is said."""
    settings = secrets_in(tmp_path)

    async with running(tmp_path / "c", settings=settings) as (cluster, _):
        view = await is_whole(cluster)
        address, cluster_id = cluster.address(1), str(view["cluster"])
        prover = Prover(SECRET.strip().encode(), cluster_id)

        def sealed(command: dict[str, Any], by: Prover = prover) -> dict[str, Any]:
            challenge = say(address, None).challenge
            assert challenge
            request = pb.ReportRequest(group=command["group"])
            request.command = json.dumps(command).encode()
            by.seal(request, challenge)
            names = ("challenge", "nonce", "proof")
            return {name: getattr(request, name) for name in names}

        far = registration(cluster=cluster_id, group="far")
        proof = sealed(far)
        assert RESULT.validate_json(say(address, far, **proof).result).is_accepted
        assert refusal(address, far, **proof) == "nameserver.unproven", "a copy"
        assert refusal(cluster.address(2), far, **proof) == "nameserver.unproven", "elsewhere"
        late = sealed(far)
        odd = registration(cluster="other", group="far")
        assert refusal(address, odd, **sealed(odd)) == "nameserver.not_vouched"
        stranger = Prover(SECRET.strip().encode(), "other")
        assert refusal(address, far, **sealed(far, stranger)) == "nameserver.unproven"
        for node, expected in ((1, "nameserver.not_vouched"), (2, "epoch_too_high")):
            own = as_broker(view, node, epoch=EPOCH_LAST)
            assert refusal(address, own, **sealed(own)) == expected
        taken = registration(cluster=cluster_id, group="g7", address=cluster.address(2))
        assert refusal(address, taken, **sealed(taken)) == "address_taken"
        log = cluster.log_path(1)
        await asyncio.to_thread(
            wait_for, "a line", lambda: "broker group far of cluster" in log.read_text()
        )
        assert metric_of(cluster, 1, REFUSED, reason="epoch_too_high") == 1
        assert metric_of(cluster, 1, REFUSED, reason="address_taken") == 1
        await asyncio.to_thread(cluster.restart, 1)
        await asyncio.to_thread(cluster.wait_ready)
        await asyncio.to_thread(wait_for, "its replica", lambda: is_asked(address, "g0"))
        assert refusal(address, far, **late) == "nameserver.unproven", "of before the restart"


async def test_a_group_that_can_elect_nobody_is_named(tmp_path: Path) -> None:
    """Four replicas with two copies need three for a fence; two are left, and say so."""

    options: dict[str, Any] = {"replication": "sync_master", "nodes": 4}
    async with running(tmp_path / "c", **options) as (cluster, client):
        view = await is_whole(cluster)
        assert view["master_id"] == 1
        for node in (4, 1):
            await asyncio.to_thread(cluster.kill, node)
        alive = (2, 3)

        def is_said() -> bool:
            return all(metric_of(cluster, node, PROBLEM, broker_group="g0") == 1 for node in alive)

        await asyncio.to_thread(wait_for, "the metric", is_said)
        said = "broker group g0 has had no master for"
        servers = ",".join(cluster.address(node) for node in alive)
        words = ("nameserver", "status", "--server", servers, "-o", "json")
        shown = await asyncio.to_thread(Qlog(cluster), *words, code=1)
        assert said in json.loads(shown.stdout)["problems"]["g0"]
        nodes = (await client.admin.cluster_status()).nodes
        details = [getattr(node, "detail", "") for node in nodes]
        assert sum(said in detail for detail in details) == 2, details
        assert all(said in cluster.log_path(node).read_text() for node in alive)
        cluster.start(4)

        def is_over() -> bool:
            return all(metric_of(cluster, node, PROBLEM, broker_group="g0") == 0 for node in alive)

        await asyncio.to_thread(wait_for, "the end of it", is_over)
