"""A message as a consumer sees it, several of them as a batch, and one that is to be sent.

Owns the visible fields of a record; must not know how records are encoded beyond the layout of
their heads, or how they travel. A message keeps the bytes of its own record only, and decodes head
and properties when asked: most consumers want the body and nothing else.
"""

import ipaddress
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from quorumlog.records.queues import Queue

Host = tuple[str, int]  # IPv4 or IPv6 literal, port.

RETRY_PREFIX: Final = "%RETRY%"
TOPICS_OF_GROUPS: Final = (RETRY_PREFIX, "%DLQ%")
"""Prefixes of the topics that a consumer group has: retries, and dead letters."""
_SYS_FLAG_BORN_HOST_V6: Final = 0x10
_INT32: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")


class Message:
    """One message. `queue_offset` is its number in its queue, `body` the bytes that were sent.

    `properties` also holds KEYS and TAGS, the names under which RocketMQ keeps keys and tag.
    """

    __slots__ = (
        "_head", "_properties", "body", "broker_group", "newest_move", "queue_id", "queue_offset",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        body: bytes,
        head: bytes,
        properties: bytes | dict[str, str],
        broker_group: str = "",
        newest_move: int | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self._head = head  # The record up to its body.
        self.body = body
        self._properties: bytes | dict[str, str] = properties
        self.broker_group = broker_group  # Its log has the message.
        self.newest_move = newest_move
        """As that of its batch. None also for dead letters, traces, messages of transactions, and
        those that were popped: they were not read from a queue to be consumed in its order."""

    @property
    def parts(self) -> tuple[str, int, int, bytes, bytes, bytes | dict[str, str], str, int | None]:
        """The arguments to make an equal message."""
        head, where = self._head, (self.topic, self.queue_id, self.queue_offset)
        return (
            *where, self.stored_body, head, self._properties, self.broker_group, self.newest_move,
        )  # fmt: skip

    @property
    def stored_body(self) -> bytes:
        """The body as it is in the log: what `body` is made of, if it was compressed."""
        return self.body

    @property
    def size_bytes(self) -> int:
        """Size of the whole record."""
        return int(_INT32.unpack_from(self._head, 0)[0])

    @property
    def flag(self) -> int:
        """The number that the producer chose."""
        return int(_INT32.unpack_from(self._head, 16)[0])

    @property
    def log_position(self) -> int:
        """Byte of the log at which the record begins."""
        return int(_TIME.unpack_from(self._head, 28)[0])

    @property
    def sys_flag(self) -> int:
        """Bits that RocketMQ defines: compression, transaction, kind of hosts."""
        return int(_INT32.unpack_from(self._head, 36)[0])

    @property
    def born_unix_ms(self) -> int:
        """Time of its making, by the clock of the producer."""
        return int(_TIME.unpack_from(self._head, 40)[0])

    @property
    def born_host(self) -> Host:
        """Address that the producer gave as its own."""
        return _host(self._head[48 : self._store_time_at])

    @property
    def store_unix_ms(self) -> int:
        """Time of storing, by the leader's clock; never goes back within a log."""
        return int(_TIME.unpack_from(self._head, self._store_time_at)[0])

    @property
    def store_host(self) -> Host:
        """The node that stored it first."""
        return _host(self._head[self._store_time_at + 8 : -16])

    @property
    def reconsume_times(self) -> int:
        """Count of times that a group gave it back."""
        return int(_INT32.unpack_from(self._head, len(self._head) - 16)[0])

    @property
    def origin_topic(self) -> str:
        """The topic it was sent to: `topic`, except for retried messages and dead letters."""
        if self.topic.startswith(TOPICS_OF_GROUPS):
            return self.properties.get("RETRY_TOPIC", self.topic)
        return self.topic

    @property
    def prepared_transaction_log_position(self) -> int:
        """Log position of the half message of a transaction."""
        return int(_TIME.unpack_from(self._head, len(self._head) - 12)[0])

    @property
    def message_id(self) -> str:
        """Unique in the cluster; `client.get_message` finds the message by it."""
        host = self._head[self._store_time_at + 8 : -16]
        return (host + self._head[28:36]).hex().upper()

    @property
    def properties(self) -> dict[str, str]:
        """All properties, in the order in which they were written."""
        decoded = self._properties
        if isinstance(decoded, bytes):
            decoded = self._properties = _decode_properties(decoded)
        return decoded

    @property
    def keys(self) -> list[str]:
        """The keys under which it can be queried: one blank separates them, as in RocketMQ."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def key(self) -> str | None:
        """The key that the producer gave."""
        return self.properties.get("KEYS")

    @property
    def tag(self) -> str | None:
        """The tag that the producer gave."""
        return self.properties.get("TAGS")

    @property
    def _store_time_at(self) -> int:
        return 68 if self._head[39] & _SYS_FLAG_BORN_HOST_V6 else 56

    def to_dict(self) -> dict[str, Any]:
        """Return the message under stable names; `body` stays bytes."""
        names = (
            "message_id topic queue_id queue_offset log_position size_bytes born_unix_ms "
            "store_unix_ms key tag properties flag sys_flag reconsume_times body broker_group"
        )
        values: dict[str, Any] = {name: getattr(self, name) for name in names.split()}
        values["born_host"] = "{}:{}".format(*self.born_host)
        values["store_host"] = "{}:{}".format(*self.store_host)
        return values

    def __repr__(self) -> str:
        group = f"{self.broker_group}:" if self.broker_group else ""
        where = f"{group}{self.topic}/{self.queue_id}@{self.queue_offset}"
        return f"<Message {where}, {len(self.stored_body)} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        mine = (self.topic, self._head, self.stored_body, self.properties)
        return mine == (other.topic, other._head, other.stored_body, other.properties)

    def __hash__(self) -> int:
        return hash((self.topic, self._head))


@dataclass(frozen=True, slots=True)
class MessageBatch(Sequence[Message]):
    """Messages of one queue that were read at once, in order, and the offset to read next.

    `offset` is the offset that was asked for, `next_offset` the one to ask for next;
    `end_offset` is one past the last committed message, so `end_offset - next_offset` is the lag.
    `messages` may be empty although there are later ones: none of those examined had the tags.
    `is_out_of_range`: there is no message at the offset, it has expired or is beyond the end.
    `queue` names the queue with its broker group. `newest_move` is the last move of offsets by a
    tool before they were read, of any group (None: not known).
    """

    topic: str
    queue_id: int
    offset: int
    next_offset: int
    first_offset: int
    end_offset: int
    applied_index: int
    node_id: int
    size_bytes: int
    is_out_of_range: bool
    messages: list[Message]
    queue: Queue
    newest_move: int | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        return self.messages[at]

    @property
    def broker_group(self) -> str:
        """The broker group whose log they are in."""
        return self.queue.broker_group

    def bodies(self) -> list[bytes]:
        """Return the bodies alone."""
        return [message.body for message in self.messages]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message of `send_batch` that differs from its batch; None takes the value of the batch.

    The broker group is the same for all of a batch.
    """

    body: bytes | str
    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    queue_id: int | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0


def _decode_properties(data: bytes) -> dict[str, str]:
    properties: dict[str, str] = {}
    for segment in data.decode("utf-8", "surrogateescape").split("\x02"):
        name, separator, value = segment.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def _host(data: bytes) -> Host:
    return str(ipaddress.ip_address(data[:-4])), int(_INT32.unpack_from(data, len(data) - 4)[0])
