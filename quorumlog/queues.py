"""The name of a queue: its topic, its number, and the broker group whose log it is in.

Owns how such a name compares with a plain pair; must not know where groups are. In a cluster of one
group, which is most of them, a pair (topic, queue id) names a queue, and programs are written so.
With several groups each has a queue 0 of every topic, and the group is part of the name.
"""

from collections.abc import Mapping
from typing import Any, overload

Pair = tuple[str, int]
"""Topic and queue id."""


class Queue(tuple[str, int]):
    """A pair of topic and queue id that also knows its `group`.

    It unpacks into the pair, and equals it: a pair names a queue of whatever group. Two queues are
    equal only if their groups are. As a key of a dict or set, mix it with pairs only where there is
    one group.
    """

    group: str

    def __new__(cls, topic: str, queue_id: int, group: str = "") -> "Queue":
        """`group` empty: whichever is the first one of the cluster by name."""
        made = super().__new__(cls, (topic, queue_id))
        made.group = group
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
        if isinstance(other, Queue) and self.group != other.group:
            return False
        return isinstance(other, tuple) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    @overload
    def __lt__(self, other: "tuple[str, int]", /) -> bool: ...
    @overload
    def __lt__(self, other: "tuple[Any, ...]", /) -> bool: ...
    def __lt__(self, other: "tuple[Any, ...]", /) -> bool:
        if isinstance(other, Queue):
            mine = (self.topic, self.group, self.queue_id)
            return mine < (other.topic, other.group, other.queue_id)
        return tuple.__lt__(self, other)

    def __repr__(self) -> str:
        return f"Queue({self.topic!r}, {self.queue_id}, {self.group!r})"

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.group}" if self.group else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return Queue, (self.topic, self.queue_id, self.group)


def queue_of(named: Pair, group: str = "") -> Queue:
    """Return a queue as it is, and a pair as one of `group`."""
    return named if isinstance(named, Queue) else Queue(*named, group)


def queue_in(topic: str, named: int | Pair) -> Queue:
    """Return the same, and a number as the queue of a topic."""
    return queue_of(named) if isinstance(named, tuple) else Queue(topic, named)


Offsets = Mapping[Queue, int] | Mapping[Pair, int]
"""An offset of each queue; a pair means the first broker group by name."""
