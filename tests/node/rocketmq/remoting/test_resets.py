"""A reset holds until a consumer follows it, whoever resets, where to, and wherever it reads."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from node.errors.common import AppendTimeoutError, LimitReachedError
from node.errors.transactions import OffsetConflictError
from node.runtime.accounts import Kind, Limit
from node.state.state import State
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, GroupOffset, HeartbeatRequest
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest, ConsumedOffset
from tests.node.commands import SMALL_LIMITS, commit, delete_group, delete_topic, put_topic
from tests.node.rocketmq.remoting import codes
from tests.node.rocketmq.remoting.clients import Gateway, gateway_at
from tests.node.rocketmq.remoting.test_forwarding import QUEUE, pair_at
from tests.patience import eventually

MOVED = 21


async def store(
    gateway: Gateway, offset: int, known: int | None = None, move: int | None = None
) -> list[int]:
    """Store as the SDK does; return what stays. `known` is None for a person."""
    row = GroupOffset(topic="orders", queue_id=0, offset=offset, newest_known=known, move=move)
    request = CommitOffsetsRequest(group="readers", offsets=[row])
    return [one.offset for one in (await gateway.node.broker.groups.commit_offsets(request)).moved]


async def by_tool(gateway: Gateway, offset: int) -> None:
    ext = QUEUE | {"group": "readers", "timestamp": "0", "offset": str(offset), "isForce": "true"}
    assert (await (await gateway.client()).ask(codes.RESET, ext)).code == 0


def is_empty(gateway: Gateway) -> bool:
    broker = gateway.node.broker
    return not broker.group_members.clients_of("readers", broker.context.clock_ms())


async def stored(gateway: Gateway) -> str:
    return (await (await gateway.client()).ask(codes.GET_OFFSET, QUEUE)).ext["offset"]


@pytest.mark.parametrize("moved_to", [2, 5, 9])
@pytest.mark.parametrize("reset", [store, by_tool])
@pytest.mark.parametrize("reader", ["sdk", "same", "again", "elsewhere"])
async def test_a_reset_holds_until_a_consumer_follows_it(
    tmp_path: Path, reader: str, reset: Callable[[Gateway, int], Awaitable[object]], moved_to: int
) -> None:
    async with pair_at(tmp_path) as (leader, follower):
        await leader.node.append(0, 40)  # 10 in each queue.
        await store(leader, 5, known=-1)
        client = await (follower if reader == "elsewhere" else leader).client()
        if reader == "same":
            assert (await client.ask(codes.GET_OFFSET, QUEUE)).ext["offset"] == "5"
        if reader != "sdk":
            assert (await client.heartbeat("a@1")).code == 0  # Else a tool might go back.
        await reset(leader, moved_to)
        follower.node.machine.state.apply_command(commit("readers", ("orders", 0, moved_to)), 1)
        if reader == "sdk":
            request = HeartbeatRequest(group="readers", client_id="a", topics=["orders"])
            request.queues.append(QueueId(topic="orders", queue_id=0))
            (moved_offset,) = (await leader.node.broker.groups.heartbeat(request)).moved
            for offset in (7, 11):
                assert await store(leader, offset, known=5, move=0) == [moved_to]
                consumed = ConsumedOffset(topic="orders", expected=5, offset=offset, move=0)
                call = CommitConsumedRequest()
                call.consumed.group = "readers"
                call.consumed.offsets.append(consumed)
                with pytest.raises(OffsetConflictError):
                    await leader.node.broker.consumed.commit_consumed(call)
            assert await store(leader, moved_to + 1, known=moved_to, move=moved_offset.move) == []
            assert await store(leader, 10, known=moved_to, move=0) == [moved_to + 1], "for good"
            assert await store(leader, 10, known=moved_to) == [], "one that says nothing"
        else:
            for late in ("7", "11"):  # Also once it was told, before it goes there.
                for _ in range(2):
                    refused = await client.ask(codes.COMMIT, QUEUE | {"commitOffset": late})
                    assert (refused.code, refused.ext) == (1, {})
                    response = await client.ask(codes.GET_OFFSET, QUEUE)
                    assert response.ext == {"offset": str(moved_to)}
                moved = await client.pull(0, 7)
                assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, str(moved_to))
            assert (await client.pull(0, moved_to)).code == 0
            assert await stored(leader) == str(moved_to)
            done = await client.ask(codes.COMMIT, QUEUE | {"commitOffset": str(moved_to + 1)})
            assert done.code == 0, done.remark
            assert await stored(leader) == str(moved_to + 1)
            assert (await client.pull(0, moved_to + 1)).code != MOVED
            assert (await (await leader.client()).pull(0, 10)).code != MOVED, "one that comes later"


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("lost", [3, 9])
async def test_after_a_commit_without_an_answer_its_client_may_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, is_stored: bool, node: int
) -> None:
    async with pair_at(tmp_path) as pair:
        await pair[0].node.append(0, 40)
        client, groups = await pair[node].client(), pair[0].node.broker.groups
        await client.heartbeat("a@1")
        assert (await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "5"})).code == 0

        async def without_answer(request: CommitOffsetsRequest) -> None:
            if is_stored:
                await type(groups).commit_offsets(groups, request)
            raise AppendTimeoutError(1)

        with monkeypatch.context() as patched:
            patched.setattr(groups, "commit_offsets", without_answer)
            assert (await client.ask(codes.COMMIT, QUEUE | {"commitOffset": str(lost)})).code == 14
        for offset in ("4", "8", "2"):
            done = await client.ask(codes.COMMIT, QUEUE | {"commitOffset": offset})
            assert done.code == 0, done.remark
            assert await stored(pair[0]) == offset


@pytest.mark.parametrize("node", [0, 1])
async def test_one_that_never_commits_is_told_once(tmp_path: Path, node: int) -> None:
    """And one that keeps its own offsets never, whatever it reads and over which connection."""
    async with pair_at(tmp_path) as pair:
        await pair[0].node.append(0, 40)
        await store(pair[0], 5, known=-1)
        await by_tool(pair[0], 2)
        pair[1].node.machine.state.apply_command(commit("readers", ("orders", 0, 2)), 1)
        for _ in range(2):
            own = await pair[node].client()
            await own.heartbeat("b@1", model="BROADCASTING")
            assert [(await own.pull(0, at)).code for at in (7, 2, 7)] == [0, 0, 0]
            assert (await (await pair[node].client()).pull(0, 7)).code == 0, "no heartbeat yet"
        await own.close()
        reader, late = await pair[node].client(), await pair[0].client()
        await reader.heartbeat("a@1")
        assert (await late.ask(codes.COMMIT, QUEUE | {"commitOffset": "7"})).code == 1
        for client in (reader, late):
            assert (await client.pull(0, 7)).ext["nextBeginOffset"] == "2"
        assert (await late.ask(codes.COMMIT, QUEUE | {"commitOffset": "7"})).code == 1, "only told"
        assert (await reader.pull(0, 2)).code == 0
        again = await pair[node].client()
        assert (await again.pull(0, 7)).code == 0
        await reader.close()
        await eventually(partial(is_empty, pair[0]))
        assert (await again.ask(codes.COMMIT, QUEUE | {"commitOffset": "8"})).code == 0
        assert (await late.pull(0, 2)).code == 0
        assert await stored(pair[0]) == "8", "one that goes there late takes nobody back"


async def test_a_pull_goes_on_where_following_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_at(tmp_path) as (leader, _):
        await leader.node.append(0, 40)
        await store(leader, 5, known=-1)
        await by_tool(leader, 2)
        with monkeypatch.context() as patched:
            full = AsyncMock(side_effect=LimitReachedError("offsets", 2, 1))
            patched.setattr(leader.node.broker.groups, "commit_offsets", full)
            client = await leader.client()
            assert [(await client.pull(0, at)).code for at in (7, 2, 7)] == [MOVED, 0, 0]
            full.assert_awaited_once()
        again = await leader.client()
        assert [(await again.pull(0, at)).code for at in (7, 2)] == [MOVED, 0]
        assert (await (await leader.client()).pull(0, 7)).code == 0


async def test_one_that_there_is_no_room_to_know_of_is_refused(tmp_path: Path) -> None:
    async with gateway_at(tmp_path, held={Kind.ROWS: Limit("rows in memory", 1)}) as leader:
        await leader.node.append(0, 40)
        await store(leader, 5, known=-1)
        await by_tool(leader, 2)
        await stored(leader)  # Takes the room.
        response = await (await leader.client()).pull(0, 7)
        assert (response.code, "rows in memory" in str(response.remark)) == (14, True)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("offset", [2, 7])
async def test_without_members_who_asks_may_store(tmp_path: Path, node: int, offset: int) -> None:
    async with pair_at(tmp_path) as pair:
        await pair[0].node.append(0, 40)
        await store(pair[0], 5, known=-1)
        await by_tool(pair[0], 2)
        tool, member = await pair[node].client(), await pair[0].client()
        there, beyond = QUEUE | {"commitOffset": str(offset)}, QUEUE | {"commitOffset": "8"}
        for _ in range(2):  # A consumer that a pull told stores what it read before.
            assert (await tool.ask(codes.COMMIT, beyond)).code == 1, "it did not ask"
            assert (await tool.pull(0, 7)).code == MOVED
        assert (await tool.ask(codes.GET_OFFSET, QUEUE)).ext == {"offset": "2"}
        await member.heartbeat("a@1")
        assert (await tool.ask(codes.COMMIT, beyond)).code == 1, "members go there first"
        await member.close()
        await eventually(partial(is_empty, pair[0]))
        assert (await tool.ask(codes.COMMIT, there)).code == 0
        assert (await tool.ask(codes.COMMIT, beyond)).code == 0
        assert await stored(pair[0]) == "8"


async def test_a_connection_whose_offset_others_moved_is_told(tmp_path: Path) -> None:
    """Without a mark: another consumer knew of the reset first, or a failover lost offsets."""
    async with pair_at(tmp_path) as (leader, _):
        await leader.node.append(0, 40)
        client = await leader.client()
        await client.heartbeat("a@1")
        await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "5"})
        await store(leader, 2)
        assert await store(leader, 3, known=2) == []
        assert (await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "6"})).code == 1
        response = await client.pull(0, 6)
        assert (response.code, response.ext["nextBeginOffset"]) == (MOVED, "3")
        assert (await client.pull(0, 3)).code == 0
        assert (await client.ask(codes.COMMIT, QUEUE | {"commitOffset": "4"})).code == 0


def test_marks_are_in_images_and_go_with_group_and_topic() -> None:
    state = State(SMALL_LIMITS)
    for number, name in enumerate(("orders", "bills")):
        state.apply_command(put_topic(name), number)
    rows = [("orders", 1, 7), ("orders", 0, 7), ("bills", 2, 7)]
    state.apply_command(commit("g", *rows), 2)
    state.apply_command(commit("h", *rows[:1]), 3)
    again = State(SMALL_LIMITS, state.image())
    assert again.image() == state.image()
    late = GroupOffset(topic="orders", queue_id=1, offset=9, newest_known=8)
    assert again.moved_offset("g", late) == 7
    late.newest_known, late.move = 7, 1
    assert again.moved_offset("g", late) == 7
    late.move = 2
    assert again.moved_offset("g", late) is None
    again.apply_command(delete_group("g"), 4)
    again.apply_command(delete_topic("orders"), 5)
    assert again.image().tables["moved_offsets"].content == {"groups": {}}
