"""A producer that keeps one stream, to its access point, is asked about its transactions.

RocketMQ's client for Rust does so. The frames are made by hand here: what counts is which node the
stream is at, and that the leader is another one.
"""

import queue
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from deploy.local import LocalCluster
from quorumlog.pb import rocketmq_pb2 as pb
from tests.patience import PATIENCE_S

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_METADATA: Final = (("x-mq-client-id", "one-stream@1"), ("x-mq-language", "RUST"))
_COUNT: Final = 10
pytestmark = pytest.mark.long


def half(topic: str, number: int) -> pb.SendMessageRequest:
    system = pb.SystemProperties(
        message_id=f"01{number:032X}",
        message_type=pb.MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=Duration(seconds=1),
    )
    resource = pb.Resource(name=topic)
    message = pb.Message(topic=resource, system_properties=system, body=b"%d" % number)
    return pb.SendMessageRequest(messages=[message])


def call(channel: grpc.Channel, name: str, request: Any) -> Any:
    method = channel.unary_unary(
        _SERVICE + name,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(pb, f"{name}Response").FromString,
    )
    return method(request, metadata=_METADATA, timeout=PATIENCE_S)


def test_a_follower_passes_questions_on_to_the_stream_it_has(
    cluster: LocalCluster, topic: str
) -> None:
    follower = next(n for n in cluster.node_ids if n != cluster.leader_id())
    settings = pb.Settings(
        client_type=pb.ClientType.PRODUCER,
        publishing=pb.Publishing(topics=[pb.Resource(name=topic)]),
    )
    said: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
    said.put(pb.TelemetryCommand(settings=settings))

    def commands() -> Iterator[pb.TelemetryCommand]:
        while (command := said.get()) is not None:
            yield command

    with grpc.insecure_channel(cluster.address(follower)) as channel:
        telemetry = channel.stream_stream(
            _SERVICE + "Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        stream = telemetry(commands(), metadata=_METADATA, timeout=PATIENCE_S)
        sent = set()
        for number in range(_COUNT):
            answer = call(channel, "SendMessage", half(topic, number))
            assert answer.status.code == pb.Code.OK, answer.status.message
            sent.add(answer.entries[0].transaction_id)
        questions = set()
        for command in stream:
            if command.WhichOneof("command") != "recover_orphaned_transaction_command":
                continue
            question = command.recover_orphaned_transaction_command
            end = pb.EndTransactionRequest(
                topic=pb.Resource(name=topic),
                message_id=question.message.system_properties.message_id,
                transaction_id=question.transaction_id,
                resolution=pb.TransactionResolution.COMMIT,
                source=pb.TransactionSource.SOURCE_SERVER_CHECK,
            )
            assert call(channel, "EndTransaction", end).status.code == pb.Code.OK
            questions.add(question.transaction_id)
            if questions == sent:
                break
        said.put(None)
        assert questions == sent
