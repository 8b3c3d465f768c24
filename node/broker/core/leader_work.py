"""Work that only the leader's broker does, beside answering calls: deliver, redeliver, ask back.

Owns one type. Everything such work remembers beside the replicated state is of one term: the next
leader begins with the state alone.
"""

from typing import Protocol


class LeaderWork(Protocol):
    """Begins and ends with the leadership of this node. Runs on the loop's thread."""

    def begin(self) -> None:
        """Begin: this node leads, and has applied everything that was acknowledged before."""

    def end(self) -> None:
        """Forget what is under way: this node leads no longer, or stops. Only after `begin`."""
