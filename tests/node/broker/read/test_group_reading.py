"""What groups and readers get of the broker: filters, permissions, who reads what, resets."""

import asyncio
from typing import Any

import pytest

from node.broker.core.parked_readers import CROWD_COUNT
from node.broker.read.filters import SqlFilter
from node.config.limits import Limits
from node.errors.common import GroupNotEmptyError
from node.errors.groups import BadFilterError, GroupDisabledError, TopicForbiddenError
from quorumlog.pb.admin_pb2 import DescribeGroupRequest
from quorumlog.pb.common_pb2 import TopicNames
from quorumlog.pb.consumer_pb2 import CommitOffsetsRequest, GroupOffset, HeartbeatRequest
from quorumlog.pb.log_pb2 import (
    PULL_STATUS_FOUND,
    PULL_STATUS_NO_MATCHED_MESSAGE,
    PullRequest,
    TailRequest,
)
from store.record.message import decode_message, encode_message
from tests.node.broker_fakes import Fixture, configure, node_with
from tests.patience import eventually
from tests.store.records import messages


async def fill(node: Fixture, lo: int, hi: int) -> None:
    """Messages [lo, hi) of queue 0 of orders, each with its number and a tag."""
    records = [
        encode_message("orders", 0, b"%d" % n, {"n": str(n), "TAGS": "even" if n % 2 == 0 else "x"})
        for n in range(lo, hi)
    ]
    await node.put(*records)


def bodies(data: bytes) -> list[bytes]:
    return [message.body for message in messages(data)]


async def test_a_pull_gives_what_a_filter_matches(node: Fixture) -> None:
    await fill(node, 0, 10)
    page = await node.broker.pull(PullRequest(topic="orders", sql="n BETWEEN 3 AND 5"))
    assert (page.status, page.record_count, page.next_offset) == (PULL_STATUS_FOUND, 3, 10)
    assert bodies(page.records) == [b"3", b"4", b"5"]

    both = PullRequest(topic="orders", sql="n > 5", tags=["even"])
    assert bodies((await node.broker.pull(both)).records) == [b"6", b"8"]
    none = await node.broker.pull(PullRequest(topic="orders", sql="n > 100"))
    assert (none.status, none.records, none.next_offset) == (
        PULL_STATUS_NO_MATCHED_MESSAGE, b"", 10,
    )  # fmt: skip
    with pytest.raises(BadFilterError):
        await node.broker.pull(PullRequest(topic="orders", sql="n >"))


@node_with(limits=Limits(pull_test_count_max=12))
async def test_a_costly_filter_looks_at_fewer_records(node: Fixture) -> None:
    await fill(node, 0, 10)
    page = await node.broker.pull(PullRequest(topic="orders", sql="n > 5 OR n > 6 OR n > 7"))
    assert (page.status, page.next_offset) == (PULL_STATUS_NO_MATCHED_MESSAGE, 4)
    rest = await node.broker.pull(PullRequest(topic="orders", sql="n > 5", offset=4))
    assert (bodies(rest.records), rest.next_offset) == ([b"6", b"7", b"8", b"9"], 10)


