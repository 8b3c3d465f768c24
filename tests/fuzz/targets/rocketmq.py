"""Targets of the protocol of RocketMQ: messages, settings, names, handles, access keys."""

from random import Random
from typing import Final

from google.protobuf.message import DecodeError

from node.broker.pop.handles import PopHandle, decode_handle, encode_handle
from node.errors.pop import StaleHandleError
from node.rocketmq import telemetry
from node.rocketmq.callers import user_of
from node.rocketmq.protocol import handles
from node.rocketmq.protocol.messages import check_message, from_record, to_record, type_of
from node.rocketmq.protocol.names import group_name, topic_name
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.routes import check_endpoints
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Encoding, MessageType
from store.format import LOOPBACK
from store.record.message import decode_message
from tests.fuzz.structure import message, mutated_message, text
from tests.fuzz.target import FuzzTarget, claim
from tests.fuzz.targets.records import stamped_batch
from tests.node.rocketmq.guards import guard_of

_BODY_SIZE_BYTES_MAX: Final = 2_048


def _message(data: bytes) -> None:
    """A message that the check lets pass can be stored, and is delivered with what was sent."""
    sent = pb.Message.FromString(data)
    topic = topic_name(sent.topic)
    kind = type_of(sent)
    check_message(sent, _BODY_SIZE_BYTES_MAX)
    try:
        record = stamped_batch(to_record(sent, kind, topic, 1, LOOPBACK))[0]
    except Exception as error:
        raise AssertionError("a message that was checked cannot be stored") from error
    found = from_record(decode_message(record), topic)
    claim(found.body == sent.body, "another body")
    claim(dict(found.user_properties) == dict(sent.user_properties), "other user properties")
    claim(found.system_properties.message_id == sent.system_properties.message_id, "another id")
    claim(found.system_properties.message_type in (kind, pb.MessageType.NORMAL), "another type")


def _message_examples(random: Random) -> list[bytes]:
    """Good messages of each type; what mutations make of the fields is another matter."""
    found = []
    for kind in (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION):
        made = pb.Message(body=random.randbytes(9))
        made.topic.name = "orders"
        system = made.system_properties
        system.message_id, system.message_type = "01AB", kind
        system.keys.extend(random.choices(("k1", "k2"), k=random.randrange(3)))
        system.tag = random.choice(("", "TagA"))
        system.born_host = random.choice(("a-host", "10.0.0.1", "::1", ""))
        system.trace_context = random.choice(("", "00-1-2-01"))
        system.body_encoding = random.choice((Encoding.IDENTITY, Encoding.GZIP))
        system.born_timestamp.seconds = 1_700_000_000
        system.born_timestamp.nanos = random.choice((0, 1, 5_000_000, 999_999_999))
        if kind == MessageType.FIFO:
            system.message_group = "mg"
        elif kind == MessageType.DELAY:
            system.delivery_timestamp.seconds = random.choice((1_900_000_000, -1))
            system.delivery_timestamp.nanos = random.choice((0, 999))
        elif kind == MessageType.TRANSACTION:
            system.orphaned_transaction_recovery_duration.seconds = random.choice((0, 30))
        made.user_properties[random.choice(("n", "name of mine"))] = "1"
        found.append(made.SerializeToString())
    return found


def _settings(data: bytes) -> None:
    asked = pb.Settings.FromString(data)
    answer = telemetry.answer(asked, body_size_bytes_max=5, attempt_count=3, is_fifo=False)
    claim(answer.HasField("backoff_policy"), "settings without a policy")
    check_endpoints(asked.access_point)


def _settings_examples(random: Random) -> list[bytes]:
    made = message(random, pb.Settings)
    producer, consumer = pb.Settings(), pb.Settings()
    producer.publishing.topics.add(name="orders")
    consumer.subscription.group.name = "g"
    consumer.subscription.subscriptions.add().topic.name = "orders"
    return [one.SerializeToString() for one in (made, producer, consumer)]


def _names(data: bytes) -> None:
    resource = pb.Resource.FromString(data)
    for read in (topic_name, group_name):
        try:
            name = read(resource)
        except CallRefusedError as error:
            claim(len(error.message) < 1_000, "a text that grows with the name")
        else:
            claim(name == resource.name and name.isascii(), f"{name!r}")


def _handles(data: bytes) -> None:
    said = data.decode("utf-8", "replace")
    try:
        found = decode_handle("g", "orders", said)
    except StaleHandleError as error:
        claim(len(str(error)) < 1_000, "a text that grows with the handle")
    else:
        claim(
            decode_handle("g", "orders", encode_handle("g", "orders", found)) == found, f"{found}"
        )
    handle = handles.parse(said, pb.Code.BAD_REQUEST)
    claim(handles.parse(str(handle), pb.Code.BAD_REQUEST) == handle, f"{handle} reads otherwise")


def _handle_examples(random: Random) -> list[bytes]:
    pop = encode_handle("g", "orders", PopHandle(1, random.getrandbits(40), 7))
    return [pop.encode(), str(handles.ReceiptHandle("group", pop)).encode()]


_USERS: Final = guard_of({"key": ("admin",)})
_SIGNED: Final = (
    "MQv2-HMAC-SHA1 Credential=key/x, SignedHeaders=x-mq-date-time, "
    "Signature=1ea06b6e2eaee21e6c7ab5a7f9ce4f5bbb2c4a3e\n20260101T000000Z"
)


def _access(data: bytes) -> None:
    """The header, and behind the last line feed the signed time. gRPC hands on ASCII only."""
    said, _, time = data.decode("ascii", "replace").rpartition("\n")
    found = user_of(_USERS, {"authorization": said, "x-mq-date-time": time})
    claim(not found.name, "a forged signature was accepted")


TARGETS: Final = (
    FuzzTarget(
        "rmq-message",
        "a message is refused with a code, or stored and delivered as it was sent",
        _message,
        ("node.rocketmq.protocol.messages", "node.rocketmq.protocol.names"),
        _message_examples,
        (CallRefusedError, DecodeError),
        mutated=mutated_message(pb.Message),
        memory_base_bytes=2 << 20,
    ),
    FuzzTarget(
        "rmq-settings",
        "settings of a client are refused with a code, or answered",
        _settings,
        ("node.rocketmq.telemetry", "node.rocketmq.protocol.names"),
        _settings_examples,
        (CallRefusedError, DecodeError),
        mutated=mutated_message(pb.Settings),
    ),
    FuzzTarget(
        "rmq-names",
        "a name is refused with a short text, or has the characters of a name",
        _names,
        ("node.rocketmq.protocol.names",),
        lambda random: [pb.Resource(name=text(random)).SerializeToString()],
        (DecodeError,),
        mutated=mutated_message(pb.Resource),
    ),
    FuzzTarget(
        "rmq-handles",
        "a text that a client hands back is refused by name, or names one delivery",
        _handles,
        ("node.rocketmq.protocol.handles", "node.broker.pop.handles"),
        _handle_examples,
        (CallRefusedError,),
    ),
    FuzzTarget(
        "rmq-access",
        "no header but one that was signed with a key is taken",
        _access,
        ("node.rocketmq.callers",),
        lambda _random: [_SIGNED.encode(), b"", b"MQv2-HMAC-SHA1 Credential=, "],
        (CallRefusedError,),
    ),
)
