"""Changes of members and of the leader that are refused: at once, finally, and with no effect."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.errors.common import DrainingError, NodeError
from node.errors.translation import describe, to_pb
from node.replication.raft.admin import RaftAdmin
from quorumlog.cluster.calls import Calls, method_of
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import Outcome as ClientOutcome
from quorumlog.errors import QuorumlogError, from_pb
from quorumlog.pb import admin_pb2 as pb
from quorumlog.pb.log_pb2 import AppendRequest
from raft.errors import ChangeInvalidError, ChangeRefusedError, RaftError, TransferRefusedError
from store.errors import StoreError
from tests.node.whole_nodes import WholeNode, WholeNodes
from tests.patience import PATIENCE_S
from tests.store.records import PAGE, record, small_config

CONFIG = small_config(container="ledger", file_size_bytes=4 * PAGE, disk_reserve_bytes=0)


@asynccontextmanager
async def leading(root: Path) -> AsyncIterator[tuple[RaftAdmin, WholeNode]]:
    """The calls of a node that leads alone, and the node."""
    world = WholeNodes(root, 1, CONFIG, count=1)
    await world.start()
    try:
        node = await world.leader()

        def member(number: int, **_facts: object) -> pb.MemberStatus:
            return pb.MemberStatus(node_id=number, address=node.broker.context.address_of(number))

        settings = SimpleNamespace(cluster_id="c", replication="raft")
        health = SimpleNamespace(enter=lambda *_facts: None)
        parts: Any = SimpleNamespace(
            broker=node.broker, member=member, settings=settings, health=health
        )
        yield RaftAdmin(parts, node.driver), node
    finally:
        await world.stop()
    world.check_alive()


def change(kind: "pb.MemberChange", node: int, host: str = "") -> pb.ChangeMemberRequest:
    request = pb.ChangeMemberRequest(change=kind, node_id=node)
    if host:
        request.address, request.peer_address = f"{host}:1", f"{host}:2"
    return request


async def test_an_add_that_is_refused_stores_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two at once the second; and one without room for its entry."""
    async with leading(tmp_path) as (admin, node):
        first, second = await asyncio.gather(
            admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, 2, "first")),
            admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, 2, "second")),
            return_exceptions=True,
        )
        assert isinstance(first, pb.ChangeMemberResponse)
        assert isinstance(second, ChangeRefusedError)
        assert describe(second).retryable  # The other one may still fail.
        assert node.machine.state.members[2].address == "first:1"
        await admin.change_member(change(pb.MEMBER_CHANGE_REMOVE, 2))
        monkeypatch.setattr(node.log, "has_room_for", lambda *_facts: False)
        with pytest.raises(ChangeRefusedError, match="no room") as refused:
            await admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, 3, "late"))
        assert describe(refused.value).retryable
        assert 3 not in node.machine.state.members


class OneRequest(Calls):
    """The client's calls of a node, in one process with it; a second request fails the test."""

    def __init__(self, admin: RaftAdmin) -> None:
        leader: Any = SimpleNamespace(address="here:1")

        async def find(_deadline: Deadline) -> Any:
            return leader

        router: Any = SimpleNamespace(where="", leader=find)
        super().__init__(router)
        self.admin = admin

    async def once(self, _node: Any, request: Any, _s: float) -> Any:
        self.attempts += 1
        assert self.attempts == 1, "it was sent again"
        method = re.sub("(?<=.)(?=[A-Z])", "_", method_of(request)).lower()
        try:
            return await getattr(self.admin, method)(request)
        except (NodeError, StoreError, RaftError) as error:
            raise from_pb(to_pb(error)) from error


