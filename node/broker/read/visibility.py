"""The way from a log position, or a message id, to a message for a reader.

Owns which single records readers see, by the rule of pulls: what a queue has, committed and not
expired, of a topic that exists and may be read. Half messages, delayed ones before their time and
commands are in queues of `INTERNAL_TOPICS`, records of a deleted topic or group lie before the
origin of the next one of that name, and a copy of a record in the body of another is in no queue.
The caller must have the right to read the topic. Must not know in which form the message is passed
on.
"""

from typing import NamedTuple

from node.broker.core.context import Context
from node.broker.groups.settings import check_reader
from node.errors.common import BadRequestError, MessageNotFoundError
from node.state.state import INTERNAL_TOPICS
from node.users.calling import require_known
from node.users.rules import Action, ResourceKind
from store import format as fmt
from store.errors import PositionRangeError, RecordFormatError
from store.record.message import Message, message_id, parse_message_id


class VisibleMessage(NamedTuple):
    """A message that a reader may have."""

    message: Message
    record: bytes
    """Encoded, as the log has it."""


def visible_at(context: Context, position: int, group: str = "") -> VisibleMessage:
    """Return the message at a log position, for a group if one is named.

    Raises MessageNotFoundError, also if the caller may not read it; TopicNotReadableError,
    CorruptionError, and the errors of `check_reader`.
    """
    return visible(context, queued_at(context, position), _id_at(context, position), group)


def visible(context: Context, message: Message, asked: str, group: str = "") -> VisibleMessage:
    """Return a message that a queue has, with its record. `asked` is the id as it was asked for.
    Errors as `visible_at`."""
    topic, unknown = message.topic, MessageNotFoundError(asked)
    require_known(Action.SUB, ResourceKind.TOPIC, topic, unknown)
    if topic in INTERNAL_TOPICS or context.state.topic(topic) is None:
        raise unknown
    context.readable(topic, message.queue_id)
    if group:
        check_reader(context, group, topic)
    return VisibleMessage(message, record_of(context, message))


def record_of(context: Context, message: Message) -> bytes:
    """Return the encoded record of a message. Raises CorruptionError."""
    with context.store.view(message.position, message.size_bytes) as view:
        return bytes(view)


def queued_at(context: Context, position: int) -> Message:
    """Return the record at a log position that a queue has, of whichever topic: not for readers.

    Raises MessageNotFoundError, CorruptionError.
    """
    store = context.store
    try:
        message = store.message_at(position)
        offset = message.queue_offset
        unit = store.units(message.topic, message.queue_id, offset, offset + 1)
        if fmt.CONSUME_QUEUE_UNIT.unpack(unit)[0] == position:
            return message
    except PositionRangeError as error:
        raise MessageNotFoundError(_id_at(context, position)) from error
    raise MessageNotFoundError(_id_at(context, position))


def _id_at(context: Context, position: int) -> str:
    return message_id(context.store.config.store_host, position)


def queued_by_id(context: Context, text: str) -> Message:
    """Return the record with an id, as `queued_at`. Raises BadRequestError for no id, too.

    Positions are the same on all nodes. The host is that of the leader then, and shows that this is
    an id of this log and not of another one.
    """
    try:
        host, position = parse_message_id(text)
    except RecordFormatError as error:
        raise BadRequestError("message_id", error.expected, repr(text[:64])) from error
    try:
        message = queued_at(context, position)
    except MessageNotFoundError as error:
        raise MessageNotFoundError(text) from error  # By the id that was asked for.
    if message.store_host != host:
        raise MessageNotFoundError(text)
    return message
