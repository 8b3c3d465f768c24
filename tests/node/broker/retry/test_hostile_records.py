"""Retries and consumed offsets: hostile records, and callers that are cancelled."""

import asyncio
from pathlib import Path

import pytest

from node.broker.topics.config_files import ImportPlan
from node.errors.common import BusyError
from quorumlog.pb.common_pb2 import Delays, GroupSettings, TopicNames
from quorumlog.pb.retry_pb2 import ResendDeadLettersRequest, RetryLaterRequest, RetryMessage
from store.errors import LimitExceededError, TopicNameError
from store.record.message import decode_message, encode_message
from tests.node.broker.retry.test_retry import committed, given_back
from tests.node.broker.transactions.test_consumed import (
    TOPICS,
    commit,
    offset,
    offsets_of,
    outputs,
)
from tests.node.broker_fakes import Fixture, configure, node_at, node_with


async def send_with_times(node: Fixture, *times: int) -> None:
    records = [encode_message("orders", 0, b"x", reconsume_times=count) for count in times]
    await node.put(*records)


async def test_a_count_below_zero_that_a_producer_wrote_is_none(node: Fixture) -> None:
    await send_with_times(node, -5, -(1 << 31))
    for settings in (GroupSettings(), GroupSettings(retry_delays=Delays(delay_ms=[1_000]))):
        await configure(node, "readers", retry_delays=settings.retry_delays)
        answer = await node.broker.retry.retry_later(given_back(0, 1))
        assert (answer.retried_count, answer.dead_count) == (2, 0)
    held = node.log.store.reads.pull("rmq_sys_wheel_timer", 0, 0, max_count=1)
    assert decode_message(held.data).reconsume_times == 1


@node_with(filled=10, topics=TOPICS)
async def test_offsets_that_could_not_be_written_leave_those_under_way_alone(node: Fixture) -> None:
    node.driver.is_holding = True
    first = node.broker.append_nowait(outputs(0, offset(-1, 3)))
    node.driver.failure = BusyError("entries", 1, 1)
    with pytest.raises(BusyError):
        await node.broker.consumed.commit_consumed(commit(offset(3, 5)))
    again = node.broker.append_nowait(outputs(1, offset(3, 6)))
    node.driver.release()
    await asyncio.gather(first, again)
    assert offsets_of(node) == {"orders": {0: 6}}


async def test_more_than_a_batch_is_not_read(node: Fixture) -> None:
    size_bytes = node.broker.produce.own_size_bytes_max // 2
    for _ in range(6):
        await node.put(encode_message("orders", 0, b"x" * size_bytes))
    read = list[int]()
    pull = node.log.store.reads.pull

    def counted(topic: str, queue_id: int, at: int, *, max_count: int) -> object:
        read.append(at)
        return pull(topic, queue_id, at, max_count=max_count)

    node.log.store.reads.pull = counted  # type: ignore[method-assign, assignment]
    messages = [RetryMessage(topic="orders", offset=o, is_dead=True) for o in range(6)]
    with pytest.raises(LimitExceededError, match="batch"):
        await node.broker.retry.retry_later(RetryLaterRequest(group="readers", messages=messages))
    assert read == [0, 1]


@pytest.mark.parametrize("is_dead", [False, True])
@node_with(file_size_bytes=1 << 18)
async def test_a_message_that_has_no_room_for_its_origin_is_a_dead_letter(
    node: Fixture, is_dead: bool
) -> None:
    await node.put(encode_message("orders", 0, b"x", {"a": "b" * 32_700}))
    answer = await node.broker.retry.retry_later(given_back(0, is_dead=is_dead))
    assert answer.dead_count == 1
    dead = node.log.store.reads.pull("%DLQ%readers", 0, 0)
    assert decode_message(dead.data).properties == {"a": "b" * 32_700}


async def test_the_largest_message_can_be_rejected_and_sent_again(tmp_path: Path) -> None:
    topic = "t" * 127
    async with node_at(tmp_path, topics={topic: 1}) as node:
        limit = node.broker.produce.batch_size_bytes_max
        least = len(encode_message(topic, 0, b""))
        await node.put(encode_message(topic, 0, b"x" * (limit - least)))
        group = "g" * 120
        offsets = [committed(1, topic)]
        answer = await node.broker.retry.retry_later(
            given_back(0, topic=topic, group=group, is_dead=True, offsets=offsets)
        )
        assert answer.dead_count == 1
        request = ResendDeadLettersRequest(group=group, offsets=[0])
        assert (await node.broker.dead_letters.resend_dead_letters(request)).resent == [0]
        assert node.log.store.reads.queue_range(topic, 0) == (0, 2)


async def test_only_what_can_be_a_topic_can_be_forbidden(node: Fixture) -> None:
    for name in ("t" * 1_000, "a b", ""):
        with pytest.raises(TopicNameError):
            await configure(node, "readers", forbidden_topics=TopicNames(topics=[name]))
    text = (
        '{"dataVersion": {"counter": 1}, "subscriptionGroupTable": {"readers": {}},'
        ' "forbiddenTable": {"readers": {"a b": -1}}}'
    )
    files = {"subscriptionGroup.json": text}
    plan = ImportPlan(node.broker.context, node.machine.image(), files)
    assert not plan.commands
    assert "'a b' is refused" in plan.refusals[0]