ADD, PROMOTE = pb.MEMBER_CHANGE_ADD_LEARNER, pb.MEMBER_CHANGE_PROMOTE
REMOVE, TRANSFER = pb.MEMBER_CHANGE_REMOVE, pb.TransferLeadershipRequest


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (change(ADD, 1, "wrong"), "raft.change_invalid"),
        (change(ADD, 2, "wrong"), "raft.change_invalid"),
        (change(ADD, 3, "*"), "node.bad_request"),
        (change(ADD, 0, "any"), "node.bad_request"),
        (pb.ChangeMemberRequest(node_id=3), "node.bad_request"),
        (change(PROMOTE, 1), "raft.change_invalid"),
        (change(PROMOTE, 9), "raft.change_invalid"),
        (change(REMOVE, 1), "raft.change_invalid"),
        (change(REMOVE, 9), "raft.change_invalid"),
        (TRANSFER(node_id=9), "raft.transfer_invalid"),
        (TRANSFER(node_id=2), "raft.transfer_invalid"),
        (TRANSFER(), "raft.transfer_invalid"),
        (pb.DrainRequest(), "raft.transfer_invalid"),
        (pb.AcceptLossRequest(confirm_cluster_id="other"), "node.wrong_cluster"),
        (pb.AcceptLossRequest(confirm_cluster_id="c"), "raft.recovery_refused"),
        (pb.HaStatusRequest(), "node.wrong_mode"),
        (pb.HaPromoteRequest(), "node.wrong_mode"),
        (pb.ChainDigestRequest(index=1 << 40), "store.out_of_range"),
    ],
)
async def test_a_refusal_that_cannot_change_comes_after_one_request(
    tmp_path: Path, request_: Any, code: str
) -> None:
    async with leading(tmp_path) as (admin, node):
        await admin.change_member(change(ADD, 2, "right"))
        members, last = dict(node.machine.state.members), node.driver.last_index
        calls, deadline = OneRequest(admin), Deadline(PATIENCE_S * 1_000)
        with pytest.raises(QuorumlogError) as refused:
            await calls.leader(request_, deadline)
        assert (refused.value.code, refused.value.retryable) == (code, False)
        assert refused.value.outcome is ClientOutcome.NOT_APPLIED
        assert node.machine.state.members == members
        assert node.driver.last_index == last
        assert node.driver.is_ready
        assert not node.broker.produce.is_draining


@pytest.mark.parametrize("has_relief", [True, False])
async def test_a_leader_drains_if_another_voter_relieves_it(
    tmp_path: Path, has_relief: bool
) -> None:
    world = WholeNodes(tmp_path, 1, CONFIG, count=3)
    await world.start()
    try:
        node, phases = await world.leader(), list[Any]()
        health = SimpleNamespace(enter=lambda phase, *_detail: phases.append(phase.value))
        link = SimpleNamespace(is_connected=lambda _node: has_relief)
        parts: Any = SimpleNamespace(
            broker=node.broker, health=health, replication=SimpleNamespace(link=link)
        )
        admin = RaftAdmin(parts, node.driver)
        if has_relief:
            await admin.drain(pb.DrainRequest())
            with pytest.raises(DrainingError):
                await node.broker.append(AppendRequest(records=record(0), record_count=1))
            await admin.drain(pb.DrainRequest(undo=True))
        else:
            with pytest.raises(TransferRefusedError, match="no other voter can be reached"):
                await admin.drain(pb.DrainRequest())
        assert phases == ["draining", "serving"]
        assert not node.broker.produce.is_draining
        assert not node.driver.is_draining
    finally:
        await world.stop()


async def test_a_final_refusal_does_not_wait_for_another_change(tmp_path: Path) -> None:
    async with leading(tmp_path) as (admin, _node):
        adding = asyncio.create_task(admin.change_member(change(ADD, 2, "right")))
        await asyncio.sleep(0)  # It stores the addresses.
        with pytest.raises(ChangeInvalidError, match="last voter"):
            await admin.change_member(change(REMOVE, 1))
        with pytest.raises(ChangeRefusedError, match="is being added") as refused:
            await admin.change_member(change(ADD, 3, "later"))
        assert describe(refused.value).retryable
        await adding
