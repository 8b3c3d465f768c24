"""A reset holds until a consumer follows it, whoever resets, where to, and wherever it reads."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node.errors.transactions import OffsetConflictError
from node.state.state import State
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, GroupOffset, HeartbeatRequest
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest, ConsumedOffset
from tests.node.commands import SMALL_LIMITS, commit, delete_group, delete_topic, put_topic
from tests.node.rocketmq.remoting.clients import COMMIT, GET_OFFSET, RESET, Gateway
from tests.node.rocketmq.remoting.test_forwarding import QUEUE, pair_at

MOVED = 21


async def store(
    gateway: Gateway, offset: int, known: int | None = None, move: int | None = None
) -> list[int]:
    """Store as the SDK does; return what stays. `known` is None for a person."""
    row = GroupOffset(topic="orders", queue_id=0, offset=offset, newest_known=known, move=move)
    asked = CommitOffsetsRequest(group="readers", offsets=[row])
    return [one.offset for one in (await gateway.node.broker.groups.commit_offsets(asked)).moved]


async def by_tool(gateway: Gateway, offset: int) -> None:
    ext = QUEUE | {"group": "readers", "timestamp": "0", "offset": str(offset), "isForce": "true"}
    assert (await (await gateway.client()).ask(RESET, ext)).code == 0


async def stored(gateway: Gateway) -> str:
    return (await (await gateway.client()).ask(GET_OFFSET, QUEUE)).ext["offset"]


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
            assert (await client.ask(GET_OFFSET, QUEUE)).ext["offset"] == "5"
        if reader != "sdk":
            assert (await client.heartbeat("a@1")).code == 0  # Else a tool might go back.
        await reset(leader, moved_to)
        follower.node.machine.state.apply_command(commit("readers", ("orders", 0, moved_to)), 1)
        if reader == "sdk":
            asked = HeartbeatRequest(group="readers", client_id="a", topics=["orders"])
            asked.queues.append(QueueId(topic="orders", queue_id=0))
            (told,) = (await leader.node.broker.groups.heartbeat(asked)).moved
            for offset in (7, 11):
                assert await store(leader, offset, known=5, move=0) == [moved_to]
                consumed = ConsumedOffset(topic="orders", expected=5, offset=offset, move=0)
                call = CommitConsumedRequest()
                call.consumed.group = "readers"
                call.consumed.offsets.append(consumed)
                with pytest.raises(OffsetConflictError):
                    await leader.node.broker.consumed.commit_consumed(call)
            assert await store(leader, moved_to + 1, known=moved_to, move=told.move) == []
            assert await store(leader, 10, known=moved_to, move=0) == [moved_to + 1], "for good"
            assert await store(leader, 10, known=moved_to) == [], "one that says nothing"
        else:
            for late in ("7", "11"):  # Also once it was told, before it goes there.
                for _ in range(2):
                    refused = await client.ask(COMMIT, QUEUE | {"commitOffset": late})
                    assert (refused.code, refused.ext) == (1, {})
                    found = await client.ask(GET_OFFSET, QUEUE)
                    assert found.ext == {"offset": str(moved_to)}
                moved = await client.pull(0, 7)
                assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, str(moved_to))
            assert (await client.pull(0, moved_to)).code == 0
            assert await stored(leader) == str(moved_to)
            done = await client.ask(COMMIT, QUEUE | {"commitOffset": str(moved_to + 1)})
            assert done.code == 0, done.remark
            assert await stored(leader) == str(moved_to + 1)
            assert (await client.pull(0, moved_to + 1)).code != MOVED
            assert (await (await leader.client()).pull(0, 10)).code != MOVED, "one that comes later"


async def test_a_connection_whose_offset_others_moved_is_told(tmp_path: Path) -> None:
    """Without a mark: another consumer knew of the reset first, or a failover lost offsets."""
    async with pair_at(tmp_path) as (leader, _):
        await leader.node.append(0, 40)
        client = await leader.client()
        await client.heartbeat("a@1")
        await client.ask(COMMIT, QUEUE | {"commitOffset": "5"})
        await store(leader, 2)
        assert await store(leader, 3, known=2) == []
        assert (await client.ask(COMMIT, QUEUE | {"commitOffset": "6"})).code == 1
        told = await client.pull(0, 6)
        assert (told.code, told.ext["nextBeginOffset"]) == (MOVED, "3")
        assert (await client.pull(0, 3)).code == 0
        assert (await client.ask(COMMIT, QUEUE | {"commitOffset": "4"})).code == 0


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
