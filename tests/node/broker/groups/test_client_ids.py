"""One client id, one consumer: a second one of any kind is refused while the first lives."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from node.broker.groups.member import MemberKind, Reported
from node.config.limits import Limits
from node.errors.common import NotReadyError
from node.errors.groups import ClientIdInUseError, GroupKindError
from quorumlog.pb.consumer_pb2 import HeartbeatRequest, LeaveGroupRequest
from quorumlog.pb.pop_pb2 import ReceiveRequest
from tests.node.broker_fakes import Fixture, node_at, node_with
from tests.patience import eventually

KINDS = ("sharing", "broadcasting", "popping", "working")
SESSION_MS = Limits().session_ms


async def speak(
    node: Fixture, kind: str, instance: int, *, is_new: bool = False, wait_ms: int = 0
) -> None:
    fields: dict[str, Any] = {"group": "g", "client_id": "c", "instance": instance}
    fields["cluster_id"] = "cluster"
    if kind == "popping":
        request = ReceiveRequest(topic="orders", queue_id=-1, invisible_ms=600_000, **fields)
        request.is_new, request.wait_ms = is_new, wait_ms
        await node.broker.pop.receive(request)
        return
    beat = HeartbeatRequest(topics=["orders"], is_new=is_new, **fields)
    beat.is_broadcasting, beat.is_popping = kind == "broadcasting", kind == "working"
    await node.broker.groups.heartbeat(beat)


async def leave(node: Fixture, instance: int) -> None:
    request = LeaveGroupRequest(group="g", client_id="c", instance=instance)
    await node.broker.groups.leave_group(request)


@pytest.mark.parametrize(("first", "second"), [*product(KINDS, KINDS)])
async def test_a_second_consumer_is_refused_while_the_first_lives(
    node: Fixture, first: str, second: str
) -> None:
    """It follows one that left at once, and one that crashed after a session, not later."""
    for ends_by in ("leaving", "crashing"):
        for passed_ms in (0, SESSION_MS - 1, SESSION_MS - 1):
            node.clock.now_ms += passed_ms
            await speak(node, first, 1)
            with pytest.raises((ClientIdInUseError, GroupKindError)) as refused:
                await speak(node, second, 2, is_new=True)
            assert getattr(refused.value, "retry_after_ms", 0) in (0, SESSION_MS)
            await leave(node, 2)
        if ends_by == "leaving":
            await leave(node, 1)
        elif (first, second) == ("popping", "sharing"):
            return  # Its messages in flight keep those that share out for longer.
        else:
            node.clock.now_ms += SESSION_MS
        await speak(node, second, 2, is_new=True)
        with pytest.raises((ClientIdInUseError, GroupKindError)):
            await speak(node, first, 1)
        await leave(node, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_is_not_silent_while_its_leader_does_not_run(
    node: Fixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await speak(node, kind, 1)
    loop = asyncio.get_running_loop()
    runs = loop.time
    monkeypatch.setattr(loop, "time", lambda: runs() + 2 * SESSION_MS / 1000)
    node.clock.now_ms += 2 * SESSION_MS
    with pytest.raises(ClientIdInUseError):
        await speak(node, kind, 2, is_new=True)
    await speak(node, kind, 1)
    node.clock.now_ms += SESSION_MS
    await speak(node, kind, 2, is_new=True)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(("kind", "is_classic"), [*product(KINDS, [False]), ("sharing", True)])
@node_with(filled=1)
async def test_a_new_leader_keeps_the_consumer_that_the_old_one_let_in(
    node: Fixture, kind: str, is_first: bool, is_classic: bool
) -> None:
    node.driver.term += 1
    members, other = node.broker.group_members, Reported({"c": MemberKind.SHARING}, {}, ["c"])

    async def beat(instance: int) -> type[Exception] | None:
        try:
            if is_classic and instance == 2:
                members.report(7, {"g": other}, node.clock.now_ms, is_whole=True)
            else:
                await speak(node, kind, instance, is_new=instance == 2)
        except (NotReadyError, ClientIdInUseError) as error:
            return type(error)
        return None

    outcomes = [await beat(instance) for instance in ((1, 2) if is_first else (2, 1))]
    assert outcomes[not is_first] is (None if kind == "working" else NotReadyError)
    node.clock.now_ms += Limits().group_settle_ms
    assert await beat(1) is None
    assert await beat(2) is (None if is_classic else ClientIdInUseError)
    assert members.refused_at(7, "g", node.clock.now_ms) == ["c"] * is_classic
    (warning,) = members.warnings_of("g", node.clock.now_ms) or ["client ids"]
    assert "client ids" in warning


async def test_a_consumer_that_waits_for_a_new_leader_yields_to_the_one_that_was_let_in(
    tmp_path: Path,
) -> None:
    limits = Limits(group_settle_ms=9)
    async with node_at(tmp_path, filled=1, limits=limits) as node:
        node.driver.term += 1
        members = node.broker.group_members
        waits = asyncio.create_task(speak(node, "popping", 2, is_new=True, wait_ms=60_000))
        await eventually(lambda: members.total_count == 1, "the second consumer")
        await speak(node, "working", 1)
        node.clock.now_ms += limits.group_settle_ms
        with pytest.raises(ClientIdInUseError):
            await waits
