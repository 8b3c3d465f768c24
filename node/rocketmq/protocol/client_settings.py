"""Settings for a client, in answer to its own.

Owns the values. A client's own settings come back with those fields set that clients need; a field
that is missing makes some client unusable (protocol sections 4 and 18).
"""

from typing import Final

from google.protobuf.duration_pb2 import Duration

from node.rocketmq.protocol.names import group_name, topic_name
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb import rocketmq_pb2 as pb

SEND_ATTEMPT_COUNT: Final = 3
RECEIVE_COUNT: Final = 32
"""Messages of one answer."""
LONG_POLLING_S: Final = 20
TOPIC_COUNT_MAX: Final = 256
"""Topics of one client."""
SIZE_BYTES_MAX: Final = 64 * 1024
"""Size of the settings of one client: they are sent back, and may wait for it."""
_PRODUCER_BACKOFF: Final = pb.ExponentialBackoff(
    initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2
)
_RETRY_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
_CONSUMER_BACKOFF: Final = pb.CustomizedBackoff(
    next=[Duration(seconds=seconds) for seconds in _RETRY_SECONDS]
)


def answer(
    asked: pb.Settings, *, body_size_bytes_max: int, attempt_count: int, is_fifo: bool
) -> pb.Settings:
    """Return the settings of a client. Raises CallRefusedError for invalid names, and for too much.

    `attempt_count` and `is_fifo` are those of a consumer's group.
    """
    size_bytes = asked.ByteSize()
    if size_bytes > SIZE_BYTES_MAX:
        text = f"settings of {size_bytes} bytes, the limit is {SIZE_BYTES_MAX}"
        raise CallRefusedError(pb.Code.BAD_REQUEST, text)
    count = max(len(asked.publishing.topics), len(asked.subscription.subscriptions))
    if count > TOPIC_COUNT_MAX:
        text = f"{count} topics of one client, the limit is {TOPIC_COUNT_MAX}"
        raise CallRefusedError(pb.Code.BAD_REQUEST, text)
    settings = pb.Settings()
    settings.CopyFrom(asked)
    settings.metric.CopyFrom(pb.Metric(on=False))
    match asked.WhichOneof("pub_sub"):
        case "publishing":
            for topic in asked.publishing.topics:
                topic_name(topic)
            settings.publishing.max_body_size = body_size_bytes_max
            settings.publishing.validate_message_type = True
            policy = pb.RetryPolicy(
                max_attempts=SEND_ATTEMPT_COUNT, exponential_backoff=_PRODUCER_BACKOFF
            )
        case "subscription":
            group_name(asked.subscription.group)
            for entry in asked.subscription.subscriptions:
                topic_name(entry.topic, for_reading=True)
            subscription = settings.subscription
            subscription.fifo = is_fifo
            subscription.receive_batch_size = RECEIVE_COUNT
            subscription.long_polling_timeout.CopyFrom(Duration(seconds=LONG_POLLING_S))
            policy = pb.RetryPolicy(
                max_attempts=attempt_count, customized_backoff=_CONSUMER_BACKOFF
            )
        case _:
            text = "settings without `publishing` or `subscription`"
            raise CallRefusedError(pb.Code.BAD_REQUEST, text)
    settings.backoff_policy.CopyFrom(policy)
    return settings
