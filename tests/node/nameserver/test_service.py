"""The name server in a process: faults end only the replica; others are asked over gRPC."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config.nameserver import NameServerSettings
from node.config.types import Address
from node.errors.common import BadRequestError
from node.errors.nameserver import (
    DirectoryRefusedError,
    NameServerOffError,
    NoQuorumError,
    ReplicaFailedError,
    ValueChangedError,
    ValueNotFoundError,
)
from node.nameserver import service as service_module
from node.nameserver.calls import NameServerCalls
from node.nameserver.directory.directory import forget_group_command, unregister_command
from node.nameserver.directory.proofs import Prover
from node.nameserver.directory.reports import TopicQueues
from node.nameserver.registration import Registration
from node.nameserver.remote import RemoteDirectory
from node.nameserver.report_judge import ReportJudge
from node.nameserver.service import NameServerService
from node.runtime.accounts import Accounts
from node.runtime.fail_stop import FailStop
from node.services.calls import ServedCalls
from node.services.methods import nameserver_handlers
from node.services.server import GrpcServer
from quorumlog.pb import nameserver_pb2 as pb
from tests.node.nameserver.brokers import ORDERS, elect, ha_report, raft_leader, raft_report
from tests.node.nameserver.replicas import settings_of
from tests.node.nameserver.test_registration import FakeBroker
from tests.patience import eventually

LOOPBACK = Address("127.0.0.1", 0)
SECRET = b"0123456789abcdef"


def service_of(settings: Any, broker: FakeBroker | None, **options: Any) -> NameServerService:
    """A service of the cluster `c`, whose nodes share a secret."""
    group, own_id = ("", 0) if broker is None else (broker.group, broker.broker_id)
    report_judge = ReportJudge(
        "c", group, SECRET, own_id=own_id, known=lambda: dict.fromkeys((1, 2), "")
    )
    return NameServerService(settings, broker, report_judge=report_judge, **options)


def alone(directory: Path) -> NameServerSettings:
    (settings,) = settings_of(directory, 1)
    return NameServerSettings(**settings)


@asynccontextmanager
async def serving(service: NameServerService) -> AsyncIterator[NameServerCalls]:
    """A service that runs, and its calls."""
    service.start()
    try:
        await eventually(lambda: (service.status() or never()).state == "leader", "a leader")
        yield NameServerCalls(service)
    finally:
        await service.stop()


def never() -> Any:
    raise AssertionError("there is no replica")


def names(found: Any) -> dict[str, list[tuple[str, int]]]:
    return {g.group: [(t.topic, t.queue_count) for t in g.topics] for g in found}


@pytest.mark.long
async def test_a_broker_is_known_at_once_and_values_are_kept(tmp_path: Path) -> None:
    broker = FakeBroker(raft_leader(1, 3))
    service = service_of(alone(tmp_path), broker)
    async with serving(service) as calls:
        registration = service.registration
        assert registration is not None
        await eventually(lambda: not registration.problem, "registration")
        answer = await calls.topic_route(pb.TopicRouteRequest(topic="orders"))
        (share,) = answer.shares
        assert (share.broker_group, share.master_id, share.write_queue_count) == ("raft", 1, 4)
        assert json.loads(answer.rocketmq_json)["brokerDatas"][0]["brokerName"] == "raft"
        foreign = raft_leader(7, 3, "foreign", cluster="other").command()
        assert (await service.server.change(foreign)).is_accepted
        (share,) = (await calls.topic_route(pb.TopicRouteRequest(topic="orders"))).shares
        assert share.broker_group == "raft", "clients are told of their cluster only"
        assert service.other_groups(["orders"]) == []
        leave = unregister_command("foreign", 7, 1)
        assert (await service.server.change(leave)).is_accepted
        everything = await calls.topic_route(pb.TopicRouteRequest())
        assert [s.broker_group for s in everything.shares] == ["raft"]
        assert service.other_groups(["orders"]) == [], "its own group is not another one"
        await calls.put_value(pb.PutValueRequest(namespace="n", key="k", value="v"))
        with pytest.raises(ValueChangedError):
            await calls.put_value(pb.PutValueRequest(namespace="n", key="k", expected="u"))
        with pytest.raises(DirectoryRefusedError, match="malformed"):
            await calls.put_value(pb.PutValueRequest(namespace="n", key="", value="w"))
        values = (await calls.get_values(pb.GetValuesRequest(namespace="n"))).values
        assert dict(values) == {"k": "v"}
        with pytest.raises(ValueNotFoundError):
            await calls.get_values(pb.GetValuesRequest(namespace="n", key="x"))
        await calls.delete_value(pb.DeleteValueRequest(namespace="n", key="k"))
        with pytest.raises(ValueNotFoundError):
            await calls.delete_value(pb.DeleteValueRequest(namespace="n", key="k"))
        status = await calls.name_server_status(pb.NameServerStatusRequest())
        assert (status.state, status.node_id, status.problem) == ("leader", 1, "")
        forget = json.dumps(forget_group_command("raft", 3)).encode()
        request = pb.ReportRequest(group="raft", command=forget)
        Prover(SECRET, "c").seal(request, service.report_judge.challenge())
        with pytest.raises(BadRequestError):
            await calls.report(request)
        await service.leave()
        assert service.server.look(lambda directory: directory.groups) == {}


@pytest.mark.long
async def test_a_fault_ends_the_replica_alone_and_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "WATCH_PERIOD_MS", 5)

    settings = alone(tmp_path)
    host, _, port = settings.address.rpartition(":")
    service = service_of(settings, FakeBroker(raft_leader(1, 3)), restart_pause_ms=5)
    with pytest.raises(NameServerOffError):
        _ = service.server
    with socket.create_server((host, int(port))):
        service.start()
        await eventually(lambda: "another process" in service.problem, "the reason")
        assert (service.status() or never()).state == "failed"
        with pytest.raises(ReplicaFailedError, match="another process"):
            _ = service.server
    try:
        await eventually(lambda: service.problem == "", "a replica")
        assert service.restart_count > 0
        await eventually(lambda: service.server.is_leader, "a leader")
        # A fault in the middle of its life, on its own thread.
        replica: Any = service.server._replica
        before = service.restart_count
        replica.failure = RuntimeError("planted")
        await eventually(lambda: service.restart_count > before, "a new life")
        await eventually(lambda: service.problem == "", "a new replica")
        assert "the name server is off: planted" in caplog.text
    finally:
        await service.stop()


@pytest.mark.long
async def test_damaged_files_wait_for_a_person_and_the_node_asks_others(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as (service, address):
        settings = alone(tmp_path / "b")
        async with serving(service_of(settings, None)):
            pass
        (Path(settings.directory) / "journal").write_bytes(b"x" * 100)
        lonely = service_of(settings, None, restart_pause_ms=1)
        lonely.start()
        await lonely.ended()
        assert "move the directory away" in str(lonely.failure)
        await lonely.stop()
        remote = RemoteDirectory([address], "far", 20, prover=Prover(SECRET, "c"))
        other = service_of(settings, FakeBroker(raft_leader(4, 2, "far")), remote=remote)
        other.start()
        try:
            await eventually(lambda: "move the directory away" in other.problem, "the failure")
            await eventually(lambda: names(service.other_groups([])), "registration")
            await eventually(lambda: other.other_groups(["orders"]), "the other group")
            assert names(other.other_groups(["orders"])) == {"raft": [("orders", 4)]}
            status = await NameServerCalls(other).name_server_status(pb.NameServerStatusRequest())
            assert status.state == "failed"
            assert "move the directory away" in status.failure
        finally:
            await other.stop()


async def test_without_settings_there_is_nothing(tmp_path: Path) -> None:
    service = service_of(None, FakeBroker(raft_report(1)))
    service.start()
    assert (service.status(), service.problem) == (None, "")
    assert service.other_groups(["orders"]) == []
    with pytest.raises(NameServerOffError):
        await NameServerCalls(service).name_server_status(pb.NameServerStatusRequest())
    await service.leave()
    await service.stop()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[NameServerService, str]]:
    """A replica beside broker 1 of the group `raft`, and its client service."""
    service = service_of(alone(directory), FakeBroker(raft_leader(1, 3)))
    server = GrpcServer(Accounts())
    address = f"127.0.0.1:{server.bind(LOOPBACK)}"
    calls = ServedCalls(FailStop(directory))
    async with serving(service):
        await server.start(nameserver_handlers(calls, NameServerCalls(service)))
        try:
            yield service, address
        finally:
            await server.stop(0)


@pytest.mark.long
async def test_a_node_without_a_replica_learns_all_that_it_needs_from_another(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (service, address):
        more = {**ORDERS, "more": TopicQueues(2, 2, 6)}
        away = FakeBroker(raft_leader(4, 2, "far", topics=more))
        remote = RemoteDirectory(["127.0.0.1:1", address], "far", 20, prover=Prover(SECRET, "c"))
        other = service_of(None, away, remote=remote)
        other.start()
        try:
            await eventually(lambda: other.registration and not other.registration.problem)
            groups = service.other_groups(["more", "none"])
            assert names(groups) == {"far": [("more", 2)]}
            assert (groups[0].leader_id, groups[0].nodes[0].node_id) == (4, 4)
            await eventually(lambda: other.other_groups([]), "the other group")
            await eventually(lambda: names(other.other_groups(["orders"]))["raft"], "its topics")
            for _ in range(2):
                assert names(other.other_groups(["orders"])) == {"raft": [("orders", 4)]}
            status = await NameServerCalls(other).name_server_status(pb.NameServerStatusRequest())
            assert (status.state, status.node_id, status.problem) == ("remote", 4, "")
            assert remote.failure_count == 1, "of the first address"

            def is_told() -> bool:
                service.watch.problems = {"far": "far has no master", "raft": "nor has raft"}
                return other.problem == "far has no master"

            await eventually(is_told, "what is wrong with its group")
            await eventually(lambda: other.problem == "", "its end")
            await other.leave()
            assert names(service.other_groups([])) == {}
        finally:
            await other.stop()


@pytest.mark.long
async def test_advice_and_in_sync_sets_travel_to_and_from_another_process(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, address):
        slave = FakeBroker(ha_report(2))
        remote = RemoteDirectory([address], "ha", 20, prover=Prover(SECRET, "c"))
        other = service_of(None, slave, remote=remote)
        other.start()
        try:
            server = service.server
            await eventually(lambda: server.look(lambda it: "ha" in it.groups), "registration")
            assert (await server.change(elect(1, 2, (0, 0)))).is_accepted
            await eventually(lambda: slave.advice, "advice")
            assert slave.advice[0][0] == 1
        finally:
            await other.stop()


async def test_a_node_that_reaches_no_name_server_keeps_what_it_knew() -> None:
    remote = RemoteDirectory(["127.0.0.1:1"], "raft", 20, prover=Prover(SECRET, "c"))
    route = pb.ReportResponse(leader="a:1", topics_versions={"far": "1"})
    route.groups.add(group="far", kind="raft", leader_id=4).topics.add(topic="orders")
    remote._learn(route)
    with pytest.raises(NoQuorumError):
        await remote.change(raft_report(1).command(), timeout_ms=20_000)
    assert remote.leader == ""
    assert [g.group for g in remote.other_groups(["orders"])] == ["far"]
    await remote.close()
    registration = Registration(remote, FakeBroker(replace(raft_report(1))))
    with pytest.raises(NoQuorumError):
        await registration.look()
