"""Changes of members and of the leader that are refused: at once, finally, and with no effect."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.admin.raft import NodeAdmin
from node.errors.translation import describe
from quorumlog.pb import admin_pb2 as pb
from raft.errors import ChangeInvalidError, ChangeRefusedError, RaftError, TransferInvalidError
from store.errors import Outcome
from tests.node.whole_nodes import WholeNode, WholeNodes
from tests.store.records import PAGE, small_config

CONFIG = small_config(container="ledger", file_size_bytes=4 * PAGE, disk_reserve_bytes=0)


@asynccontextmanager
async def leading(root: Path) -> AsyncIterator[tuple[NodeAdmin, WholeNode]]:
    """The calls of a node that leads alone, and the node."""
    world = WholeNodes(root, 1, CONFIG, count=1)
    await world.start()
    try:
        node = await world.leader()

        def member(number: int, **_facts: object) -> pb.MemberStatus:
            return pb.MemberStatus(node_id=number, address=node.broker.address_of(number))

        parts: Any = SimpleNamespace(broker=node.broker, member=member)
        yield NodeAdmin(parts, node.driver, node.driver.replica, node.log), node
    finally:
        await world.stop()
    world.check_alive()


def change(kind: "pb.MemberChange", node: int, host: str = "") -> pb.ChangeMemberRequest:
    request = pb.ChangeMemberRequest(change=kind, node_id=node)
    if host:
        request.address, request.peer_address = f"{host}:1", f"{host}:2"
    return request


async def test_add_of_a_member_changes_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path) as (admin, node):
        await admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, 2, "right"))
        before, last = dict(node.machine.state.members), node.driver.last_index
        for number in (1, 2):
            with pytest.raises(RaftError, match="member already") as refused:
                await admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, number, "wrong"))
            failure = describe(refused.value)
            assert (failure.outcome, failure.retryable) == (Outcome.NOT_APPLIED, False)
        assert node.machine.state.members == before
        assert node.driver.last_index == last


async def test_two_adds_at_once_leave_the_addresses_of_the_one_that_was_done(
    tmp_path: Path,
) -> None:
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


async def test_add_without_room_for_its_entry_stores_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(tmp_path) as (admin, node):
        monkeypatch.setattr(node.log, "has_room_for", lambda *_facts: False)
        with pytest.raises(ChangeRefusedError, match="no room") as refused:
            await admin.change_member(change(pb.MEMBER_CHANGE_ADD_LEARNER, 3, "late"))
        assert describe(refused.value).retryable
        assert 3 not in node.machine.state.members


async def test_refusals_that_cannot_change_are_final(tmp_path: Path) -> None:
    async with leading(tmp_path) as (admin, node):
        with pytest.raises(ChangeInvalidError, match="last voter"):
            await admin.change_member(change(pb.MEMBER_CHANGE_REMOVE, 1))
        with pytest.raises(ChangeInvalidError, match="no member"):
            await admin.change_member(change(pb.MEMBER_CHANGE_REMOVE, 9))
        with pytest.raises(ChangeInvalidError, match="only a learner"):
            await admin.change_member(change(pb.MEMBER_CHANGE_PROMOTE, 9))
        with pytest.raises(TransferInvalidError, match="no other voter"):
            await admin.transfer_leadership(pb.TransferLeadershipRequest(node_id=9))
        for error in (ChangeInvalidError(1, "x"), TransferInvalidError(1, "x")):
            assert not describe(error).retryable
            assert describe(error).status == "FAILED_PRECONDITION"
        assert node.driver.is_ready
