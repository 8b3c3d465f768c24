"""What clients are told of how to behave; each missing field makes some client unusable."""

import pytest

from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.telemetry import answer
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import ClientType, Code

ENTRY = pb.SubscriptionEntry(topic=pb.Resource(name="orders"))
LARGE = pb.SubscriptionEntry(expression=pb.FilterExpression(expression="x" * 70_000))


def told(asked: pb.Settings) -> pb.Settings:
    return answer(asked, body_size_bytes_max=4_000, attempt_count=17, is_fifo=False)


def producer(*topics: str, namespace: str = "") -> pb.Settings:
    resources = [pb.Resource(name=name, resource_namespace=namespace) for name in topics]
    return pb.Settings(publishing=pb.Publishing(topics=resources))


def consumer(group: str, *entries: pb.SubscriptionEntry) -> pb.Settings:
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=entries)
    return pb.Settings(subscription=subscription)


def test_a_producer_gets_what_it_needs() -> None:
    client_settings = producer("orders")
    client_settings.client_type = ClientType.PRODUCER
    client_settings.publishing.max_body_size = 1 << 27
    broker_settings = told(client_settings)
    assert broker_settings.WhichOneof("pub_sub") == "publishing"
    assert broker_settings.publishing.max_body_size == 4_000
    assert broker_settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert broker_settings.backoff_policy.max_attempts == 3
    assert broker_settings.backoff_policy.exponential_backoff.multiplier == 2
    assert not broker_settings.metric.on
    assert broker_settings.client_type == ClientType.PRODUCER
    assert [topic.name for topic in broker_settings.publishing.topics] == ["orders"]


def test_a_consumer_gets_what_it_needs() -> None:
    broker_settings = told(consumer("readers", ENTRY))
    assert broker_settings.WhichOneof("pub_sub") == "subscription"
    assert broker_settings.subscription.HasField("fifo")
    assert broker_settings.subscription.receive_batch_size == 32
    assert broker_settings.subscription.long_polling_timeout.seconds == 20
    assert broker_settings.backoff_policy.max_attempts == 17
    assert len(broker_settings.backoff_policy.customized_backoff.next) == 18


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (pb.Settings(), Code.BAD_REQUEST),
        (producer(""), Code.ILLEGAL_TOPIC),
        (producer("orders", namespace="ns"), Code.ILLEGAL_TOPIC),
        (producer(*(f"t{n}" for n in range(257))), Code.BAD_REQUEST),
        (consumer("a b"), Code.ILLEGAL_CONSUMER_GROUP),
        (consumer("CID_RMQ_SYS_X"), Code.ILLEGAL_CONSUMER_GROUP),
        (consumer("g", pb.SubscriptionEntry()), Code.ILLEGAL_TOPIC),
        (consumer("g", *[ENTRY] * 257), Code.BAD_REQUEST),
        (consumer("g", LARGE), Code.BAD_REQUEST),
    ],
)
def test_settings_that_cannot_be(asked: pb.Settings, code: Code) -> None:
    with pytest.raises(CallRefusedError) as refused:
        told(asked)
    assert refused.value.code == code
