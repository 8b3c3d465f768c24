"""Entries that do not fit behind those that are here: changed on the way, or of another history.

Owns the distinction: entries changed on the way are correct the next time, and entries refused
twice in the same way are another history under the same indexes and terms. This takes two leaders
of one term, so a voter that voted twice (raft.rules.divergence). The core compares terms only, so
another history is detected here.
"""

from raft.errors import ForeignChainError
from raft.messages import Index, NodeId


class ForeignChains:
    """Remembers the last refusal."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def is_again(self, error: ForeignChainError) -> bool:
        """Whether the same was refused before; this refusal is remembered."""
        seen = (error.peer, error.index, error.content)
        was, self._last = self._last, seen
        return was == seen


def check_same_chain(peer: NodeId, index: Index, here: int, there: int) -> None:
    """Raise ForeignChainError unless the chains through an entry of one term are equal."""
    if here != there:
        detail = f"the log through entry {index} is {there:08X} there and {here:08X} here"
        raise ForeignChainError(peer, detail, index, there)
