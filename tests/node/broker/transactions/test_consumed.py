"""Offsets that ride with a batch: stored together, refused together, one consumer at a time."""

import asyncio

import pytest

from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    BusyError,
    LimitReachedError,
    NotAppliedError,
    NotLeaderError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.errors.transactions import OffsetConflictError
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.transaction_pb2 import CommitConsumedRequest, ConsumedOffset, ConsumedOffsets
from tests.node.broker_fakes import Fixture, node_with, request
from tests.node.transaction_calls import stored

GROUP = "readers"


def offset(expected: int, new: int, queue_id: int = 0, topic: str = "orders") -> ConsumedOffset:
    return ConsumedOffset(topic=topic, queue_id=queue_id, expected=expected, offset=new)


def outputs(
    number: int, *offsets: ConsumedOffset, group: str = GROUP, producer_id: int = 0
) -> AppendRequest:
    """One message that was made of others."""
    made = request(number, number + 1, topic="bills", producer_id=producer_id)
    made.consumed.CopyFrom(ConsumedOffsets(group=group, offsets=offsets))
    return made


def commit(*offsets: ConsumedOffset) -> CommitConsumedRequest:
    return CommitConsumedRequest(consumed=ConsumedOffsets(group=GROUP, offsets=offsets))


def offsets_of(node: Fixture, group: str = GROUP) -> dict[str, dict[int, int]]:
    return node.machine.state.groups.get(group, {})


TOPICS = {"orders": 4, "bills": 1}


@node_with(filled=10, topics=TOPICS)
async def test_outputs_and_offsets_are_stored_together(node: Fixture) -> None:
    first = await node.broker.append(outputs(0, offset(-1, 3), offset(-1, 1, 2)))
    assert first.record_count == 1
    assert offsets_of(node) == {"orders": {0: 3, 2: 1}}
    await node.broker.append(outputs(1, offset(3, 5)))
    assert offsets_of(node) == {"orders": {0: 5, 2: 1}}
    assert len(await stored(node, "bills")) == 2


@node_with(filled=10, topics=TOPICS)
async def test_of_two_who_read_the_same_one_is_refused_with_his_outputs(node: Fixture) -> None:
    await node.broker.append(outputs(0, offset(-1, 3)))
    for late in (offset(-1, 2), offset(0, 3), offset(4, 5)):
        with pytest.raises(OffsetConflictError, match="another consumer") as caught:
            await node.broker.append(outputs(1, late))
        assert caught.value.offset == 3
    with pytest.raises(OffsetConflictError):  # One of two is enough.
        await node.broker.append(outputs(1, offset(-1, 1, 1), offset(-1, 2)))
    assert offsets_of(node) == {"orders": {0: 3}}
    assert len(await stored(node, "bills")) == 1


@node_with(filled=10, topics=TOPICS)
async def test_offsets_under_way_count_in_their_order(node: Fixture) -> None:
    node.driver.is_holding = True
    first = node.broker.append_nowait(outputs(0, offset(-1, 3)))
    second = node.broker.append_nowait(outputs(1, offset(3, 5)))
    with pytest.raises(OffsetConflictError):
        await node.broker.append(outputs(2, offset(-1, 3)))
    third = await node.written(node.broker.consumed.commit_consumed(commit(offset(5, 7))))
    with pytest.raises(OffsetConflictError):
        await node.broker.append(outputs(2, offset(5, 6)))
    node.driver.release()
    await asyncio.gather(first, second, third)
    assert offsets_of(node) == {"orders": {0: 7}}
    await node.broker.append(outputs(3, offset(7, 8)))


@node_with(filled=10, topics=TOPICS)
async def test_offsets_cut_off_by_a_new_leader_count_no_more(node: Fixture) -> None:
    node.driver.is_holding = True
    kept = node.broker.append_nowait(outputs(0, offset(-1, 3)))
    cut = node.broker.append_nowait(outputs(1, offset(3, 5)))
    node.driver.lose()
    with pytest.raises(NotLeaderError):
        await node.broker.append(outputs(2, offset(3, 4)))
    node.driver.decide(1)
    node.driver.lead()
    node.driver.is_holding = False
    await node.broker.append(outputs(3, offset(3, 9)))
    assert (await kept).record_count == 1
    with pytest.raises(NotAppliedError):
        await cut
    assert offsets_of(node) == {"orders": {0: 9}}
    assert len(await stored(node, "bills")) == 2


@node_with(filled=10, topics=TOPICS)
async def test_a_commit_without_a_condition_makes_others_wait(node: Fixture) -> None:
    unconditional = await node.written(node.commit(GROUP, ("orders", 0, 2)))
    with pytest.raises(BusyError, match="commits of orders/0 by readers"):
        await node.broker.append(outputs(0, offset(-1, 3)))
    with pytest.raises(BusyError):
        await node.broker.consumed.commit_consumed(commit(offset(-1, 3)))
    node.driver.release()
    await unconditional
    await node.broker.append(outputs(0, offset(2, 3)))
    await node.delete_group(GROUP)
    await node.broker.append(outputs(1, offset(-1, 1)))


@node_with(
    filled=10,
    topics=TOPICS,
    limits=Limits(group_count_max=1, group_offset_count_max=2, offset_count_max=3),
)
async def test_bad_requests_are_refused_by_name(node: Fixture) -> None:
    delayed = outputs(0, offset(-1, 1))
    delayed.has_delayed = True
    for kind, asked in (
        (BadRequestError, outputs(0)),
        (BadRequestError, outputs(0, offset(-1, 1), group="a b")),
        (BadRequestError, outputs(0, offset(-1, 1), offset(-1, 2))),
        (BadRequestError, outputs(0, offset(5, 4))),
        (BadRequestError, outputs(0, offset(-1, -1))),
        (UnknownTopicError, outputs(0, offset(-1, 1, topic="nowhere"))),
        (UnknownQueueError, outputs(0, offset(-1, 1, 9))),
        (LimitReachedError, outputs(0, *(offset(-1, 1, n) for n in range(3)))),
        (BadRequestError, delayed),
    ):
        before = node.log.last_index
        with pytest.raises(kind):
            await node.broker.append(asked)
        assert node.log.last_index == before
    node.driver.is_holding = True
    append = node.broker.append_nowait(outputs(0, offset(-1, 1), offset(-1, 1, 1)))
    with pytest.raises(LimitReachedError, match="groups"):
        await node.broker.append(outputs(1, offset(-1, 1), group="others"))
    with pytest.raises(LimitReachedError, match="offsets of a group"):
        await node.broker.append(outputs(1, offset(-1, 1, 2)))
    node.driver.release()
    await append
    assert node.machine.state.refused_count == 0
