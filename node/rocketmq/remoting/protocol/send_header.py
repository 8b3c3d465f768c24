"""The header of a send: a value that is read from the ext fields once, with defaults and ranges.

Owns the names of the fields, and the text of the properties. Source: protocol section 18.
"""

from typing import Final, NamedTuple

from node.rocketmq.remoting.protocol.answers import RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import INT32_MAX, INT64_MAX, bool_of, int_of, text_of
from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import decode_properties

_SEND: Final = """
producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties
reconsumeTimes unitMode maxReconsumeTimes
"""
SHORT_NAMES: Final = dict(zip(_SEND.split(), "abcdefghijkl", strict=True))
"""Names of the fields of a send, and the letters by which newer clients name them."""
_NAMES: Final = tuple(SHORT_NAMES)
_LETTERS: Final = tuple(SHORT_NAMES.values())
_INT32_MIN: Final = -(1 << 31)
_RANGES: Final = (
    *((None, _INT32_MIN, INT32_MAX), (0, 0, INT32_MAX), (0, _INT32_MIN, INT32_MAX)),
    *((0, 0, INT64_MAX), (0, 0, INT32_MAX), (-1, -1, INT32_MAX), (4, 0, INT32_MAX)),
)
"""Defaults and ranges of queue, sysFlag, flag, birth, tries and their limit, count of queues."""
DELAYS: Final = (fmt.PROPERTY_DELAY_LEVEL, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_KEY: Final = f"{fmt.PROPERTY_UNIQUE_KEY}\x01"
_HELD: Final = (fmt.PROPERTY_HALF, *(f"{name}\x01" for name in DELAYS))


class SendHeader(NamedTuple):
    """The fields of a send. Times are in ms since 1970."""

    topic: str
    shown_queue_id: int
    """As the broker name shows it; below 0: any queue."""
    sys_flag: int
    flag: int
    born_unix_ms: int
    properties: bytes
    reconsume_times: int
    reconsume_times_max: int
    """-1: the limit of the group."""
    queue_count: int
    """Queues of a broker name, if the send makes its topic."""
    producer_group: str
    is_batch: bool
    is_keyed: bool
    """Whether this is one message with a unique key, neither delayed nor a half message: the node
    can tell whether it is stored already."""

    @classmethod
    def of(cls, command: Command) -> "SendHeader":
        """Read the header of a command. Raises RefusedError, LimitExceededError."""
        ext, code = command.ext, command.code
        names = _NAMES if code == RequestCode.SEND_MESSAGE else _LETTERS
        group, topic, _, count, queue, sys, born, mark, text, times, _, times_max = names
        properties = ext.get(text, "")
        numbers = (queue, sys, mark, born, times, times_max, count)
        shown_queue_id, sys_flag, flag, born_unix_ms, tries, tries_max, queue_count = [
            int_of(ext, name, default, lo=lo, hi=hi)
            for name, (default, lo, hi) in zip(numbers, _RANGES, strict=True)
        ]
        is_keyed = code != RequestCode.SEND_BATCH_MESSAGE and _KEY in properties
        return cls(
            text_of(ext, topic),
            shown_queue_id,
            sys_flag,
            flag,
            born_unix_ms,
            properties_data(properties),
            tries,
            tries_max,
            queue_count,
            ext.get(group, ""),
            code == RequestCode.SEND_BATCH_MESSAGE or bool_of(ext, "m"),
            is_keyed and not any(name in properties for name in _HELD),
        )


def properties_data(text: str) -> bytes:
    """Return the bytes of properties of a header. Raises RefusedError, LimitExceededError."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL, "properties that are no valid text"
        ) from None
    if len(data) > fmt.PROPERTIES_SIZE_BYTES_MAX:
        raise LimitExceededError("properties", len(data), fmt.PROPERTIES_SIZE_BYTES_MAX)
    return data


def properties_of(text: str) -> dict[str, str]:
    """Read the properties of a message; the last separator may be missing. Raises RefusedError."""
    return decode_properties(properties_data(text))
