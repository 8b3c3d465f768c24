"""Consumer groups: members, sessions, offsets and how far behind a group is."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors import common as errors
from node.errors.translation import describe
from node.runtime.accounts import Accounts, Kind, Limit, on_behalf_of
from quorumlog.pb.admin_pb2 import (
    DescribeGroupRequest,
    DescribeGroupResponse,
    DescribeTopicRequest,
    ListGroupsRequest,
)
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.consumer_pb2 import (
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    GroupOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
)
from store.errors import Outcome
from tests.node.broker_fakes import Fixture, node_with
from tests.node.commands import SMALL_LIMITS
from tests.patience import eventually

TOPICS = {"orders": 4, "bills": 2}


async def beat(
    node: Fixture,
    client: str,
    *topics: str,
    group: str = "g",
    is_broadcasting: bool = False,
    reads: str = "",
    wants: str = "",
    **more: Any,
) -> HeartbeatResponse:
    return await node.broker.groups.heartbeat(
        HeartbeatRequest(
            group=group,
            client_id=client,
            topics=topics or ("orders",),
            is_broadcasting=is_broadcasting,
            cluster_id="cluster",
            queues=[QueueId(topic="orders", queue_id=int(queue)) for queue in reads],
            wanted=[QueueId(topic="orders", queue_id=int(queue)) for queue in wants],
            **more,
        )
    )


async def fetch(
    node: Fixture, *queues: tuple[str, int], group: str = "g"
) -> list[tuple[str, int, int]]:
    queue_ids = [QueueId(topic=t, queue_id=q) for t, q in queues]
    response = await node.broker.groups.fetch_offsets(
        FetchOffsetsRequest(group=group, queues=queue_ids)
    )
    return [(o.topic, o.queue_id, o.offset) for o in response.offsets]


async def describe_group(node: Fixture, group: str = "g") -> DescribeGroupResponse:
    return await node.broker.groups.describe_group(DescribeGroupRequest(group=group))


# --- Members ---


@node_with(topics=TOPICS)
async def test_members_share_each_topic_with_those_that_read_it(node: Fixture) -> None:
    assert list((await beat(node, "b")).client_ids) == ["b"]
    response = await beat(node, "a", "orders", "bills")
    assert list(response.client_ids) == ["a", "b"]
    assert (response.heartbeat_ms, response.session_ms) == (2_000, 10_000)
    assert [row.topic for row in response.readers] == ["bills"], "which one of them reads"
    bills = await beat(node, "c", "bills")
    assert list(bills.client_ids) == ["a", "b", "c"]
    assert [(row.topic, list(row.members)) for row in bills.readers] == [("bills", [0, 2])]
    orders = (await beat(node, "b")).readers
    assert [(row.topic, list(row.members)) for row in orders] == [("orders", [0, 1])]
    assert list((await beat(node, "x", group="other")).client_ids) == ["x"]
    alone = await beat(node, "all", is_broadcasting=True)
    assert list(alone.client_ids) == ["all"], "who takes all shares with nobody"


@node_with(topics=TOPICS)
async def test_a_generation_changes_with_the_members_and_only_then(node: Fixture) -> None:
    first = (await beat(node, "a")).generation
    assert (await beat(node, "a")).generation == first
    second = (await beat(node, "b")).generation
    assert second > first
    third = (await beat(node, "b", "orders", "bills")).generation
    assert third > second, "other topics are another sharing"
    await node.broker.groups.leave_group(LeaveGroupRequest(group="g", client_id="b"))
    await node.broker.groups.leave_group(LeaveGroupRequest(group="g", client_id="nobody"))
    fourth = await beat(node, "a")
    assert fourth.generation > third
    assert list(fourth.client_ids) == ["a"]


async def test_a_silent_member_is_out(node: Fixture) -> None:
    await beat(node, "a")
    node.clock.now_ms += 6_000
    await beat(node, "b")
    node.clock.now_ms += 3_999
    assert list((await beat(node, "b")).client_ids) == ["a", "b"]
    node.clock.now_ms += 1
    assert list((await beat(node, "b")).client_ids) == ["b"]
    node.clock.now_ms += 10_000
    assert not (await node.broker.groups.list_groups(ListGroupsRequest())).groups
    assert node.broker.group_members.total_count == 0


@node_with(filled=10)
async def test_a_new_leader_collects_members_before_it_names_them(node: Fixture) -> None:
    node.clock.now_ms += 60_000
    await node.commit("g", ("orders", 0, 1))
    generation = (await beat(node, "a")).generation
    node.driver.lose(2)
    with pytest.raises(errors.NotLeaderError):
        await beat(node, "a")
    node.driver.lead()
    for client in ("a", "b"):
        with pytest.raises(errors.NotReadyError) as caught:
            await beat(node, client)
        assert describe(caught.value).retry_after_ms == 3_000
        assert describe(caught.value).leader_address == "host1:8081"
    with pytest.raises(errors.NotReadyError):  # Who knows whether it is new?
        await beat(node, "z", group="new")
    node.clock.now_ms += 3_000
    response = await beat(node, "a")
    assert list(response.client_ids) == ["a", "b"]
    assert response.generation > generation, "through all terms"


async def withheld(node: Fixture, client: str, reads: str = "", wants: str = "") -> str:
    answer = await beat(node, client, reads=reads, wants=wants)
    return "".join(str(one.queue_id) for one in answer.withheld)


@node_with(filled=10)
async def test_a_queue_has_one_reader_until_that_one_names_it_no_more(node: Fixture) -> None:
    assert await withheld(node, "a", wants="0123") == ""
    assert await withheld(node, "b", wants="23") == "23"
    assert await withheld(node, "a", reads="012") == ""
    assert await withheld(node, "b", wants="23") == "2"
    node.driver.lose(2)
    node.driver.lead()
    node.clock.now_ms += 1
    for client, reads, wants in ("b", "3", "2"), ("a", "012", ""):
        with pytest.raises(errors.NotReadyError):  # The one that wants it may speak first.
            await beat(node, client, reads=reads, wants=wants)
    node.clock.now_ms += 3_000
    assert await withheld(node, "b", reads="3", wants="2") == "2"
    node.clock.now_ms += 9_999  # A session ends, and its member comes back.
    assert await withheld(node, "b", reads="3", wants="2") == ""
    assert await withheld(node, "a", reads="012") == "2"
    await node.broker.groups.leave_group(LeaveGroupRequest(group="g", client_id="b"))
    assert await withheld(node, "a", reads="01", wants="23") == ""


@node_with(filled=10)
async def test_a_member_hears_of_a_move_until_it_has_followed_it(node: Fixture) -> None:
    await node.commit("g", ("orders", 0, 1), ("orders", 1, 1))  # A tool moves the group.
    first = await beat(node, "a", reads="01")
    (move,) = {row.move for row in first.moved}
    followed: dict[str, Any] = {"followed_move": move, "generation": first.generation}
    assert not (await beat(node, "a", reads="01", **followed)).moved
    await node.commit("g", ("orders", 1, 0))
    (row,) = (await beat(node, "a", reads="01", **followed)).moved
    assert (row.queue_id, row.move > move) == (1, True)
    await beat(node, "b")  # Another generation may be of another log.
    assert len((await beat(node, "a", reads="01", **followed)).moved) == 2


@node_with(limits=replace(Limits(), group_member_count_max=2))
async def test_members_are_bounded(node: Fixture) -> None:
    await beat(node, "a")
    await beat(node, "b")
    with pytest.raises(errors.LimitReachedError, match="members of group 'g'"):
        await beat(node, "c")


@node_with(topics=TOPICS, limits=Limits(heartbeat_ms=5, session_ms=10))
async def test_members_are_charged_to_who_speaks_for_them(node: Fixture) -> None:
    accounts = Accounts({Kind.MEMBERS: Limit("members", 6, 7_000, connection_part=1)})
    other, flood = accounts.open("10.0.0.1"), accounts.open("10.0.0.2")
    with on_behalf_of(flood):
        for number in range(3):
            await beat(node, "a", group=f"g{number}")
        with pytest.raises(errors.BusyError, match=r"members of 10\.0\.0\.2: 3 held"):
            await beat(node, "a", group="h")
    with on_behalf_of(other):
        await beat(node, "b", group="h")
        many = [QueueId(topic="orders", queue_id=number) for number in range(30)]
        request = HeartbeatRequest(
            group="h", client_id="b", topics=["orders"], queues=many, cluster_id="cluster"
        )
        with pytest.raises(errors.BusyError, match="bytes of members"):
            await node.broker.groups.heartbeat(request)
        assert accounts.held(Kind.MEMBERS)[0] == 4
        await node.broker.groups.leave_group(LeaveGroupRequest(group="h", client_id="b"))
        node.clock.now_ms += 10
        await beat(node, "b", group="h")
        held = partial(accounts.held, Kind.MEMBERS)
        await eventually(lambda: held()[0] == 1, "sessions that ended are given back")
    node.driver.lose()
    assert accounts.total.is_empty


async def test_bad_heartbeats_are_refused(node: Fixture) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"group": ""}, "node.bad_request"),
        ({"group": "a@b"}, "node.bad_request"),
        ({"group": "x" * 128}, "node.bad_request"),
        ({"client_id": ""}, "node.bad_request"),
        ({"client_id": "x" * 255}, "node.bad_request"),
        ({"topics": []}, "node.bad_request"),
        ({"topics": ["nobody"]}, "node.unknown_topic"),
        ({"cluster_id": "other"}, "node.wrong_cluster"),
    ]
    for how, code in cases:
        beat = HeartbeatRequest(**{"group": "g", "client_id": "a", "topics": ["orders"], **how})
        with pytest.raises(errors.NodeError) as caught:
            await node.broker.groups.heartbeat(beat)
        assert caught.value.code == code, how


# --- Offsets ---


@node_with(filled=10, topics=TOPICS)
async def test_offsets_are_stored_and_fetched(node: Fixture) -> None:
    assert await fetch(node) == []
    await node.append(0, 7, topic="bills")
    commit = await node.commit("g", ("orders", 1, 5), ("bills", 0, 7))
    assert commit.index == node.driver.applied_index
    assert await fetch(node) == [("bills", 0, 7), ("orders", 1, 5)]
    queues = [("orders", 1), ("orders", 0), ("nobody", 0)]
    offsets = [("orders", 1, 5), ("orders", 0, -1), ("nobody", 0, -1)]
    assert await fetch(node, *queues) == offsets
    await node.commit("g", ("orders", 1, 3))
    assert await fetch(node, ("orders", 1)) == [("orders", 1, 3)]
    assert node.broker.freshness.barriers_total == 4, "each fetch is linearizable"
    node.driver.lose(2)
    with pytest.raises(errors.NotLeaderError):
        await fetch(node)


@node_with(filled=10, limits=SMALL_LIMITS)
async def test_bad_commits_are_refused(node: Fixture) -> None:
    last = node.log.last_index
    for rows, kind in (
        ([], errors.BadRequestError),
        ([("nobody", 0, 1)], errors.UnknownTopicError),
        ([("orders", 4, 1)], errors.UnknownQueueError),
        ([("orders", 0, -1)], errors.BadRequestError),
    ):
        with pytest.raises(kind):
            await node.commit("g", *rows)
    with pytest.raises(errors.BadRequestError):
        await node.commit("a@b", ("orders", 0, 1))
    with pytest.raises(errors.WrongClusterError):
        await node.broker.groups.commit_offsets(CommitOffsetsRequest(group="g", cluster_id="x"))
    assert node.log.last_index == last
    for group in "xyz":
        await node.commit(group, ("orders", 0, 1))
    with pytest.raises(errors.LimitReachedError):
        await node.commit("w", ("orders", 0, 1))


@node_with(limits=replace(Limits(), queue_offsets_count_max=2))
async def test_questions_and_commits_are_bounded(node: Fixture) -> None:
    with pytest.raises(errors.BadRequestError, match="offsets is 3"):
        await node.commit("g", *((("orders", 0, 1),) * 3))
    with pytest.raises(errors.BadRequestError, match="queues is 3"):
        await fetch(node, *((("orders", 0),) * 3))
    await beat(node, "a", "orders", reads="01", wants="23")
    with pytest.raises(errors.BadRequestError, match="queues is 5"):
        await beat(node, "a", "orders", reads="01", wants="234")


# --- For people ---


@node_with(topics=TOPICS)
async def test_a_group_is_described_with_its_lag(node: Fixture) -> None:
    await node.append(0, 10)
    await node.append(0, 4, topic="bills", queue_id=1)
    await node.commit("g", ("orders", 0, 7), ("bills", 1, 4), ("bills", 0, 0))
    node.clock.now_ms += 60_000
    await beat(node, "a", "orders")
    response = await describe_group(node)
    assert response.info.lag_count == 3
    assert list(response.info.topics) == ["bills", "orders"]
    assert list(response.client_ids) == ["a"]
    rows = {(q.topic, q.queue_id): (q.offset, q.max_offset) for q in response.queues}
    unread = {("orders", queue): (0, 0) for queue in (1, 2, 3)}
    assert rows == {("orders", 0): (7, 10), ("bills", 1): (4, 4), ("bills", 0): (0, 0), **unread}
    await beat(node, "m", "bills", group="only-members")
    listed = await node.broker.groups.list_groups(ListGroupsRequest())
    assert [(g.group, g.member_count, g.lag_count) for g in listed.groups] == [
        ("g", 1, 3),
        ("only-members", 1, 4),
    ]
    assert (await describe_group(node, "only-members")).info.topics == ["bills"]
    with pytest.raises(errors.UnknownGroupError):
        await describe_group(node, "nobody")


@node_with(topics=TOPICS)
async def test_a_queue_without_a_stored_offset_is_behind_by_all_that_it_keeps(
    node: Fixture,
) -> None:
    await node.commit("g", ("orders", 0, 0))
    await node.append(0, 5, queue_id=2)
    await node.append(0, 3, topic="bills")
    response = await describe_group(node)
    assert response.info.lag_count == 5, "it has begun in the topic"
    [row] = [q for q in response.queues if q.max_offset]
    assert (row.queue_id, row.offset, row.min_offset, row.max_offset) == (2, 0, 0, 5)
    await beat(node, "a", "orders", "bills")
    assert (await describe_group(node)).info.lag_count == 8
    await beat(node, "b", "bills", group="all", is_broadcasting=True)
    response = await describe_group(node, "all")
    assert (response.info.lag_count, list(response.queues)) == (0, []), "it has its own offsets"


@node_with(filled=10)
async def test_a_group_with_members_is_not_deleted(node: Fixture) -> None:
    await node.commit("g", ("orders", 0, 7))
    node.clock.now_ms += 60_000
    await beat(node, "a")
    with pytest.raises(errors.GroupNotEmptyError):
        await node.delete_group("g")
    await node.broker.groups.leave_group(LeaveGroupRequest(group="g", client_id="a"))
    await node.delete_group("g")
    assert await fetch(node) == []
    with pytest.raises(errors.UnknownGroupError):
        await node.delete_group("g")


@node_with(filled=10)
async def test_a_new_leader_does_not_take_a_group_for_empty(node: Fixture) -> None:
    await node.commit("g", ("orders", 0, 7))
    await beat(node, "a")
    node.driver.lose(2)
    node.driver.lead()
    rows = [GroupOffset(topic="orders", queue_id=0, offset=1)]
    back = CommitOffsetsRequest(group="g", offsets=rows, must_be_empty=True)
    for left_ms in (3_000, 1):
        with pytest.raises(errors.NotReadyError) as caught:
            await node.delete_group("g")
        assert describe(caught.value).retry_after_ms == left_ms
        assert describe(caught.value).outcome is Outcome.NOT_APPLIED
        with pytest.raises(errors.NotReadyError):
            await node.broker.groups.commit_offsets(back)
        node.clock.now_ms += 2_999 if left_ms > 1 else 1
    assert await fetch(node, ("orders", 0)) == [("orders", 0, 7)]
    with pytest.raises(errors.UnknownGroupError):
        await node.delete_group("new")
    await node.broker.groups.commit_offsets(back)
    assert await fetch(node, ("orders", 0)) == [("orders", 0, 1)]
    await node.delete_group("g")
    assert await fetch(node) == []
    await node.commit("g", ("orders", 0, 7))
    node.driver.lose(2)
    node.driver.lead()
    with pytest.raises(errors.NotReadyError):
        await beat(node, "a")
    with pytest.raises(errors.GroupNotEmptyError):  # It spoke.
        await node.delete_group("g")


@node_with(file_size_bytes=1 << 20)
async def test_large_messages_are_looked_at_in_turns_with_others(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.runtime.turn.SLICE_S", 0.0)  # Each look is a slice of its own.
    for queue_id in range(4):
        await node.append(0, 1, queue_id=queue_id, size_bytes=20_000)
    await node.commit("g", *(("orders", q, 1) for q in range(4)))
    topic = node.broker.topics.describe_topic(DescribeTopicRequest(topic="orders"))
    calls: list[Coroutine[Any, Any, Any]] = [describe_group(node), topic]
    for call in calls:
        task, turn_count = asyncio.ensure_future(call), 0
        while not task.done():
            await asyncio.sleep(0)
            turn_count += 1
        assert len((await task).queues) == 4
        assert turn_count >= 4


@node_with(topics=TOPICS, filled=20)
async def test_an_offset_of_a_member_that_was_away_is_left_out(node: Fixture) -> None:
    await node.commit("g", ("orders", 0, 20), ("orders", 1, 5))
    rows = [
        GroupOffset(topic="orders", queue_id=0, offset=12, newest_known=10),
        GroupOffset(topic="orders", queue_id=1, offset=4, newest_known=5),
        GroupOffset(topic="bills", queue_id=0, offset=0, newest_known=0),
    ]
    answer = await node.broker.groups.commit_offsets(CommitOffsetsRequest(group="g", offsets=rows))
    assert [(row.topic, row.queue_id, row.offset) for row in answer.moved] == [("orders", 0, 20)]
    stored = node.broker.context.state.groups["g"]
    assert stored == {"orders": {0: 20, 1: 4}, "bills": {0: 0}}
