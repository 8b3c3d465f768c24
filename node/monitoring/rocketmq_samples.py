"""Metrics of the RocketMQ gateway.

Owns the source of each value; `node.monitoring.metrics` has names and texts.
"""

from collections.abc import Iterator

from node.replication.contract import Sample
from node.rocketmq.calls.renewals import COUNT_MAX
from node.rocketmq.clients import CLIENT_COUNT_MAX, QUESTION_SIZE_BYTES_MAX
from node.rocketmq.service import RocketMq


def samples(rocketmq: RocketMq) -> Iterator[Sample]:
    """Yield the value of each metric of the gateway."""
    yield "rocketmq_clients", (), len(rocketmq.clients)
    yield "rocketmq_clients_limit", (), CLIENT_COUNT_MAX
    yield "rocketmq_streams", (), rocketmq.clients.stream_count
    yield "rocketmq_forwarded", (), rocketmq.forwarder.forwarded_total
    yield "rocketmq_renewed", (), len(rocketmq.renewals)
    yield "rocketmq_renewed_limit", (), COUNT_MAX
    yield "rocketmq_not_renewed", (), rocketmq.renewals.dropped_total
    yield "rocketmq_question_bytes", (), rocketmq.clients.question_size_bytes
    yield "rocketmq_question_limit_bytes", (), QUESTION_SIZE_BYTES_MAX
    yield "rocketmq_checks_asked", (), rocketmq.end_calls.asked_total
