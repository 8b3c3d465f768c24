"""The name of a queue: its topic, its number, and the broker group whose log it is in.

Owns how such a name compares with a plain pair; must not know where groups are. Each group has a
queue 0 of every topic, so the group is part of the name. A pair (topic, queue id) names a queue of
no group; calls use the first group by name for it.
"""

from collections.abc import Mapping
from typing import Any

Pair = tuple[str, int]
"""Topic and queue id."""


class Queue(tuple[str, int]):
    """A pair of topic and queue id that also knows its `broker_group`.

    A queue unpacks into the pair. Two queues are equal if topic, number and broker group are, and a
    pair equals the queue that names no broker group: so equality is transitive, and pairs and
    queues can be keys of one dict or set. Queues are in order of topic, broker group and number.
    """

    broker_group: str

    def __new__(cls, topic: str, queue_id: int, broker_group: str = "") -> "Queue":
        """`broker_group` empty: the first one of the cluster by name."""
        made = super().__new__(cls, (topic, queue_id))
        made.broker_group = broker_group
        return made

    @property
    def topic(self) -> str:
        """The topic."""
        return self[0]

    @property
    def queue_id(self) -> int:
        """Its number in the topic, within the group."""
        return self[1]

    def __eq__(self, other: object) -> bool:
        group = other.broker_group if isinstance(other, Queue) else ""
        return self.broker_group == group and isinstance(other, tuple) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __lt__(self, other: tuple[Any, ...], /) -> bool:
        return _place(self) < _place(other)

    def __le__(self, other: tuple[Any, ...], /) -> bool:
        return _place(self) <= _place(other)

    def __gt__(self, other: tuple[Any, ...], /) -> bool:
        return _place(self) > _place(other)

    def __ge__(self, other: tuple[Any, ...], /) -> bool:
        return _place(self) >= _place(other)

    def __repr__(self) -> str:
        return f"Queue({self.topic!r}, {self.queue_id}, {self.broker_group!r})"

    def __str__(self) -> str:
        where = f" of {self.broker_group}" if self.broker_group else ""
        return f"{self.topic}/{self.queue_id}{where}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Queue, (self.topic, self.queue_id, self.broker_group)


def _place(named: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sort key of a name; a pair has the place of the queue without a group."""
    group = named.broker_group if isinstance(named, Queue) else ""
    return (*named[:1], group, *named[1:])


def queue_of(named: Pair, broker_group: str = "") -> Queue:
    """Return a queue as it is, and a pair as a queue of `broker_group`."""
    return named if isinstance(named, Queue) else Queue(*named, broker_group)


def queue_in(topic: str, named: int | Pair) -> Queue:
    """Return a queue or pair as a queue, and a number as a queue of `topic`."""
    return queue_of(named) if isinstance(named, tuple) else Queue(topic, named)


Offsets = Mapping[Queue, int] | Mapping[Pair, int]
"""An offset of each queue; a pair means the first broker group by name."""
