"""A topic that is deleted and created again has no message of the old one, by any way to read.

The log has those records until they expire, under the name of the topic.
"""

from pathlib import Path

import pytest

from node.errors import common as errors
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.log_pb2 import (
    PULL_STATUS_OFFSET_TOO_SMALL,
    GetMessageRequest,
    OffsetByTimeRequest,
    PullRequest,
    QueryByKeyRequest,
    QueueOffsetsRequest,
)
from quorumlog.pb.retry_pb2 import ConfigFile, ImportConfigFilesRequest, RetryLaterRequest
from quorumlog.pb.retry_pb2 import RetryMessage as Given
from store import format as fmt
from store.record.message import Message
from tests.node.broker.pop.pop_calls import ask
from tests.node.broker_fakes import Fixture, node_at
from tests.node.delayed import delayed, request_of, settle
from tests.store.records import messages, numbers

TOPIC_TABLE = (
    '{"topicConfigTable": {"orders": {"topicName": "orders", "perm": 6,'
    ' "readQueueNums": 4, "writeQueueNums": 4}}}'
)


async def recreate(node: Fixture) -> None:
    await node.delete_topic("orders")
    await node.create_topic("orders", queue_count=4)


async def by_key(node: Fixture, key: str) -> list[Message]:
    response = await node.broker.queries.query_by_key(QueryByKeyRequest(topic="orders", key=key))
    return messages(response.records)


async def range_of(node: Fixture) -> tuple[int, int]:
    request = QueueOffsetsRequest(queues=[QueueId(topic="orders", queue_id=0)])
    (offsets,) = (await node.broker.queries.queue_offsets(request)).queues
    return offsets.min_offset, offsets.max_offset


async def test_no_read_finds_a_message_of_the_old_topic(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        await node.append(1, 4)
        (lost,) = await by_key(node, "key0002")
        await recreate(node)

        assert await range_of(node) == (3, 3)
        pulled = await node.broker.pulls.pull(PullRequest(topic="orders", offset=0))
        assert pulled.response.status == PULL_STATUS_OFFSET_TOO_SMALL
        assert (pulled.response.next_offset, bytes(pulled.records)) == (3, b"")
        first = await node.broker.queries.offset_by_time(OffsetByTimeRequest(topic="orders"))
        assert first.offset == 3
        with pytest.raises(errors.MessageNotFoundError):
            await node.broker.queries.get_message(GetMessageRequest(message_id=lost.message_id))

    async with node_at(tmp_path, topics={}) as node:  # All commands are applied again.
        await node.append(2, 3)
        assert [m.queue_offset for m in await by_key(node, "key0002")] == [3]
        pulled = await node.broker.pulls.pull(PullRequest(topic="orders", offset=3))
        assert numbers(pulled.records) == [2]
        assert pulled.response.min_offset == 3
        assert numbers((await ask(node, max_count=32)).records) == [2]
        with pytest.raises(errors.MessageNotFoundError):
            await node.broker.queries.get_message(GetMessageRequest(message_id=lost.message_id))


async def test_a_topic_recreated_twice_begins_at_the_second_time(node: Fixture) -> None:
    for number in range(2):
        await node.append(number, number + 1)
        await recreate(node)
    assert await range_of(node) == (2, 2)
    await node.create_topic("orders", queue_count=8)
    await node.append(7, 8)
    assert await range_of(node) == (2, 3), "a change of a topic is no creation"


async def test_an_imported_topic_begins_at_the_import(node: Fixture) -> None:
    await node.append(0, 2)
    await node.delete_topic("orders")
    answer = await node.broker.config_files.import_config_files(
        ImportConfigFilesRequest(files=[ConfigFile(name="topics.json", text=TOPIC_TABLE)])
    )
    assert answer.topic_count == 1
    assert await range_of(node) == (2, 2)


async def test_what_is_held_of_the_old_topic_is_not_delivered(node: Fixture) -> None:
    """A delayed message, and one that a group gave back."""
    await node.append(0, 1)
    await give_back(node, 0)
    await node.broker.append(request_of(delayed(1, DELAY="1")))
    await recreate(node)
    await node.broker.append(request_of(delayed(4, DELAY="1")))
    await node.append(5, 6)
    await give_back(node, 1)
    node.clock.now_ms += 60_000
    await settle(node)

    lo, _ = await range_of(node)
    records = messages(node.log.store.reads.pull("orders", 0, lo).data)
    assert [message.body[:8] for message in records] == [b"00000005", b"4"]
    assert len(await retried(node)) == 1
    assert node.log.store.reads.queue_range(fmt.UNDELIVERABLE_TOPIC, 0) == (0, 2)


async def test_a_topic_that_has_only_held_messages_is_recreated_as_well(node: Fixture) -> None:
    await node.broker.append(request_of(delayed(1, DELAY="1")))
    await recreate(node)
    node.clock.now_ms += 60_000
    await settle(node)
    assert await range_of(node) == (0, 0)
    assert node.log.store.reads.queue_range(fmt.UNDELIVERABLE_TOPIC, 0) == (0, 1)


async def test_a_recreated_group_does_not_get_what_the_old_one_gave_back(node: Fixture) -> None:
    await node.append(0, 2)
    for offset in (0, 1):
        await give_back(node, offset)
        if offset == 0:
            await node.delete_group("readers")
    node.clock.now_ms += 60_000
    await settle(node)
    assert [message.body[:8] for message in await retried(node)] == [b"00000001"]
    assert node.log.store.reads.queue_range(fmt.UNDELIVERABLE_TOPIC, 0) == (0, 1)
    assert node.machine.state.refused_count == 0


async def give_back(node: Fixture, offset: int) -> None:
    given = RetryLaterRequest(group="readers", messages=[Given(topic="orders", offset=offset)])
    await node.broker.retry.retry_later(given)


async def retried(node: Fixture) -> list[Message]:
    lo, _ = node.log.store.reads.queue_range("%RETRY%readers", 0)
    return messages(node.log.store.reads.pull("%RETRY%readers", 0, lo).data)
