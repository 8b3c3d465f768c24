"""What only the leader's broker does, beside answering calls: deliver, redeliver, ask back.

Owns one type. Whatever such work remembers beside the replicated state is of one term: the next
leader begins with the state alone.
"""

from typing import Protocol


class LeaderWork(Protocol):
    """Begins and ends with the leadership of this node. On the loop's thread."""

    def begin(self) -> None:
        """This node leads, and has applied everything that was acked before."""

    def end(self) -> None:
        """This node leads no longer, or stops: forget what is under way. Only after `begin`."""