async def test_filters_of_many_readers_run_one_after_another(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.runtime.turn.SLICE_S", 0.0)  # Each look is a slice of its own.
    looks, turns = list[int](), 0

    def keep(_: SqlFilter, data: bytes) -> tuple[bytes, int]:
        looks.append(turns)
        return data, 1

    monkeypatch.setattr(SqlFilter, "keep", keep)
    request = PullRequest(topic="orders", sql="n = 1", wait_ms=30_000)
    readers = [asyncio.ensure_future(node.broker.pull(request)) for _ in range(20)]
    parked = node.broker.parked
    await eventually(lambda: parked.readers.used == len(readers), "the readers")
    await fill(node, 0, 1)
    while not all(reader.done() for reader in readers):
        await asyncio.sleep(0)
        turns += 1
    assert len({*looks}) == len(looks) == len(readers)


async def test_a_parked_reader_waits_for_what_matches(node: Fixture) -> None:
    await fill(node, 0, 3)
    request = PullRequest(topic="orders", sql="n = 4", wait_ms=30_000)
    task = asyncio.ensure_future(node.broker.pull(request))
    tail: Any = node.broker.tail(TailRequest(topic="orders", sql="n >= 4"))
    first = asyncio.ensure_future(anext(tail))
    for lo in (3, 4):
        await fill(node, lo, lo + 1)
    assert bodies((await task).records) == [b"4"]
    assert bodies((await first).records) == [b"4"]
    await tail.aclose()


async def test_a_group_that_may_not_read_gets_nothing(node: Fixture) -> None:
    await fill(node, 0, 1)
    request = PullRequest(topic="orders", group="readers", wait_ms=30_000)
    assert (await node.broker.pull(request)).record_count == 1
    waiting = PullRequest(topic="orders", group="readers", offset=1, wait_ms=30_000)
    task = asyncio.ensure_future(node.broker.pull(waiting))
    await asyncio.sleep(0)
    await configure(node, "readers", forbidden_topics=TopicNames(topics=["orders"]))
    with pytest.raises(TopicForbiddenError):
        await node.broker.pull(request)
    await fill(node, 1, 2)
    with pytest.raises(TopicForbiddenError):
        await task
    await configure(node, "readers", forbidden_topics=TopicNames(), is_consume_enabled=False)
    with pytest.raises(GroupDisabledError):
        await node.broker.pull(request)
    assert (await node.broker.pull(PullRequest(topic="orders"))).record_count == 2


async def test_members_are_refused_by_the_settings(node: Fixture) -> None:
    beat = HeartbeatRequest(group="readers", client_id="one", topics=["orders"])
    await configure(node, "readers", is_broadcast_enabled=False)
    node.clock.now_ms += 10_000  # The group is known, and nobody was in it before.
    await node.broker.groups.heartbeat(beat)
    beat.is_broadcasting = True
    with pytest.raises(GroupDisabledError, match="broadcasting"):
        await node.broker.groups.heartbeat(beat)
    await configure(node, "readers", is_consume_enabled=False)
    beat.is_broadcasting = False
    with pytest.raises(GroupDisabledError, match="consuming"):
        await node.broker.groups.heartbeat(beat)


async def test_people_see_who_reads_what_and_how_old_that_is(node: Fixture) -> None:
    await fill(node, 0, 3)
    for client_id, queue_id in (("one", 0), ("two", 1)):
        beat = HeartbeatRequest(group="readers", client_id=client_id, topics=["orders"])
        beat.queues.add(topic="orders", queue_id=queue_id)
        await node.broker.groups.heartbeat(beat)
    await node.commit("readers", ("orders", 0, 2), ("orders", 1, 0), ("orders", 2, 0))
    response = await node.broker.groups.describe_group(DescribeGroupRequest(group="readers"))
    assert [queue.client_id for queue in response.queues] == ["one", "two", "", ""]
    stored = decode_message(node.log.store.reads.pull("orders", 0, 1, max_count=1).data)
    assert response.queues[0].last_consumed_unix_ms == stored.store_unix_ms
    assert response.queues[1].last_consumed_unix_ms == 0


async def test_offsets_of_a_group_with_members_stay_if_asked(node: Fixture) -> None:
    beat = HeartbeatRequest(group="readers", client_id="one", topics=["orders"])
    await node.broker.groups.heartbeat(beat)
    rows = [GroupOffset(topic="orders", offset=0)]
    commit = CommitOffsetsRequest(group="readers", offsets=rows, must_be_empty=True)
    with pytest.raises(GroupNotEmptyError):
        await node.broker.groups.commit_offsets(commit)
    node.clock.now_ms += 60_000
    await node.broker.groups.commit_offsets(commit)
    assert node.machine.state.groups["readers"] == {"orders": {0: 0}}


async def test_a_crowd_of_one_address_rests_between_useless_looks(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def keep(_: SqlFilter, data: bytes) -> tuple[bytes, int]:
        nonlocal looks
        looks += 1
        return b"", 0

    monkeypatch.setattr(SqlFilter, "keep", keep)
    monkeypatch.setattr("node.broker.core.parked_readers._REST_S", 3_600.0)
    request = PullRequest(topic="orders", sql="n = 1", wait_ms=30_000)
    crowd_count = CROWD_COUNT + 1
    readers = [asyncio.ensure_future(node.broker.pull(request)) for _ in range(crowd_count)]
    parked = node.broker.parked
    await eventually(lambda: parked.readers.used == crowd_count, "the readers")
    for number in range(3):
        await fill(node, number, number + 1)
        await eventually(lambda: looks == crowd_count, "one look of each, and then none")
        assert parked.readers.used == 0
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert not parked._crowds
