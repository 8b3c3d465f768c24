"""Rates of topics: kept by the leader, for all ways to append, with users off as well."""

import pytest

from node.errors.common import UnknownTopicError
from node.errors.users import BadAccessError, RateLimitedError
from node.state.registry import decode_table, encode_table
from node.state.tables.topic_rates import TopicRate, TopicRatesTable
from quorumlog.pb.admin_pb2 import DescribeTopicRequest, SetTopicRatesRequest
from quorumlog.pb.log_pb2 import AppendRequest
from tests.node.broker_fakes import Fixture, request


async def set_rates(node: Fixture, topic: str = "orders", **rates: int) -> None:
    await node.broker.topics.set_topic_rates(SetTopicRatesRequest(topic=topic, **rates))


async def test_an_append_over_the_rate_waits_and_others_do_not(node: Fixture) -> None:
    await node.create_topic("other")
    await set_rates(node, messages_per_second=10)
    await node.append(0, 30)
    with pytest.raises(RateLimitedError, match="messages a second of topic 'orders'") as refused:
        await node.append(30, 31)
    assert refused.value.retry_after_ms == 2_000
    await node.append(0, 30, topic="other")
    node.clock.now_ms += 2_001
    await node.append(30, 31)
    assert node.broker.produce.topic_rates.refused["messages"] == 1


@pytest.mark.parametrize("way", ["delayed", "transaction", "consumed"])
async def test_every_way_to_append_counts(node: Fixture, way: str) -> None:
    await set_rates(node, bytes_per_second=50)
    await node.append(0, 5)
    how = {
        "delayed": AppendRequest(has_delayed=True),
        "transaction": AppendRequest(transaction={"producer_group": "p"}),
        "consumed": AppendRequest(consumed={"group": "g"}),
    }[way]
    how.MergeFrom(request(5, 6))
    before = node.driver.append_count
    with pytest.raises(RateLimitedError):
        await node.broker.append(how)
    assert node.driver.append_count == before


async def test_rates_are_changed_one_by_one_shown_and_stored(node: Fixture) -> None:
    await set_rates(node, bytes_per_second=1)
    await set_rates(node, messages_per_second=2)
    described = await node.broker.topics.describe_topic(DescribeTopicRequest(topic="orders"))
    assert (described.info.bytes_per_second, described.info.messages_per_second) == (1, 2)
    table = node.machine.state.table(TopicRatesTable)
    image = node.machine.state.image().tables[TopicRatesTable.name]
    read = decode_table(TopicRatesTable, encode_table(TopicRatesTable, image, 0))
    again = TopicRatesTable(node.broker.context.limits, read)
    assert again.by_topic == table.by_topic == {b"orders": TopicRate(1, 2)}
    with pytest.raises(UnknownTopicError):
        await set_rates(node, "other", bytes_per_second=1)
    with pytest.raises(BadAccessError):
        await set_rates(node, bytes_per_second=1 << 60)
    await node.delete_topic("orders")
    await node.create_topic("orders")
    assert not table.by_topic
    await node.append(0, 30)
    await node.append(30, 60)
