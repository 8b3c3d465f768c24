"""Types of topics: who chooses them, where they are kept, and what clients of RocketMQ may send."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from node.errors.common import BadRequestError
from node.state.checkpoint_tables import CHECKPOINT_TABLES, decode_topics
from node.state.image import decode_image, encode_image
from node.state.state import EMPTY_IMAGE
from node.state.tables.topic_types import TOPIC_TYPES, TopicSettings
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.admin_pb2 import DescribeTopicRequest, ListTopicsRequest
from quorumlog.pb.rocketmq_pb2 import Code, MessageType
from tests.node.broker_fakes import Fixture
from tests.node.rocketmq.test_service import gateway_at

MESSAGES: dict[str, dict[str, Any]] = {
    "NORMAL": {},
    "FIFO": {"message_group": "a"},
    "DELAY": {"delivery_timestamp": Timestamp(seconds=1)},
    "TRANSACTION": {"message_type": MessageType.TRANSACTION},
}


async def test_a_type_is_chosen_shown_changed_and_kept(node: Fixture) -> None:
    topics = node.broker.topics
    made = await node.create_topic("pay", message_type="FIFO")
    assert made.message_type == "FIFO"
    await node.create_topic("pay", queue_count=9)
    topic = await topics.describe_topic(DescribeTopicRequest(topic="pay"))
    assert (topic.info.message_type, topic.info.queue_count) == ("FIFO", 9)
    await node.create_topic("pay", message_type="MIXED")
    rows = (await topics.list_topics(ListTopicsRequest())).topics
    assert {row.topic: row.message_type for row in rows}["pay"] == "MIXED"
    with pytest.raises(BadRequestError, match="one of NORMAL, FIFO"):
        await node.create_topic("pay", message_type="fifo")


def test_types_are_in_checkpoints_and_snapshots_and_builds_without_them_read_both() -> None:
    topics = {name.lower(): TopicSettings(4, 6, name) for name in TOPIC_TYPES}
    image = EMPTY_IMAGE._replace(topics=topics)
    table = next(table for table in CHECKPOINT_TABLES if table.name == "topics.json")
    text = table.encode(image, 1)
    assert decode_topics(text) == topics
    assert '"attributes":{"message.type":"FIFO"}' in text
    data = encode_image(image)
    assert decode_image(data).topics == topics
    assert b'"mixed":[4,6]' in data, "as it was before there were types"


@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
async def test_a_topic_takes_messages_of_its_type_only(tmp_path: Path, topic_type: str) -> None:
    async with gateway_at(tmp_path) as gateway:
        await gateway.node.create_topic("orders", message_type=topic_type)
        route = await gateway.call(
            "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders"))
        )
        taken = {MessageType.Name(t) for t in route.message_queues[0].accept_message_types}
        assert taken == (set(MESSAGES) if topic_type == "MIXED" else {topic_type})
        for name, system in MESSAGES.items():
            answer = await gateway.send(**system)
            expected = Code.OK if name in taken else Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            assert answer.status.code == expected, (name, answer.status.message)
